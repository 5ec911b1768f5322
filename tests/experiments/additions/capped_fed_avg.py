"""A method as somebody adds it: each client weighs by its loss, up to a cap. One file."""

import dataclasses

from privacy.settings import flag
from tff_superquantile.experiments.run.parts import methods


@dataclasses.dataclass(frozen=True, kw_only=True)
class CappedFedAvg(methods.Method):
  """FedAvg with the share min(F_i, cap) / cap."""

  title = "Capped FedAvg"
  cap: float = flag.field(..., "Largest loss that counts.", short="cap", symbol="cap")

  def build(self, run):
    import tensorflow as tf  # --help needs no TensorFlow.

    from tff_superquantile import threshold
    from tff_superquantile.algorithms import learning_process

    def share_fn(loss, nothing, client):
      del nothing, client
      return tf.minimum(loss, self.cap) / self.cap

    weighting = threshold.build_process_of_losses(
      lambda state, rows: (state, tf.constant(0.0), {"num_losses": tf.shape(rows)[0]}), share_fn
    )
    work = dict(run.work)
    model_fn, client_optimizer_fn = work.pop("model_fn"), work.pop("client_optimizer_fn")
    server_optimizer_fn = work.pop("server_optimizer_fn")
    return learning_process.build(
      model_fn, client_optimizer_fn, server_optimizer_fn, work, threshold=weighting
    )
