"""The page of the bench, made of the rows of its CSV file alone."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.tailbench import data_sets
from benchmarks.tailbench import figures
from benchmarks.tailbench import judging
from benchmarks.tailbench import personal
from benchmarks.tailbench import plan
from benchmarks.tailbench import results as results_lib
from benchmarks.tailbench import significance
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units

NAME = "tailbench"
# The numbers that are compared, in sentences.
_WORDS = {"p90": "p90", "worst_tenth": "the mean over the worst tenth", "mean": "the mean"}
_METHODS_NOTE = (
  "Better and worse count the data sets on which p90 is lower or higher than FedAvg’s beyond"
  " chance, after Holm’s correction over the method’s data sets (in brackets without it); the worst"
  " 10 % have a correction of their own. The last three columns are median changes in % of FedAvg’s"
  " number: negative is better, and bold differs from zero over all data sets (Wilcoxon’s signed"
  " ranks, Holm over the methods). Mean rank is by p90, over the data sets that have all methods."
)
_DATA_NOTE = (
  "Changes are from FedAvg, in the unit of the measure, with 95 % bootstrap intervals over clients"
  " and seeds (with one seed or a cross-validation, over clients alone): negative is better, and"
  " bold is beyond chance after Holm’s correction over the data sets."
)
_FACTS_NOTE = (
  "Label shift is the share of the labels’ variance between clients (intraclass correlation, 0 for"
  " chance). Loss spread is the standard deviation of FedAvg’s losses over test clients, over their"
  " mean. Constant and pooled say by how many % p90 is above FedAvg’s with the same answer for all"
  " clients, and with a fit of all training examples in one place (first seed). A small constant"
  " leaves little to learn; a negative pooled shows that FedAvg has not learned all of it."
)
_RULES = (
  "A client is a person, a place or a device with 8 rows or more, of which at most 150 are drawn."
  " Models are linear, with 100 rounds of up to 100 clients and a local learning rate of 1 / L."
  " A method’s parameter has the lowest p90 over validation clients, half of the training clients"
  " of seed 0; θ is not tuned, and with a budget nothing is. Budgets are"
  f" ε = {plan.EPSILON:g} a client and run, on data sets of {plan.LEAST_PRIVATE_CLIENTS} clients or"
  " more. They are no private releases, since runs without privacy have the same clients."
)
_ADD = (
  "tailbench.csv has the rows of this page. ./run_experiments.sh tailbench --data_dir=FOLDER makes"
  " one of all methods that there are, with --rows=tailbench.csv from a table with rows of yours."
  " “Add a method” says how to add a method or a data set, and tailbench/data_sets.py why each is"
  " there."
)


def _percent(value: float) -> str:
  return "–" if math.isnan(value) else tables.number(value, 1, sign=True)


def _methods(judged: judging.Judged, note: str) -> tables.Table:
  """Lays out a row for each method: on how many data sets it is better, and its ranks."""
  rows = []
  order = {method: place for place, method in enumerate(dict.fromkeys(judged.rows["method"]))}
  ranked = {} if judged.ranks is None else dict(judged.ranks.means)
  for method in sorted(order, key=lambda m: (ranked.get(m, math.inf), order[m])):
    own = judged.of(method)
    rank = tables.number(ranked[method], 2) if method in ranked else "–"
    cells = [tables.Cell(rank), tables.Cell(str(len(own)))]
    if method == plan.FED_AVG:
      cells += [tables.Cell("–")] * 6
    else:
      counted = zip(judging.counts(own), judging.counts(own, "p90_alone"))
      cells += [tables.Cell(f"{sure} ({alone})") for sure, alone in counted]
      cells.append(tables.Cell("{} / {}".format(*judging.counts(own, "worst_tenth_holm"))))
      for column in _WORDS:
        change = _percent(judged.relative(f"{column}_change", method).median())
        cells.append(tables.Cell(change, best=bool(judged.together.loc[method, column])))
    rows.append(tables.Row(method, cells))
  return tables.Table(
    f"Methods, {judged.words}",
    [
      *("method", "mean rank", "data sets", "better", "worse", "worst 10 %: better / worse"),
      *("p90, %", "worst 10 %, %", "mean, %"),
    ],
    rows,
    note,
    focus="better",
    lead=f"Methods against FedAvg over data sets, {judged.words}:",
  )


def _unit(row: pd.Series) -> units.Unit:
  error = "rmse" if row["kind"] == "number" else "misclassification"
  return units.of_measure(row["measure"], units.of_error(error))


def _of_data_sets(judged: judging.Judged, method: str) -> tables.Table:
  """Lays out a row for each data set: FedAvg's numbers, and what a method changes."""
  rows = []
  before = judged.of(plan.FED_AVG)
  has_parameter = bool(judged.of(method)["parameter"].any())
  for data_set, row in judged.of(method).iterrows():
    unit, base = _unit(row), before.loc[data_set]
    cells = [
      tables.Cell(f"{row['measure'].replace('_', ' ')}, {unit.symbol}"),
      tables.Cell(f"{int(row['num_seeds'])}"),
      tables.Cell(f"{int(row['num_test_clients'])}"),
      tables.Cell(unit.number(base["mean"])),
      tables.Cell(unit.number(base["p90"])),
    ]
    for column in _WORDS:
      low, high = (unit.number(row[f"{column}_{end}"], sign=True) for end in ("low", "high"))
      is_sure = bool(row[f"{column}_holm"] < significance.LEVEL)
      change = unit.number(row[f"{column}_change"], sign=True)
      cells.append(tables.Cell(change, f"({low} to {high})", is_sure))
    cells += [tables.Cell(row["parameter"] or "–")] * has_parameter
    rows.append(tables.Row(_said(data_set), cells))
  return tables.Table(
    f"{method} on each data set, {judged.words}",
    [
      *("data set", "measure", "seeds", "clients", "FedAvg mean", "FedAvg p90"),
      *("change of p90", "of the worst 10 %", "of the mean"),
      *(("parameter",) if has_parameter else ()),
    ],
    rows,
    _DATA_NOTE,
    focus="change of p90",
  )


