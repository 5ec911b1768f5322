"""The results of the bench: a row for each method on each data set, from runs or from a CSV file.

The page is made of these rows alone, so that a row that somebody else has measured counts as ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import io
import math
import pathlib

import numpy as np
import pandas as pd

from benchmarks.tailbench import plan
from benchmarks.tailbench import sources
from tff_superquantile import evaluation
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import personal
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.evidence import in_reports
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.plan import tuning
from tff_superquantile.experiments.references import fitting
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.references import making
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import personalizing

# The statistics of a measure over the test clients, by their columns.
STATISTICS = {
  "mean": "mean",
  "p90": "p90",
  "worst_tenth": "superquantile_90",
  "worst_client": "max",
}
# Those with a paired difference from FedAvg, and its interval: a maximum has none.
COMPARED = ("mean", "p90", "worst_tenth")
ENDS = ("change", "low", "high")
_TEXTS = ("data_set", "method", "parameter", "measure", "kind")
_REFERENCES = (kept.CONSTANT, kept.POOLED)
# What a model of a client's own is measured against, on the rows that neither is tuned on: of the
# method what clients keep against its shared model ("gain") and against what they keep after FedAvg
# ("after"), and of FedAvg clients' own models alone against what they keep ("own").
PERSONAL = ("gain", "after", "own")
_OF_A_DATA_SET = (
  *("num_clients", "num_rows", "label_shift", "loss_spread", "disagreement"),
  *(f"{name}_change" for name in _REFERENCES),
)
COLUMNS = (
  *("data_set", "epsilon", "method", "parameter", "kind", "measure"),
  *("num_seeds", "num_test_clients"),
  *STATISTICS,
  *(f"{name}_{part}" for name in COMPARED for part in ENDS),
  *_OF_A_DATA_SET,
  "num_personal_seeds",
  *(f"kept_{name}" for name in COMPARED),
  *(f"{of}_{name}_{part}" for of in PERSONAL for name in COMPARED for part in ENDS),
)
_NUMBERS = tuple(name for name in COLUMNS if name not in _TEXTS)
_DECIMALS = 6
_LEAST_ROWS = 20


@dataclasses.dataclass(frozen=True)
class MeasuredTable:
  """A data set with its finished runs, by budget (None for none) and name of the method."""

  data_set: sources.DataSet
  facts: sources.Facts
  runs: Mapping[float | None, Mapping[str, Sequence[run_folder.Run]]]


def find(planned: Sequence[tuning.Settings]) -> dict[float | None, dict[str, list[run_folder.Run]]]:
  """Finds the finished runs of one data set by budget and method; none where FedAvg has no run.

  A cross-validation is one run that tested everybody; without one of its folds it is left out.
  """
  by_budget: dict[float | None, dict[str, list[run_folder.Run]]] = {}
  for settings in planned:
    run = run_folder.of_config(run_config.from_values(**settings))
    if run.finished:
      of_budget = by_budget.setdefault(settings.get("epsilon"), {})
      of_budget.setdefault(plan.name(settings), []).append(run)
  whole = {}
  for epsilon, by_method in by_budget.items():
    pooled = {method: cross_validation.pool(runs) for method, runs in by_method.items()}
    complete = {
      m: [run for run in runs if not cross_validation.gaps([run])] for m, runs in pooled.items()
    }
    if complete.get(plan.FED_AVG):
      whole[epsilon] = {method: runs for method, runs in complete.items() if runs}
  return whole


def _parameter(run: run_folder.Run) -> str:
  """Returns what tuning chooses of a method, as "q = 1"; "" for nothing."""
  assert run.config is not None
  method = run.config.method
  tuned = [flag for flag in methods.parameters(type(method)) if flag.name != "theta"]
  values = [(flag, getattr(method, flag.name)) for flag in tuned if flag.is_required]
  return ", ".join(f"{flag.symbol} = {value:g}" for flag, value in values)


def _row(
  fed_avg: Sequence[run_folder.Run], runs: Sequence[run_folder.Run], measure: str
) -> dict[str, float | str]:
  """Returns the numbers of a method, and of its differences from FedAvg where it is another."""
  clients = [run.clients("test") for run in runs]
  values = [of_run[measure][np.isfinite(of_run[measure])] for of_run in clients]
  ids = {client for of_run in clients for client in of_run["client_id"]}
  row: dict[str, float | str] = dict(
    parameter=_parameter(runs[0]),
    measure=measure,
    num_seeds=len(runs),
    num_test_clients=len(ids),
  )
  for column, statistic in STATISTICS.items():
    of_runs = [_of_values(statistic, of_run) for of_run in values]
    row[column] = float(np.mean(of_runs))
  if runs is not fed_avg:
    for column in COMPARED:
      change = paired.change(fed_avg, runs, f"test.{measure}.{STATISTICS[column]}")
      if change is not None:
        row |= {
          f"{column}_change": change.value,
          f"{column}_low": change.low,
          f"{column}_high": change.high,
        }
  return row


def _personal(
  fed_avg: Sequence[run_folder.Run],
  runs: Sequence[run_folder.Run],
  measure: str,
  own: Mapping[int, pd.Series],
) -> dict[str, float]:
  """Returns the numbers of `PERSONAL`, of a method with personal models; `own` by seed."""
  numbers: dict[str, float] = {}
  of_fed_avg = paired.of_clients(fed_avg, measure, personal.CHOSEN)
  kept_after = paired.of_clients(runs, measure, personal.CHOSEN)
  for column in COMPARED if kept_after else ():
    both: dict[str, tuple[Mapping[int, pd.Series], Mapping[int, pd.Series]]] = {
      "gain": (paired.of_clients(runs, measure, personal.SHARED), kept_after)
    }
    both |= {"own": (of_fed_avg, own)} if runs is fed_avg else {"after": (of_fed_avg, kept_after)}
    for name, pair in both.items():
      if pairs := paired.pairs(*pair):
        # Of two or three seeds the chance is that of clients, for the models that were trained.
        together = pd.concat(pairs.values()).groupby(level=0).mean()
        change = paired.of_pairs({0: together}, f"test.{measure}.{STATISTICS[column]}")
        values = (change.value, change.low, change.high)
        numbers |= {f"{name}_{column}_{part}": value for part, value in zip(ENDS, values)}
        numbers |= {f"kept_{column}": change.after} if name == "gain" else {}
    numbers["num_personal_seeds"] = len(kept_after)
  return numbers


def _own(runs: Sequence[run_folder.Run], measure: str) -> dict[int, pd.Series]:
  """Returns the results of clients' own models by their ids, by the seeds that have them."""
  making.make(cross_validation.single(runs))
  by_seed = {}
  for run in runs:
    references = in_reports.read(run)
    own = None if references is None else references.models.get(kept.LOCAL)
    if own is not None:
      by_seed[run.seed] = pd.Series(own.clients[measure], own.clients["client_id"])
  return by_seed


