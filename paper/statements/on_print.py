"""What the paper's text says of its experiments, by its own tables."""

from __future__ import annotations

from collections.abc import Iterator
import math

import numpy as np
import pandas as pd
from scipy import optimize

from paper.statements import measurements
from paper.statements import printed
from paper.statements import rows
from tff_superquantile.experiments.pages import tables

_DELTA_FL = "Superquantile"
_TASKS = ("EMNIST linear", "EMNIST ConvNet", "Sent140 linear", "Sent140 RNN")
_INCONSISTENT = rows.Verdict.INCONSISTENT
# A column that follows p10 so closely is no standard deviation.
_FOLLOWS = 0.99


def statements() -> Iterator[rows.Row]:
  """Yields the statements that the paper's own tables decide."""
  p90 = {task: printed.column("results_90", task) for task in _TASKS}
  convnet, details = p90["EMNIST ConvNet"], printed.column("ext_comp_emnist_convnet", "p90")
  ours = convnet["Superquantile θ = 0.5"]
  in_table = min(convnet[method] for method in ("FedAvg", "FedAvg-Sub", "FedProx"))
  of_all = min(value for method, value in details.items() if method.startswith("Fed"))
  gain, share = in_table - ours, 100 * (1 - ours / in_table)
  yield rows.Row(
    "vanilla",
    f"{gain:.2f} points ({share:.0f} %) in Table 2.",
    rows.judge(round(gain, 1) == 3.3 and round(share) == 12, _INCONSISTENT),
    f"Table 7 also has FedAvg with a tenth of the clients, of which it is {of_all - ours:.2f}"
    f" points ({100 * (1 - ours / of_all):.0f} %) below.",
  )
  gain = convnet["Tilted-ERM"] - ours
  yield rows.Row(
    "next_best", f"{gain:.2f} in Table 2.", rows.judge(round(gain, 1) == 1.8, _INCONSISTENT)
  )
  first, second = p90["Sent140 linear"]["q-FFL"], p90["Sent140 linear"]["Superquantile θ = 0.8"]
  spread = 100 * printed.values("results_90", "Sent140 linear")["q-FFL"].sd
  yield rows.Row(
    "q_ffl",
    f"{second - first:.2f} points in Table 2; the sd over runs is {spread:.2f}.",
    rows.judge(
      math.isclose(second - first, 0.05, abs_tol=1e-9) and second - first < spread, _INCONSISTENT
    ),
  )
  others = {m: v for m, v in convnet.items() if not m.startswith(_DELTA_FL)}
  best = min(others, key=others.__getitem__)
  larger = convnet["Superquantile θ = 0.8"]
  yield rows.Row(
    "all_methods",
    f"In Table 2 θ = 0.5 has {ours:.2f}, θ = 0.8 has {larger:.2f}, {best} {others[best]:.2f}.",
    rows.judge(max(larger, ours) < others[best], rows.Verdict.FALSE),
    "It is true of θ = 0.5." * bool(ours < others[best] <= larger),
  )
  smallest = convnet["Superquantile θ = 0.1"]
  yield rows.Row(
    "tied",
    f"{smallest:.2f} and {convnet['Tilted-ERM']:.2f} in Table 2.",
    rows.judge(abs(smallest - convnet["Tilted-ERM"]) < 0.1, _INCONSISTENT),
    rule="a tie is less than 0.1 points",
  )
  yield from _on_lowest_and_highest(p90)


def _on_lowest_and_highest(p90: dict[str, pd.Series]) -> Iterator[rows.Row]:
  """Yields the statements on whose error is the lowest or highest, from Table 2 and Table 3."""
  mean = {task: printed.column("results_mean", task) for task in _TASKS}
  winners = {task: mean[task].idxmin() for task in _TASKS}
  of_delta_fl = [task for task, method in winners.items() if method.startswith(_DELTA_FL)]
  yield rows.Row(
    "best_mean",
    f"In Table 3 it has the lowest mean on {' and '.join(of_delta_fl)}.",
    rows.judge(of_delta_fl == ["EMNIST ConvNet", "Sent140 linear"], _INCONSISTENT),
  )
  columns = [column for task in _TASKS for column in (p90[task], mean[task])]
  baselines = [column[[m for m in column.index if not m.startswith(_DELTA_FL)]]
               for column in columns]  # fmt: skip
  highest = sum(column.idxmax() == "AFL" for column in baselines)
  above = {column.idxmax() for column in columns} - {"AFL"}
  worse = sum(column.idxmax() != "AFL" for column in columns)
  yield rows.Row(
    "afl",
    f"AFL is the highest baseline in {highest} of {len(columns)} columns of Tables 2 and 3. In"
    f" {worse} only {', '.join(sorted(above)) or 'nothing'} is above it.",
    rows.judge(not worse, rows.Verdict.DIFFERS),
    "The same paragraph counts Δ-FL with θ to 0 as an approximation of AFL." * bool(worse),
  )