def _said(data_set: object) -> str:
  return str(data_set).replace("_", " ")


def _facts(judged: judging.Judged) -> tables.Table:
  """Lays out what each data set is like."""
  rows = []
  for data_set, row in judged.of(plan.FED_AVG).iterrows():
    known = next((d for d in data_sets.DATA_SETS if d.name == data_set), None)
    counts = [row["num_clients"], row["num_rows"]]
    cells = [tables.Cell("–" if math.isnan(x) else f"{int(x)}") for x in counts]
    shares = [row["label_shift"], row["loss_spread"]]
    cells += [tables.Cell("–" if math.isnan(x) else tables.number(x, 2)) for x in shares]
    references = [row["constant_change"], row["pooled_change"]]
    cells += [tables.Cell(_percent(100 * x)) for x in references]
    texts = (known.clients, known.source, known.licence) if known else ("–",) * 3
    rows.append(tables.Row(_said(data_set), [*map(tables.Cell, texts), *cells]))
  headings = [
    *("data set", "clients", "source", "licence"),
    *("number of clients", "rows", "label shift", "loss spread", "constant, %", "pooled, %"),
  ]
  return tables.Table("Data sets", headings, rows, _FACTS_NOTE)


def _reasons(judged: judging.Judged) -> tables.Table:
  names = set(judged.rows["data_set"])
  rows = [
    tables.Row(_said(data_set.name), [tables.Cell(data_set.reason)])
    for data_set in data_sets.DATA_SETS
    if data_set.name in names
  ]
  return tables.Table("Why these", [], rows, kind="words")