def _disagreement(run: run_folder.Run, measure: str) -> float:
  """Returns how much less clients' own fits err than one of others; it is known before training.

  Every second training client fits half of its rows by itself, and the halves of the others make up
  a pooled fit; both are measured on its other half. It is 1 - (mean own error) / (mean pooled one),
  NaN where there are fewer than six such clients of 20 rows.
  """
  run = next(cross_validation.single([run]))
  assert run.config is not None
  model, splits = finished_run.load_task(finished_run.get_task(run, run.config), run.config)
  halves = personalizing.split_clients(run.config, splits, "train")
  sizes = np.diff(halves.held_in.offsets) + np.diff(halves.held_out.offsets)
  asked = [i for i in range(0, len(sizes), 2) if sizes[i] >= _LEAST_ROWS]
  if len(asked) < bootstrap.FEWEST:
    return math.nan
  parts = evaluation.SplitExamples(halves.held_in.take(asked), halves.held_out.take(asked), 0)
  l2, others = run.config.local.l2, halves.held_in.take(range(1, len(sizes), 2))
  own = fitting.local(model, parts, l2, run.error_kind)
  pooled = fitting.pooled(model, others, parts.held_out, l2, run.error_kind)
  levels = [np.nanmean(fit.of_clients.columns()[measure]) for fit in (own, pooled)]
  return float(1 - levels[0] / levels[1])


def _of_values(statistic: str, values: np.ndarray) -> float:
  ordered = np.sort(values)
  return float(bootstrap.statistic(statistic, ordered, np.ones((1, len(ordered)), int))[0])


def _loss_spread(runs: Sequence[run_folder.Run]) -> float:
  """Returns the standard deviation of the test clients' losses over their mean, over seeds."""
  losses = [run.clients("test")["loss"] for run in runs]
  return float(np.mean([np.nanstd(of_run, ddof=1) / np.nanmean(of_run) for of_run in losses]))