def on_chains() -> Iterator[rows.Row]:
  """Yields what the appendix's tables say of all theta together."""
  tasks = [name for name in printed.TABLES if name.startswith("ext_comp")]
  turning, narrower, worse = [], 0, []
  for name in tasks:
    title = printed.TABLES[name].title
    for metric in ("mean", "p90"):
      values = printed.values(name, metric)
      chain = [value for method, value in values.items() if method.startswith(_DELTA_FL)]
      if not measurements.is_monotone([values["FedAvg"], *chain, values["AFL"]]):
        turning.append(f"{title} ({metric})")
    low, high = (printed.column(name, heading) for heading in ("p10", "p90"))
    ranges = high - low
    for method in (method for method in ranges.index if method.startswith(_DELTA_FL)):
      theta = method.removeprefix(f"{_DELTA_FL} ")
      narrower += ranges[method] < ranges["FedAvg"]
      if high[method] >= high[f"FedAvg-Sub {theta}"]:
        worse.append(f"{title} ({theta})")
  num_cases = 3 * len(tasks)
  yield rows.Row(
    "interpolates",
    "The statement may be of the objectives, of which it is true (Section 4.1), or of errors.",
    rows.Verdict.UNCHECKED,
    "Too open to be judged; of errors it is a question of our own.",
    by_reading=True,
  )
  yield rows.Row(
    "",
    f"In {2 * len(tasks) - len(turning)} of {2 * len(tasks)} columns of Tables 6 to 9 the numbers"
    f" do. They turn by more than one sd in {'; '.join(turning) or 'none'}.",
    rows.Verdict.OURS,
    "Monotony would contradict the headline: the best tail is in the middle, at θ = 0.5.",
    about="Do errors go from FedAvg over falling θ to AFL without a turn? By the paper’s tables",
  )
  yield rows.Row(
    "vary",
    f"p90 − p10 is below FedAvg’s in {narrower} of {num_cases} cases of Tables 6 to 9.",
    rows.judge(2 * narrower > num_cases, rows.Verdict.DIFFERS),
    "The printed standard deviations are suspect (see there).",
    rule="most is more than half; the range from p10 to p90 stands for the variance",
  )
  yield rows.Row(
    "",
    f"In {num_cases - len(worse)} of {num_cases} cases of Tables 6 to 9; not in"
    f" {'; '.join(worse) or 'none'}.",
    rows.Verdict.OURS,
    about="Is the tail of FedAvg with as few clients (FedAvg-Sub) higher? By the paper’s tables",
  )


def on_costs() -> Iterator[rows.Row]:
  """Yields what the tables say of the price in the mean."""
  texts, holds = [], True
  for task in ("EMNIST linear", "Sent140 RNN"):
    tails, means = (printed.column(name, task) for name in ("results_90", "results_mean"))
    ours = min((m for m in tails.index if m.startswith(_DELTA_FL)), key=tails.__getitem__)
    for rival in ("FedAvg", "FedProx"):
      cost, gain = means[ours] - means[rival], tails[rival] - tails[ours]
      holds &= 2 * cost <= gain
      theta = ours.removeprefix(f"{_DELTA_FL} ")
      texts.append(f"{task}, {theta} against {rival}: {cost:.2f} for {gain:.2f}")
  yield rows.Row(
    "small_cost",
    f"Points of the mean for points of the tail: {'; '.join(texts)}.",
    rows.judge(holds, rows.Verdict.DIFFERS),
    rule="small is at most half of the gain",
  )


def on_personalization() -> Iterator[rows.Row]:
  """Yields what Table 4 says of personalized models."""
  gaps, spreads, near, total = [], [], 0, 0
  for metric in ("mean", "p90"):
    after = printed.values("pers", f"{metric}, after")
    own = after.pop("FedAvg")
    total += len(after)
    near += sum(
      abs(value.mean - own.mean) <= max(value.spread, own.spread) for value in after.values()
    )
    gaps.append(round(100 * (after[f"{_DELTA_FL} θ = 0.8"].mean - own.mean), 2))
    spreads.append(100 * own.sd)
  yield rows.Row(
    "personal_gap",
    f"θ = 0.8 less FedAvg is {tables.number(gaps[0], 2, sign=True)} in the mean and"
    f" {tables.number(gaps[1], 2, sign=True)} at p90 in Table 4, where FedAvg’s sd is"
    f" {spreads[0]:.2f} and {spreads[1]:.2f}.",
    rows.judge(gaps == [0.01, -0.02] and min(spreads) > 0.02, _INCONSISTENT),
  )
  yield rows.Row(
    "personal",
    f"{near} of {total} pairs of Table 4 are within one sd.",
    rows.judge(2 * near >= total, rows.Verdict.DIFFERS),
    rule="often is at least half of the pairs of FedAvg and a θ, by the larger sd of the two",
  )


