"""A run whose loss grows without bound ends, and one whose loss has grown is worth a word."""

from collections.abc import Mapping
import logging

from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.simulation import training_loop

_LOG = logging.getLogger(__name__)

# So many times the loss before training are worth a word, or end the run.
_SUSPICIOUS_GROWTH, _LARGEST_GROWTH = 10.0, 1e6
_REMEDY = "; expected it to fall: lower --client_learning_rate."


class DivergenceGuard(hook.Hook):
  """Ends a run whose loss grows without bound, after the release of a round that shows it.

  It compares the median loss of the test clients, which such a round releases, so that its message
  is no further release of a private run. A single client with absurd inputs may have any loss. The
  state of the round before is the last that is saved, so that a resumed run ends likewise.
  """

  def prepare(self) -> None:
    """Reads the mean loss of the test clients before training; None if the run has not begun."""
    losses = self.job.earlier.rounds.get("test_loss_mean", ())
    self._initial: float | None = next(iter(losses), None)
    self._loss: Mapping[str, float] | None = None

  def on_evaluation(self, evaluation: hook.Evaluation) -> None:
    self._loss = evaluation.statistics["test"]["loss"]

  def on_round(self, round_num: int, values: hook.Values) -> None:
    loss, self._loss = self._loss, None
    if loss is None:
      return
    if self._initial is None:
      self._initial = loss["mean"]
    if sentence := self._complaint(loss, _LARGEST_GROWTH):
      raise training_loop.DivergedError(f"{sentence} in round {round_num}{_REMEDY}")

  def complete(self) -> None:
    """Warns if the loss of the model that is left is far above that before training."""
    if sentence := self._complaint(self.job.outcome.metrics["test"]["loss"], _SUSPICIOUS_GROWTH):
      _LOG.warning("%s", sentence + _REMEDY)

  def _complaint(self, loss: Mapping[str, float], growth: float) -> str:
    if self._initial is None or loss["p50"] <= growth * self._initial:
      return ""
    return (
      f"Found that the test clients' loss has grown from {self._initial:.3g} before training to a"
      f" median of {loss['p50']:.3g}"
    )