def _changes(judged: judging.Judged, method: str) -> pd.DataFrame:
  """Returns a method's changes in % and what its data sets are like, as `figures` takes them."""
  own, base = judged.of(method), judged.of(plan.FED_AVG)
  base = base.reindex(own.index)
  changes = pd.DataFrame(
    {
      "change": judged.relative("p90_change", method),
      "low": judged.relative("p90_low", method),
      "high": judged.relative("p90_high", method),
      "mean_change": judged.relative("mean_change", method),
      "is_sure": own["p90_holm"] < significance.LEVEL,
      "loss_spread": base["loss_spread"],
      "label_shift": base["label_shift"],
      "rows_a_client": base["num_rows"] / base["num_clients"],
    }
  )
  return changes.sort_values("change", kind="stable")


def _predict(changes: pd.DataFrame) -> tuple[dict[str, float], str]:
  """Returns the rank correlation of each predictor with the change, and a sentence on them."""
  tests = {}
  for predictor in figures.PREDICTORS:
    both = changes[["change", predictor]].dropna()
    tests[predictor] = stats.spearmanr(both["change"], both[predictor])
  corrected = bootstrap.holm([test.pvalue for test in tests.values()])
  correlations = {name: float(test.statistic) for name, test in tests.items()}
  listed = ", ".join(
    f"{name.replace('_', ' ')} {tables.number(value, 2, sign=True)} (p = {p:.2g})"
    for (name, value), p in zip(correlations.items(), corrected)
  )
  is_sure = bool(np.nanmin(corrected) < significance.LEVEL)
  verdict = "One of them" if is_sure else "None of them surely"
  return correlations, (
    f"{verdict} tells where it helps: rank correlation with the change of p90 over {len(changes)}"
    f" data sets, corrected for three: {listed}."
  )


def _summarize(judged: judging.Judged, method: str) -> str:
  """Says on how many data sets a method lowers the tail, and at what price."""
  own = judged.of(method)
  if own.empty:
    return f"There is no result of {method}, {judged.words}."
  better, worse = judging.counts(own)
  tail_better, tail_worse = judging.counts(own, "worst_tenth_holm")
  p90, mean = (judged.relative(f"{column}_change", method) for column in ("p90", "mean"))
  text = (
    f"{judged.words[0].upper()}{judged.words[1:]}, {method} lowers p90 beyond chance on {better}"
    f" of {len(own)} data sets and raises it on {worse}. It lowers the mean over the worst tenth on"
    f" {tail_better} and raises it on {tail_worse}. In the median, p90 changes by"
    f" {_percent(p90.median())} % and the mean by {_percent(mean.median())} %"
  )
  sure = own.index[(own["p90_holm"] < significance.LEVEL) & (own["p90_change"] < 0)]
  if len(sure):
    text += (
      f"; where it lowers p90, p90 by {_percent(p90[sure].median())} % and the mean by"
      f" {_percent(mean[sure].median())} %"
    )
  return f"{text}."


def _compare(judged: judging.Judged, method: str) -> str:
  """Says which methods stand out, and what other corrections would say of one."""
  own = judged.of(method)
  alone, of_all = (judging.counts(own, f"p90_{kind}") for kind in ("alone", "all"))
  num_tests = int(judged.rows["p90_alone"].notna().sum())
  return (
    f"{_together(judged)} {_best(judged)} Without Holm’s correction, {method} would lower p90 on"
    f" {alone[0]} data sets and raise it on {alone[1]}; with one over all {num_tests} comparisons,"
    f" on {of_all[0]} and {of_all[1]}."
  )


def _together(judged: judging.Judged) -> str:
  """Says which methods change what over all data sets together."""
  changes = [
    f"{words} is {'lower' if sign < 0 else 'higher'} with {', '.join(names)}"
    for column, words in _WORDS.items()
    for sign in (-1, 1)
    if (names := list(judged.together.index[judged.together[column] == sign]))
  ]
  text = "; ".join(changes) or "no method is told apart from FedAvg"
  return f"Over all data sets together, {text}."