def subset_rows() -> Iterator[rows.Row]:
  """Yields whether Table 2 has FedAvg-Sub at the theta that is best for Delta-FL."""
  texts, holds = [], True
  for name, place in printed.TABLES.items():
    if not name.startswith("ext_comp"):
      continue
    details = printed.column(name, "p90")
    best = str(details.filter(like=_DELTA_FL).idxmin()).removeprefix(f"{_DELTA_FL} ")
    short = printed.value("results_90", "FedAvg-Sub", place.task)
    full = details[f"FedAvg-Sub {best}"]
    holds &= abs(short - full) <= printed.ROUNDING
    texts.append(f"{place.task}: {best}, {full:.2f} and {short:.2f}")
  yield rows.Row(
    "subset",
    "The θ with Δ-FL’s lowest p90, FedAvg-Sub’s p90 there in the appendix, and in Table 2:"
    f" {'; '.join(texts)}.",
    rows.judge(holds, _INCONSISTENT),
    "That is not the FedAvg-Sub with the lowest tail.",
    rule="the same number but for two roundings",
  )


def _least_sd(mean: float, low: float, high: float) -> float:
  """Returns a lower bound on a standard deviation.

  A tenth of the clients is at p10 or below and a tenth at p90 or above, so that

      sd^2 >= ((mean - p10)^2 + (p90 - mean)^2) / 10.

  The root of the right-hand side is convex in the three, so means over seeds satisfy it, too.
  """
  return math.sqrt(((mean - low) ** 2 + (high - mean) ** 2) / 10)


def _largest_sd(mean: float, low: float, middle: float, high: float) -> float:
  """Returns the largest standard deviation of errors in [0, 100] with this mean, p10, p50 and p90.

  Masses of 0.1, 0.4, 0.4 and 0.1 lie between 0, the percentiles and 100. x^2 is convex, so that the
  ends of these intervals hold all mass at the maximum: a linear program over eight masses.
  """
  edges = np.array([0.0, low, middle, high, 100.0])
  places = np.stack([edges[:-1], edges[1:]], axis=1).reshape(-1)
  # The printed mean is rounded to 0.01.
  solution = optimize.linprog(
    -(places**2),
    A_eq=np.kron(np.eye(4), np.ones((1, 2))),
    b_eq=[0.1, 0.4, 0.4, 0.1],
    A_ub=np.stack([places, -places]),
    b_ub=[mean + 0.005, -(mean - 0.005)],
    bounds=(0.0, None),
  )
  return math.sqrt(-solution.fun - (mean - 0.005) ** 2) if solution.success else math.nan


def spread_rows() -> Iterator[rows.Row]:
  """Yields a row for each table whose column of standard deviations is suspect, or is not."""
  for name, place in printed.TABLES.items():
    if not name.startswith("ext_comp"):
      continue
    columns = {c: printed.column(name, c) for c in ("mean", "sd", "p10", "p50", "p90")}
    mean, sd, low, middle, high = columns.values()
    too_small, too_large = [], []
    for method in sd.index:
      least = _least_sd(mean[method], low[method], high[method])
      largest = _largest_sd(mean[method], low[method], middle[method], high[method])
      if sd[method] < least - printed.ROUNDING:
        too_small.append(f"{method}: {sd[method]:.2f} (at least {least:.2f})")
      if sd[method] > largest + printed.ROUNDING:
        too_large.append(f"{method}: {sd[method]:.2f} (at most {largest:.1f})")
    others = [method for method in sd.index if not method.startswith("Tilted-ERM")]
    correlation = float(np.corrcoef(sd[others], low[others])[0, 1])
    ruled_out = [*too_small, *too_large]
    follows = correlation > _FOLLOWS
    verdict = rows.judge(not follows, rows.Verdict.UNCHECKED)
    yield rows.Row(
      "sd_column",
      f"Without Tilted-ERM’s row it follows p10 with a correlation of {correlation:.4f}."
      f" Mean and percentiles of a row rule out {len(ruled_out)} of {len(sd)} entries"
      + (f", {'; '.join(ruled_out)}." if ruled_out else "."),
      rows.Verdict.FALSE if ruled_out else verdict,
      "Perhaps it is the mean of the best tenth of the clients, which the appendix says was"
      " recorded." * follows + " Upper bounds are those of one run." * bool(too_large),
      rule=f"suspect from a correlation of {_FOLLOWS} on",
      about=f"{place.number}, {place.title}",
    )
