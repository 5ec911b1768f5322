"""The ledger of evaluations beside a run, `evaluations.json`: each release with its budget.

An evaluation is a release of its own, over the clients of one split. Over the same clients releases
compose; other clients lose nothing by them (parallel composition: a client is in one split). The
ledger is written before an estimate is shown, and none of its entries is ever removed: each has
the hash of the one before it (`previous`), and the hash of the last, the head of the chain, is in
manifest.json. The file is written before the head, so that a crash leaves the head one entry behind
the end, and nothing else does.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import json
import math
import pathlib
from typing import Any

from privacy import checks
from privacy import ledger as ledger_lib
from privacy import together
from privacy.evaluation import query as query_lib

FILE_NAME = "evaluations.json"
HEAD = "evaluations"  # The entry of manifest.json.
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
  estimates: Mapping[str, tuple[float | None, float | None]]

  def to_dict(self) -> dict[str, Any]:
    """Returns the entry as a JSON object."""
    content = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    content["query"] = {name: getattr(self.query, name) for name in _QUERY_FIELDS}
    content["guarantee"] = list(self.query.guarantee)
    return content

  @classmethod
  def from_dict(cls, content: Any) -> "Evaluation":
    """Reads an entry; a `ValueError` says what is wrong with it."""
    try:
      values = {field.name: content[field.name] for field in dataclasses.fields(cls)}
      for name in ("released", "model", "split", "metric"):
        checks.of_type(name, values[name], str, "a text")
      values["query"] = query_lib.Query(**{name: content["query"][name] for name in _QUERY_FIELDS})
      values["noise_multiplier"] = checks.positive("noise_multiplier", content["noise_multiplier"])
      values["counts"] = tuple(checks.number("counts", count) for count in content["counts"])
      values["estimates"] = {
        name: (estimate, stddev) for name, (estimate, stddev) in content["estimates"].items()
      }
      return cls(**values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise ValueError(
        f"Found an entry in {FILE_NAME} that cannot be read ({error}); bring the file back as the"
        " evaluations wrote it."
      ) from None


def load(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the entries beside a run as they are written; none where there is no file.

  Nothing may be released on top of a file that cannot be read.

  Args:
    folder: The run's folder.

  Returns:
    The entries, JSON objects, in their order.

  Raises:
    ValueError: If the file is not JSON, or no list of objects.
  """
  path = folder / FILE_NAME
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    return []
  except ValueError as error:
    raise ValueError(f"Found that {path} is not JSON ({error}); bring it back.") from None
  if not isinstance(content, list):
    raise ValueError(f"Found that {path} is no list of evaluations; bring it back.")
  if not all(isinstance(entry, dict) for entry in content):
    raise ValueError(f"Found an entry in {path} that is no JSON object; bring the file back.")
  return content


def read(folder: pathlib.Path) -> list[Evaluation]:
  """Returns the evaluations beside a run, in their order.

  Args:
    folder: The run's folder.

  Returns:
    The evaluations; none where there is no file.

  Raises:
    ValueError: As by `load`, or if an entry is no evaluation.
  """
  return [Evaluation.from_dict(entry) for entry in load(folder)]


def identity(entry: Mapping[str, Any]) -> str:
  """Returns the SHA-256 of an entry's canonical JSON; two releases with noise have two."""
  text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
  return hashlib.sha256(text.encode()).hexdigest()


def head(content: Sequence[Mapping[str, Any]]) -> str:
  """Returns the identity of the last entry; "" without entries."""
  return identity(content[-1]) if content else ""


def broken_chain(content: Sequence[Mapping[str, Any]], kept: Any) -> str | None:
  """Says where the hashes of entries, and the head that manifest.json has `kept`, disagree.

  It is None for a whole chain; the head is None where the manifest has none.
  """
  for number, entry in enumerate(content):
    if entry.get("previous") != head(content[:number]):
      return f"Evaluation {number + 1} is not that which followed the one before it."
  if kept is None and not content:
    return None
  if kept not in (head(content), head(content[:-1])):
    return f"The last of the {len(content)} evaluations is not the one that manifest.json has."
  return None


def append(content: Sequence[Mapping[str, Any]], new: Evaluation) -> list[Mapping[str, Any]]:
  """Returns the entries with a new one, which has the hash of the last."""
  return [*content, {**new.to_dict(), "previous": head(content)}]


def cost(evaluations: Sequence[Evaluation]) -> tuple[float, float]:
  """Returns (epsilon, delta) of all evaluations of one split together; delta is the largest.

  Args:
    evaluations: At least one, each with a delta or a default.

  Returns:
    Epsilon and delta.
  """
  queries = [evaluation.query for evaluation in evaluations]
  delta = max(query.delta for query in queries if query.delta is not None)
  if len(queries) == 1:
    return queries[0].epsilon, delta
  runs = [together.Repeated(query.release, 1) for query in queries]
  return together.spent(runs, delta).epsilon, delta


def describe_costs(
  evaluations: Sequence[Evaluation], ledger: ledger_lib.Ledger | None
) -> list[str]:
  """States the costs of all evaluations of a run, and how they add to that of training.

  Args:
    evaluations: Of any splits, in their order.
    ledger: The run's; None for a run without a budget.

  Returns:
    Sentences, the last one on what is outside the guarantee.
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


def audit(
  folder: pathlib.Path, ledger: ledger_lib.Ledger, manifest: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
  """Compares the evaluations beside a private run with their budgets, their chain and the run.

  Args:
    folder: The run's folder.
    ledger: The run's ledger.
    manifest: The content of the run's manifest.json.

  Returns:
    Sentences on what fails, and, where there are evaluations, those of `describe_costs`.

  Raises:
    ValueError: As by `load`.
  """
  content = load(folder)
  evaluations = [Evaluation.from_dict(entry) for entry in content]
  broken = broken_chain(content, manifest.get(HEAD))
  failures = [] if broken is None else [broken]
  num_clients = manifest.get("num_clients")
  num_clients = num_clients if isinstance(num_clients, dict) else {}
  for number, evaluation in enumerate(evaluations, start=1):
    needed = evaluation.query.release.effective_noise_multiplier
    if evaluation.noise_multiplier < needed * (1.0 - _TOLERANCE):
      failures.append(
        f"Evaluation {number} has noise multiplier {evaluation.noise_multiplier:.6g}; epsilon ="
        f" {evaluation.query.epsilon:g} needs {needed:.6g}."
      )
    clients = num_clients.get(evaluation.split, "no")
    if clients != evaluation.query.num_clients:
      failures.append(
        f"Evaluation {number} is over {evaluation.query.num_clients} {evaluation.split} clients and"
        f" manifest.json has {clients}."
      )
  return failures, describe_costs(evaluations, ledger) if evaluations else []


def or_none(number: float) -> float | None:
  """Returns a number as JSON has it: None for NaN."""
  return None if math.isnan(number) else number


def to_json(content: Sequence[Mapping[str, Any]]) -> str:
  """Returns the content of the file."""
  return json.dumps(content, indent=2, allow_nan=False) + "\n"
