"""Parts of a page that say how its runs were tuned and run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import math
import os
import pathlib

from privacy import ledger
from privacy import statements
from privacy.audit import experiment
from privacy.audit import members
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.plan import tuning
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

# Flags of the place and the seed of a run; runs of one method may differ in them.
_BOOKKEEPING_FLAGS = frozenset({"seed", "seeds", "output_dir"})
# Entries of manifests that say nothing of how a run was made, or are said elsewhere.
_NOT_SHOWN = (
  *("seed", "seconds_per_round", "task", "method", "flags", "evaluations", "commitments"),
  run_folder.RELATIVE_NOISE,
)
# Of a grid of more values the report shows the best.
_MOST_TRIED = 12


def different_seeds(groups: run_folder.Groups) -> list[str]:
  """Returns a warning if the methods ran with different seeds."""
  seeds = {method: frozenset(run.seed for run in runs) for method, runs in groups.items()}
  if len(set(seeds.values())) < 2:
    return []
  listing = "; ".join(f"{method.label}: {_seeds(numbers)}" for method, numbers in seeds.items())
  return [f"The methods ran with different seeds ({listing}), so compare rows with care."]


def of_private_runs(groups: run_folder.Groups, output_dir: str | os.PathLike, task: str) -> str:
  """Says what readers of private runs must know: their sums, their noise, and what all cost."""
  return _secure_sums(groups) + _loud_noise(groups) + _cost_of_all_runs(output_dir, task)


def _secure_sums(groups: run_folder.Groups) -> str:
  """Says which private runs have which secure sums, by their ledgers; "" if there are none."""
  labels_of: dict[str, list[str]] = {}
  for method, runs in groups.items():
    path = runs[0].path / ledger.FILE_NAME
    with contextlib.suppress(OSError, ValueError):  # The cost says what is wrong with a ledger.
      release = ledger.Ledger.from_json(path.read_text(encoding="utf-8")).release
      labels_of.setdefault(statements.secure_sums(release), []).append(method.label)
  return "".join(f" {'; '.join(labels)}: {text}" for text, labels in labels_of.items())


def _loud_noise(groups: run_folder.Groups) -> str:
  """Says in which private runs the noise of a round is longer than its updates; "" if in none."""
  most = {m.label: max(run.relative_noise or 0.0 for run in runs) for m, runs in groups.items()}
  listing = ", ".join(f"{label} ({times:.2g} times)" for label, times in most.items() if times > 1)
  if not listing:
    return ""
  return (
    f" The noise of a round is longer than any client’s update can be with {listing}, so that its"
    " rounds are mostly noise: more clients per round, a larger ε or a smaller model shorten it."
  )


def _cost_of_all_runs(output_dir: str | os.PathLike, task: str) -> str:
  """Says what all private runs of a task cost one client together, tuning included; "" for none."""
  folders = [pathlib.Path(output_dir) / task, pathlib.Path(output_dir) / names.TUNING / task]
  folders = [folder for folder in folders if next(folder.rglob(ledger.FILE_NAME), None)]
  if not folders:
    return ""
  try:
    costs = [experiment.compose(runs) for runs in members.read(folders).populations.values()]
  except ValueError as error:
    return f" What all private runs cost a client together is not known: {error}"
  said = " ".join(sentence for cost in costs for sentence in (cost.sentence(), *cost.limits))
  return f" All private runs together: {said} (superquantile account audit says why.)"


def notes(groups: run_folder.Groups, unfinished: Sequence[run_folder.Run]) -> list[str]:
  """Returns caveats on the runs of a comparison: finished ones by method, and the others."""
  sentences = different_seeds(groups)
  diverged = [
    method.label
    for method, runs in groups.items()
    if not all(math.isfinite(run.numbers.get("train.loss.mean", 0)) for run in runs)
  ]
  if diverged:
    sentences.append(f"A run diverged (its training loss is not a number): {', '.join(diverged)}.")
  if unfinished:
    sentences.append(f"Not counted: {tables.plural(len(unfinished), 'unfinished run')}.")
  stopped = [run.diverged for run in unfinished if run.diverged]
  if stopped:
    sentences.append(f"{tables.plural(len(stopped), 'run')} diverged, the first so: {stopped[0]}")
  return sentences


def unfinished(runs: Iterable[run_folder.Run]) -> list[tables.Table]:
  """Lists unfinished runs, if there are any."""
  rows = []
  for run in runs:
    when = "before its first round" if run.last_round is None else f"after round {run.last_round}"
    state = run.diverged or f"stopped or still running {when}"
    rows.append(tables.Row(f"{run.method.label}, seed {run.seed}: {state}", []))
  return [tables.Table("Unfinished runs, not counted", [], rows, kind="words")] if rows else []


def without_models(runs: Sequence[run_folder.Run], question: str) -> page.Page:
  """Returns the report of a task whose runs have all ended early, some because they diverged."""
  return page.Page(
    "report",
    runs[0].task_title,
    question,
    tables.plural(len(runs), "run"),
    " ".join(["No run has left a model.", *notes({}, runs)]),
    unfinished(runs),
  )


def searches(folder: pathlib.Path, task_units: units.Units) -> list[tables.Table]:
  """Lists the tried and the chosen values of a task folder's grid searches, if there were any."""
  rows = []
  for search in run_files.read_json_list(folder / tuning.FILE_NAME):
    split, quantity, statistic = search["criterion"].split(".")
    unit, measure = units.of_measure(quantity, task_units), units.words(quantity)
    flags = ", ".join(f"--{name}" for name in search["chosen"])
    criterion = f"{statistic} of the {split} clients’ {measure}, {unit.name}"
    cells = [tables.Cell(f"{criterion} by {flags}")]
    tried = search["tried"]
    if len(tried) > _MOST_TRIED:
      tried = sorted(tried, key=lambda its: (its["result"] is None, its["result"]))[:_MOST_TRIED]
      cells.append(tables.Cell(f"the best {_MOST_TRIED} of {len(search['tried'])}"))
    for candidate in tried:
      result = candidate.pop("result")
      values = ", ".join(f"{value:g}" for value in candidate.values())
      outcome = "failed" if result is None else f"{unit.factor * result:.3g}"
      cells.append(tables.Cell(f"{values}: {outcome}", best=candidate == search["chosen"]))
    method = methods.METHODS.get(search["method"])
    title = names.printable(search["method"]) if method is None else method.title
    rows.append(tables.Row(title, cells))
  note = (
    "Results of grid searches with one seed, before the runs above; they looked at no test client."
    " The chosen value is bold."
  )
  return [tables.Table("What was tuned", [], rows, note, "words")] if rows else []


