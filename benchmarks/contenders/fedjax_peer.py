"""FedJAX: `fedjax.algorithms.fed_avg`, mapped over clients by its jit backend, data in memory.

Runs in FedJAX's own environment. The algorithm is FedJAX's, unchanged, and so are its batches,
taken one at a time from numpy arrays as `ClientDataset.shuffle_repeat_batch` does; but the order is
the workload's, and a client's last batch is not filled up with examples that were there before.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import contender
from benchmarks import workloads

# FedJAX and JAX are not in the project's environment: only this process imports them.


def _logits(settings: Mapping[str, Any], weights: Sequence[Any], x: Any) -> Any:
  """Computes the task's model; weights and layouts are as in `tasks.models`."""
  import jax
  import jax.numpy as jnp

  if settings["model"] == "linear":
    products = x.reshape(x.shape[0], -1) @ weights[0]
    return products + weights[1] if len(weights) == 2 else products
  if settings["model"] == "convnet":
    hidden = x[..., jnp.newaxis]
    for kernel, bias in (weights[0:2], weights[2:4]):
      hidden = jax.lax.conv_general_dilated(
        hidden, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
      )
      hidden = jax.nn.relu(hidden + bias)
      hidden = jax.lax.reduce_window(
        hidden, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
      )
    return hidden.reshape(hidden.shape[0], -1) @ weights[4] + weights[5]
  x_weights, h_weights, bias, logit_weights, logit_bias = weights

  def step(carry, of_x):
    h, c = carry
    i, f, g, o = jnp.split(of_x + h @ h_weights, 4, axis=1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), None

  zeros = jnp.zeros((x.shape[0], h_weights.shape[0]))
  # Steps first; one product for all of them.
  of_all = jnp.swapaxes(x, 0, 1) @ x_weights + bias
  (h, _), _ = jax.lax.scan(step, (zeros, zeros), of_all)
  return h @ logit_weights + logit_bias


def _losses(settings: Mapping[str, Any], batch: Mapping[str, Any], logits: Any) -> Any:
  """Returns the loss of each example."""
  import jax.numpy as jnp
  import optax

  if settings["num_outputs"] == 1:
    return optax.sigmoid_binary_cross_entropy(logits[:, 0], batch["y"].astype(jnp.float32))
  return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])


class _OrderedDataset:
  """Gives `fed_avg` a client's data set in the workload's order."""

  def __init__(self, x: np.ndarray, y: np.ndarray, order: np.ndarray, batch_size: int):
    self._examples = {"x": x, "y": y}
    self._order = np.array(order)
    self._batch_size = batch_size

  def __len__(self) -> int:
    return len(self._order)

  def shuffle_repeat_batch(self, hparams: Any) -> Iterator[dict[str, np.ndarray]]:
    del hparams  # The workload's, not FedJAX's.
    for start in range(0, len(self._order), self._batch_size):
      rows = self._order[start : start + self._batch_size]
      yield {name: values[rows] for name, values in self._examples.items()}


class _FedJax(contender.Contender):
  """FedAvg with FedJAX."""

  def __init__(self, workload: workloads.Workload, options: Mapping[str, Any]):
    del options
    import jax

    if not hasattr(jax, "tree_map"):
      jax.tree_map = jax.tree_util.tree_map  # Its name when FedJAX was written.
    import fedjax
    import jax.numpy as jnp

    settings = workload.settings
    self._workload = workload
    # In memory, as `fedjax.InMemoryFederatedData` has them.
    self._clients: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    model = fedjax.Model(
      init=lambda rng: None,
      apply_for_train=lambda weights, batch, rng: _logits(settings, weights, batch["x"]),
      apply_for_eval=lambda weights, batch: _logits(settings, weights, batch["x"]),
      train_loss=lambda batch, logits: _losses(settings, batch, logits),
      eval_metrics={},
    )
    fedjax.set_for_each_client_backend("jit")
    self._algorithm = fedjax.algorithms.fed_avg.federated_averaging(
      fedjax.model_grad(model),
      client_optimizer=fedjax.optimizers.sgd(settings["client_learning_rate"]),
      server_optimizer=fedjax.optimizers.sgd(1.0),
      client_batch_hparams=None,
    )
    self._state = self._algorithm.init([jnp.asarray(w) for w in workload.initial_weights])
    self._key = jax.random.PRNGKey(0)  # Nothing is drawn.
    self._cohort: list[tuple[int, _OrderedDataset, Any]] = []
    self._is_compiled = False
    if settings["client_weighting"] == "uniform" and np.ptp(np.diff(workload.offsets)):
      raise ValueError("FedJAX weights clients by their examples; this workload does not.")

  def describe(self):
    import jax

    return {"versions": f"jax {jax.__version__}"}

  def prepare(self, round_num):
    self._cohort = []
    for place, client in enumerate(self._workload.cohorts[round_num]):
      if client not in self._clients:
        self._clients[client] = self._workload.client(client)
      order = self._workload.order(round_num, place)
      dataset = _OrderedDataset(
        *self._clients[client], order, self._workload.batch_size(len(order))
      )
      # The place, not the client: one that is there twice would count once.
      self._cohort.append((place, dataset, self._key))

  def _compile(self) -> None:
    """Has JAX compile for every size of a batch; else it would whenever a new one comes along."""
    x, y = self._workload.client(int(np.argmax(np.diff(self._workload.offsets))))
    sizes = set()
    for num_examples in np.diff(self._workload.offsets).tolist():
      batch_size = self._workload.batch_size(num_examples)
      sizes |= {min(batch_size, num_examples), num_examples % batch_size}
    cohort = [
      (size, _OrderedDataset(x, y, np.arange(size), size), self._key) for size in sizes - {0}
    ]
    self._algorithm.apply(self._state, cohort)

  def run_round(self, round_num):
    del round_num
    import jax

    if not self._is_compiled:
      self._compile()
      self._is_compiled = True
    self._state, _ = self._algorithm.apply(self._state, self._cohort)
    jax.block_until_ready(self._state.params)

  def weights(self):
    return [np.asarray(w) for w in self._state.params]


if __name__ == "__main__":
  contender.serve(_FedJax)
