"""The ledger of evaluations beside a run, `evaluations.json`: each release with its budget.

An evaluation is a release of its own, over the clients of one split. Over the same clients releases
compose; other clients lose nothing by them (parallel composition: a client is in one split). The
ledger is written before an estimate is shown, and none of its entries is ever removed.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
import pathlib
from typing import Any, Optional

from privacy import checks
from privacy import ledger as ledger_lib
from privacy.evaluate import query as query_lib

FILE_NAME = "evaluations.json"
TRAINING_SPLIT = "train"
_QUERY_FIELDS = tuple(f.name for f in dataclasses.fields(query_lib.Query) if f.init)
# Another version's calibration may find the same noise with other last digits.
_TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """One release.

  Attributes:
    released: The time of the release, UTC.
    model: Identifies the model that was evaluated.
    split: The clients that were asked: "test", "validation" or "train".
    metric: The number of each client: "error" or "loss".
    query: The query, with its budget.
    noise_multiplier: z of the noise that was added.
    counts: The noisy histogram, after decoding.
    estimates: (estimate, standard error) by name; None where the noise leaves none.
  """

  released: str
  model: str
  split: str
  metric: str
  query: query_lib.Query
  noise_multiplier: float
  counts: tuple[float, ...]
  estimates: Mapping[str, tuple[Optional[float], Optional[float]]]

  def to_dict(self) -> dict[str, Any]:
    """Returns the entry as a JSON object."""
    found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    found["query"] = {name: getattr(self.query, name) for name in _QUERY_FIELDS}
    found["guarantee"] = list(self.query.guarantee)
    return found

  @classmethod
  def from_dict(cls, found: Any) -> "Evaluation":
    """Reads an entry; a `ValueError` says what is wrong with it."""
    try:
      values = {field.name: found[field.name] for field in dataclasses.fields(cls)}
      values["query"] = query_lib.Query(**{name: found["query"][name] for name in _QUERY_FIELDS})
      values["noise_multiplier"] = checks.positive("noise_multiplier", found["noise_multiplier"])
      values["counts"] = tuple(checks.number("counts", count) for count in found["counts"])
      values["estimates"] = {
        name: (estimate, stddev) for name, (estimate, stddev) in found["estimates"].items()
      }
      return cls(**values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f"Found an entry in {FILE_NAME} that cannot be read ({error}); bring the file back as the"
        " evaluations wrote it."
      ) from None


def read(folder: pathlib.Path) -> list[Evaluation]:
  """Returns the evaluations beside a run, in their order; none where there is no file.

  Raises:
    ValueError: If the file cannot be read, for nothing may be released on top of it.
  """
  path = folder / FILE_NAME
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    return []
  except ValueError as error:
    raise ValueError(f"Found that {path} is not JSON ({error}); bring it back.") from None
  if not isinstance(found, list):
    raise ValueError(f"Found that {path} is no list of evaluations; bring it back.")
  return [Evaluation.from_dict(entry) for entry in found]


def cost(evaluations: Sequence[Evaluation]) -> tuple[float, float]:
  """Returns (epsilon, delta) of all evaluations of one split together; delta is the largest."""
  queries = [evaluation.query for evaluation in evaluations]
  delta = max(query.delta for query in queries if query.delta is not None)
  if len(queries) == 1:
    return queries[0].epsilon, delta
  return query_lib.composed_epsilon(queries, delta), delta


def describe_costs(
  evaluations: Sequence[Evaluation], ledger: Optional[ledger_lib.Ledger]
) -> list[str]:
  """States the costs of all evaluations of a run, and how they add to that of training.

  Args:
    evaluations: All of the run, at least one.
    ledger: The ledger of a private run; None of any other.

  Returns:
    Sentences.
  """
  sentences = []
  splits = list(dict.fromkeys(evaluation.split for evaluation in evaluations))
  for split in splits:
    members = [evaluation for evaluation in evaluations if evaluation.split == split]
    epsilon, delta = cost(members)
    number = "1 release" if len(members) == 1 else f"{len(members)} releases, each of which counts,"
    of_clients = f"{number} over the {members[-1].query.num_clients} {split} clients"
    sentences.append(f"{of_clients} cost them epsilon = {epsilon:.4g} at delta = {delta:.3g}.")
    if ledger is not None and split == TRAINING_SPLIT:
      sentences.append(
        f"Training cost the same clients epsilon = {ledger.epsilon_spent:.4g}: by composition"
        f" {ledger.epsilon_spent + epsilon:.4g} at delta = {ledger.claim['delta'] + delta:.3g} in"
        " all."
      )
  held_out = [split for split in splits if split != TRAINING_SPLIT]
  if ledger is not None and held_out:
    sentences.append(
      f"Training cost the training clients epsilon = {ledger.epsilon_spent:.4g} at delta ="
      f" {ledger.claim['delta']:.3g}; the {' and '.join(held_out)} clients are others, so that the"
      " costs do not add (parallel composition)."
    )
  if ledger is None:
    sentences.append(
      f"Training had no budget (no {ledger_lib.FILE_NAME}): the model promises its training clients"
      " nothing, whatever an evaluation costs."
    )
  return [
    *sentences,
    "Releases of other runs over the same clients spend of the same budget: add them up.",
    "Outside the guarantee: rounds.csv, metrics.json and ..._clients.csv, which hold exact numbers"
    " of these clients. Do not publish these.",
  ]


def audit(folder: pathlib.Path, ledger: ledger_lib.Ledger) -> tuple[list[str], list[str]]:
  """Compares the noise of the evaluations beside a private run with their budgets.

  Args:
    folder: The run's folder.
    ledger: Its ledger.

  Returns:
    Sentences that contradict an entry, and sentences on the costs; both empty without evaluations.

  Raises:
    ValueError: If the evaluations cannot be read.
  """
  evaluations = read(folder)
  failures = []
  for number, evaluation in enumerate(evaluations, start=1):
    needed = evaluation.query.release.effective_noise_multiplier
    if evaluation.noise_multiplier < needed * (1.0 - _TOLERANCE):
      failures.append(
        f"Evaluation {number} has noise multiplier {evaluation.noise_multiplier:.6g}; epsilon ="
        f" {evaluation.query.epsilon:g} needs {needed:.6g}."
      )
  return failures, describe_costs(evaluations, ledger) if evaluations else []


def or_none(number: float) -> Optional[float]:
  """Returns a number as JSON has it: None for NaN."""
  return None if math.isnan(number) else number


def to_json(evaluations: Sequence[Evaluation]) -> str:
  """Returns the content of the file."""
  content = [evaluation.to_dict() for evaluation in evaluations]
  return json.dumps(content, indent=2, allow_nan=False) + "\n"