def how_it_was_run(groups: run_folder.Groups) -> page.Details:
  """Lists seeds, manifests, and the flags in which runs of methods differ and that all share."""
  about = {f"seeds of {m.label}": _seeds(run.seed for run in runs) for m, runs in groups.items()}
  runs = [run for members in groups.values() for run in members]
  about |= _manifests([run_files.flatten(run.manifest) for run in runs])
  blocks: list[page.Block] = [tables.listing(about)]

  shared, differing = {}, []
  for flag in sorted({name for run in runs for name in run.flags} - _BOOKKEEPING_FLAGS):
    values = [
      _join_distinct(run.flags.get(flag, "(not set)") for run in members)
      for members in groups.values()
    ]
    if len(set(values)) == 1:
      shared[f"--{flag}"] = values[0]
    else:
      differing.append(tables.Row(f"--{flag}", [*map(tables.Cell, values)]))
  if differing:
    title = "Flags that differ between methods"
    headings = ["flag", *(method.label for method in groups)]
    blocks.append(tables.Table(title, headings, differing, kind="code"))
  if shared:
    title = f"Flags that all runs share ({len(shared)})"
    blocks.append(page.Details(title, [tables.listing(shared, kind="code")]))
  return page.Details("How it was run", blocks)


def _manifests(manifests: Sequence[Mapping[str, object]]) -> dict[str, str]:
  """Joins the entries of manifests by name."""
  about = {}
  for name in dict.fromkeys(name for manifest in manifests for name in manifest):
    if name in _NOT_SHOWN:
      continue
    title = name.replace("_", " ").replace("versions.", "")
    about[title] = _join_distinct(str(its[name]) for its in manifests if name in its)
  return about


def _seeds(numbers: Iterable[int]) -> str:
  return ", ".join(map(str, sorted(numbers)))


def _join_distinct(values: Iterable[str]) -> str:
  """Lists the different values in the order of their first use, at most five."""
  distinct = list(dict.fromkeys(values))
  return ", ".join(distinct[:5]) + (", …" if len(distinct) > 5 else "")