def _best(judged: judging.Judged) -> str:
  """Says which method is better on the most data sets, and which has the best mean rank."""
  counts = {m: judging.counts(judged.of(m)) for m in judged.rivals}
  most = max(better for better, _ in counts.values())
  leaders = [f"{m} (higher on {counts[m][1]})" for m in judged.rivals if counts[m][0] == most]
  text = "No method is better than FedAvg beyond chance on any data set."
  if most:
    on = tables.plural(most, "data set")
    text = f"p90 is lower beyond chance on at most {on}, with {', '.join(leaders)}."
  if judged.ranks is None:
    return text
  ranks = judged.ranks
  least = [m for m, rank in ranks.means.items() if rank == ranks.means.iloc[0]]
  apart = [m for m, rank in ranks.means.items() if rank - ranks.means.iloc[0] > ranks.distance]
  beaten = f"tells it apart from {', '.join(apart) or 'no other'}"
  have = f"{' and '.join(least)} {'have' if least[1:] else 'has'}"
  return (
    f"{text} {have} the best mean rank ({tables.number(ranks.means.iloc[0], 2)} of"
    f" {len(ranks.means)}), which {beaten} (Friedman p = {ranks.p_value:.2g})."
  )


def _seeds(rows: pd.DataFrame) -> str:
  counts = sorted({int(number) for number in rows["num_seeds"]})
  span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
  return f"{span} seed{'' if counts == [1] else 's'} a method"


def _blocks(judged: judging.Judged, method: str, is_first: bool) -> list[page.Block]:
  """Returns the blocks of one budget."""
  changes = _changes(judged, method)
  blocks: list[page.Block] = []
  if len(changes):
    blocks.append(figures.draw_changes(changes, method))
  if judged.ranks is not None:
    blocks.append(figures.draw_ranks(judged.ranks))
  if not is_first:  # Names of figures are those of files.
    blocks = [_renamed(block, judged) for block in blocks]
  elif len(changes) > 3:
    correlations, sentence = _predict(changes)
    blocks += [figures.draw_predictors(changes, correlations, method), page.Text(sentence)]
  blocks.insert(0, page.Text(_compare(judged, method)))
  if not is_first:
    blocks.insert(0, page.Text(_summarize(judged, method)))
  blocks.append(_methods(judged, _METHODS_NOTE if is_first else ""))
  if len(changes) and is_first:
    blocks.append(_of_data_sets(judged, method))
  every: Sequence[page.Block] = [
    _of_data_sets(judged, other) for other in judged.rivals if other != method or not is_first
  ]
  if every:
    title = "Every other method" if is_first else "Every method"
    blocks.append(page.Details(f"{title} on each data set, {judged.words}", every))
  return blocks


def _renamed(block: page.Block, judged: judging.Judged) -> page.Block:
  if not isinstance(block, figures.style.Figure):
    return block
  name = f"{block.name}-epsilon-{judged.epsilon:g}"
  return dataclasses.replace(block, name=name, title=f"{block.title}, {judged.words}")


def make(results: pd.DataFrame) -> page.Page:
  """Makes the page of the bench of rows of `results.of_runs`, some of them without a budget."""
  budgets = sorted(results["epsilon"].dropna().unique())
  public = results[results["epsilon"].isna()]
  if public.empty:
    raise ValueError(
      "Found no row without a budget; expected some: run the bench without --epsilon."
    )
  judged = [judging.judge(public, math.nan)]
  judged += [judging.judge(results[results["epsilon"] == epsilon], epsilon) for epsilon in budgets]
  method = plan.JUDGED
  blocks: list[page.Block] = []
  for place, of_budget in enumerate(judged):
    blocks += _blocks(of_budget, method, is_first=place == 0)
  blocks += personal.blocks(judged[0], method)
  reasons = page.Details("Why these data sets", [_reasons(judged[0])])
  num_methods = public["method"].nunique()
  return page.Page(
    NAME,
    "TailBench",
    "which method serves the worst-off, on clients that are real?",
    f"{tables.plural(public['data_set'].nunique(), 'data set')},"
    f" {tables.plural(num_methods, 'method')}, {_seeds(public)}",
    _summarize(judged[0], method),
    [*blocks, _facts(judged[0]), reasons, page.Text(_RULES), page.Text(_ADD)],
    results_lib.to_csv(results),
  )
