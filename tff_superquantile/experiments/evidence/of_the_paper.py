"""What a report says first of an experiment of the paper: what each theta moves, here and there.

Its readers know the task and ask for the paper's comparison, so that no verdict on what to do with
these clients is an answer. The paper's tables are `printed.csv`, a row a cell: table, method,
column, value and sd in %, mark ("bold", "entirely bold" with its sd, or empty). Of the synthetic
task it has numbers in the text of Section 7.7 alone, with privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
import pathlib
from typing import NamedTuple

import pandas as pd

from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.evidence import boxes
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.pages import answer
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.run import asked
from tff_superquantile.experiments.run import cross_validation

_NUM_SEEDS = 5
_TABLES = {"results_mean": "mean", "results_90": "p90"}  # Tables 3 and 2.
# Section 7.7, at ε = 5: p90 in % of FedAvg and θ = 0.5, the changes of θ = 0.25 in points.
_FIGURE_6 = pd.DataFrame(
  {
    "mean": {"FedAvg": "–", "Superquantile θ = 0.5": "–", "Superquantile θ = 0.25": "(+0.6)"},
    "p90": {"FedAvg": "55.7", "Superquantile θ = 0.5": "52.6", "Superquantile θ = 0.25": "(−4.3)"},
  }
)


class PaperTask(NamedTuple):
  """A task of the paper: its number of rounds, its column in Tables 2 and 3, and what it says.

  `differ` says how its clients differ by construction, "" where that is for data to tell.
  """

  num_rounds: int
  column: str = ""
  says: str = ""
  differ: str = ""


TASKS: Mapping[str, PaperTask] = {
  "synthetic": PaperTask(
    1000,
    says="The paper has this task with privacy (Section 7.7, Figure 6): at ε = 5 θ = 0.5 lowers p90"
    " from 55.7 to 52.6 %; θ = 0.25 lowers it by 4.3 points, for 0.6 points of the mean.",
    differ="Test clients differ in which labels they have, and in nothing else",
  ),
  "emnist_linear": PaperTask(3000, "EMNIST linear"),
  "emnist_convnet": PaperTask(1000, "EMNIST ConvNet"),
  "sent140_linear": PaperTask(1000, "Sent140 linear"),
  "sent140_lstm": PaperTask(600, "Sent140 RNN"),
  "shakespeare": PaperTask(200, says="The paper does not have this task."),
}


@functools.lru_cache(maxsize=1)
def cells() -> pd.DataFrame:
  """Returns the printed cells: table, method, column, value, sd (both in %) and mark."""
  return pd.read_csv(pathlib.Path(__file__).parent / "printed.csv", keep_default_na=False)


def task_of(e: evidence.Evidence) -> PaperTask | None:
  """Returns the task of the paper that runs are of; None for others."""
  run = e.groups.runs[0]
  return None if run.config is None else TASKS.get(run.flags.get("task", ""))


def thetas(e: evidence.Evidence) -> list[names.Name]:
  """Returns a method for each theta that can be compared with FedAvg, the lowest tail first."""
  by_theta: dict[float | None, names.Name] = {}
  for method in e.finite:
    if method.is_superquantile:
      by_theta.setdefault(method.theta, method)
  return sorted(by_theta.values(), key=lambda m: e.finite[m][e.groups.first].value)


def is_asked(e: evidence.Evidence) -> bool:
  """Returns whether runs are of the paper's comparison: its task, FedAvg, and some theta."""
  return task_of(e) is not None and bool(thetas(e))


def say(e: evidence.Evidence) -> answer.Answer:
  """Says by how much theta moves mean and tail, what the paper says, and what is missing here."""
  methods = thetas(e)
  baseline, own = e.groups.changes[methods[0]]
  *moves, last = [
    f"{evidence.short_name(metric)} by {e.unit.number(change.value, sign=True)}"
    for metric, change in own.items()
  ]
  moved = f"{', '.join(moves)} and {last}" if moves else last
  words = (
    f"Against {names.fed_avg_phrase(baseline)}, {methods[0].label} moves {moved}{e.unit.change}."
  )
  missing, command = _missing(e)
  reasons = (_beyond_chance(e, methods), _said(e), missing)
  box = boxes.of_methods(e, sorted(methods, key=lambda method: method.order))
  return answer.Answer(words, tuple(filter(None, reasons)), box, command)