def _references(run: run_folder.Run, measure: str) -> dict[str, float]:
  """Returns how far p90 of models that are not federated is from a run's, as a share of it.

  The constant answer and the fit of all examples in one place are made unless they are there.
  """
  run = next(cross_validation.single([run]))
  making.make([run])
  refs = kept.read(run.path.parent.parent, run.seed)
  key = f"test.{measure}.p90"
  own = run.numbers[key]
  return {
    f"{name}_change": refs.models[name].numbers[key] / own - 1
    for name in _REFERENCES
    if refs is not None and name in refs.models and key in refs.models[name].numbers and own
  }


def of_runs(measured: Sequence[MeasuredTable]) -> pd.DataFrame:
  """Computes the rows of the bench, with the columns `COLUMNS`.

  Epsilon is NaN without a budget; what is of the data set is NaN but for FedAvg without a budget.
  Errors are fractions, or in standard deviations of the labels. Numbers have six decimals, as in
  the file, so that a page of them and one of the file are the same.
  """
  rows = []
  for table in measured:
    for epsilon, by_method in table.runs.items():
      fed_avg = by_method[plan.FED_AVG]
      measure = grouped.by_method(fed_avg).leading.name
      # Half of a client's rows may lack a class.
      of_rows = measure if measure in evidence.MEANS_OVER_ROWS else "error"
      has_personal = bool(paired.of_clients(fed_avg, of_rows, personal.CHOSEN))
      own = _own(fed_avg, of_rows) if has_personal and epsilon is None else {}
      for method, runs in by_method.items():
        row: dict[str, float | str] = dict(
          data_set=table.data_set.name,
          epsilon=math.nan if epsilon is None else epsilon,
          method=method,
          kind=table.data_set.label_kind,
        )
        row |= _row(fed_avg, runs, measure) | _personal(fed_avg, runs, of_rows, own)
        if runs is fed_avg and epsilon is None:
          row |= dict(
            num_clients=table.facts.num_clients,
            num_rows=table.facts.num_rows,
            label_shift=table.facts.label_shift,
            loss_spread=_loss_spread(runs),
            **_references(runs[0], measure),
            disagreement=_disagreement(runs[0], of_rows) if has_personal else math.nan,
          )
        rows.append(row)
  frame = pd.DataFrame(rows, columns=list(COLUMNS))
  return frame.astype(dict.fromkeys(_NUMBERS, float)).round(_DECIMALS)


def to_csv(results: pd.DataFrame) -> str:
  """Returns the rows as the text of a CSV file, numbers with six decimals."""
  frame = results.astype(dict.fromkeys(_NUMBERS, float)).round(_DECIMALS)
  counts = [name for name in _NUMBERS if name.startswith("num_")]
  frame = frame.astype(dict.fromkeys(counts, "Int64"))
  return frame.to_csv(index=False, lineterminator="\n")


def read(path: pathlib.Path) -> pd.DataFrame:
  """Reads rows as of `of_runs`, such as those of `to_csv` with some that others have measured."""
  try:
    text = path.read_text(encoding="utf-8")
  except OSError as error:
    raise ValueError(f"Found no {path} ({error.strerror}); expected rows of the bench.") from error
  try:
    frame = pd.read_csv(
      io.StringIO(text), dtype=dict.fromkeys(_TEXTS, str), float_precision="round_trip"
    )
  except ValueError as error:
    raise ValueError(f"Found that {path} is no CSV file ({error}); expected one.") from error
  lacking = [name for name in COLUMNS if name not in frame]
  if lacking:
    raise ValueError(
      f"Found no column {lacking[0]!r} in {path}; expected {', '.join(COLUMNS)}: add it, empty"
      " where its values are not known."
    )
  wrong = [name for name in _NUMBERS if not pd.api.types.is_numeric_dtype(frame[name])]
  if wrong:
    raise ValueError(f"Found texts in the column {wrong[0]!r} of {path}; expected numbers.")
  keys = frame[["data_set", "epsilon", "method"]]
  if keys.duplicated().any():
    twice = frame[keys.duplicated()].iloc[0]
    raise ValueError(
      f"Found two rows of {twice['method']} on {twice['data_set']} in {path}; expected one: remove"
      " the other, or name the method otherwise."
    )
  for (data_set, _), rows in frame.groupby(["data_set", "epsilon"], dropna=False):
    if plan.FED_AVG not in set(rows["method"]):
      raise ValueError(
        f"Found no row of {plan.FED_AVG} on {data_set} in {path}; expected one with the same"
        " budget: everything is measured against it."
      )
  frame = frame.astype(dict.fromkeys(_NUMBERS, float))
  return frame[list(COLUMNS)].fillna({"parameter": ""})