def _beyond_chance(e: evidence.Evidence, methods: Sequence[names.Name]) -> str:
  """Says with which thetas the tail is lower beyond chance, of all methods and measures."""
  first = e.groups.first
  if not e.finite[methods[0]][first].has_interval:
    return ""
  sure, short = [m.label for m in methods if (m, first) in e.lower], evidence.short_name(first)
  if not sure:
    return f"No theta lowers {short} beyond chance (Holm)."
  return f"Beyond chance (Holm) {short} is lower with {' and '.join(sure)}."


def _said(e: evidence.Evidence) -> str:
  """Returns what the paper says of the task, for the thetas that are compared here."""
  task, config = task_of(e), e.groups.runs[0].config
  assert task is not None and config is not None
  if config.task.is_standin:
    return "These are generated data in the place of the paper’s, with which they share no number."
  if not task.column:
    return task.says
  printed = _printed(task)
  told = [
    f"{method.label} moves p90 from {printed.loc['FedAvg', 'p90']} to"
    f" {printed.loc[method.label, 'p90']} % and the mean from {printed.loc['FedAvg', 'mean']} to"
    f" {printed.loc[method.label, 'mean']} %"
    for method in thetas(e)
    if method.label in printed.index
  ]
  return f"In the paper (Tables 2 and 3) {'; '.join(told)}." if told else ""


def _printed(task: PaperTask) -> pd.DataFrame:
  """Returns what the paper has of a task, as texts: methods, and the columns "mean" and "p90"."""
  if not task.column:
    return _FIGURE_6 if task.differ else pd.DataFrame()
  found = cells()[cells()["column"] == task.column]
  of_tables = {
    title: found[found["table"] == table].set_index("method")["value"].map("{:.2f}".format)
    for table, title in _TABLES.items()
  }
  return pd.DataFrame(of_tables)


def _missing(e: evidence.Evidence) -> tuple[str, str]:
  """Says what these runs lack of the paper's rounds and seeds; with the command that runs it."""
  task, runs = task_of(e), e.groups.runs
  assert task is not None
  rounds = max((run.last_round or 0 for run in cross_validation.single(runs)), default=0)
  num_seeds = len({run.seed for run in runs})
  seeds = _NUM_SEEDS if task.column or task.differ else 1
  if not rounds or (rounds >= task.num_rounds and num_seeds >= seeds):
    return "", ""
  flags = {"num_rounds": max(rounds, task.num_rounds), "seeds": range(max(num_seeds, seeds))}
  text = (
    f"Here it is {tables.plural(num_seeds, 'seed')} of {rounds} rounds, there"
    f" {tables.plural(seeds, 'seed')} of {task.num_rounds}."
  )
  return text, asked.again(runs[0], "quick", **flags)


def blocks(e: evidence.Evidence) -> list[tables.Table]:
  """Returns tables for below the results: the paper's numbers, and what own models would bring."""
  if not is_asked(e):
    return []
  task, made = task_of(e), []
  assert task is not None
  printed = _printed(task)
  config = e.groups.runs[0].config
  if not printed.empty and config is not None and not config.task.is_standin:
    rows = [
      tables.Row(str(method), [tables.Cell(text) for text in row])
      for method, row in printed.iterrows()
    ]
    where = "Section 7.7, at ε = 5; in brackets are changes against FedAvg"
    if task.column:
      where = "Tables 3 and 2, means over five seeds"
    note = f"Misclassification error of the test clients in %: {where}."
    made.append(tables.Table("In the paper", ["method", *printed.columns], rows, note))
  own = boxes.of_own(e) if e.own else None
  if own is not None:
    made.append(_of_own(e, task, own))
  return made


def _of_own(e: evidence.Evidence, task: PaperTask, box: tables.Table) -> tables.Table:
  """Lays out own models, under a sentence that says what they are worth on this task."""
  mean = e.own[e.best][0]
  unit = units.of_measure(e.measure_of_rows, e.groups.task_units)
  far = f"whoever may fit a model at each client gets a mean of {unit.text(mean.before)}, where"
  lead = f"{e.best.label} has {unit.text(mean.after)} (--personalize tunes it there)."
  differ = f"{task.differ}: " if task.differ else "Without a shared model "
  return tables.Table(
    "What models of each client’s own would bring",
    ["model", *box.headings[1:]],
    box.rows,
    box.note,
    lead=f"{differ}{far} {lead}",
  )
