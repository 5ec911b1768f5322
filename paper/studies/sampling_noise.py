"""Shows the noise of one budget by how cohorts are sampled. It trains nothing.

    python -m paper.studies sampling_noise [--quick]

Finds the noise multiplier z of the updates, alone and independent over rounds, with which a run has
an epsilon: with Poisson and allocated cohorts, who must stay secret, and with cyclic and spaced
ones, whom all may know. Spaced ones have half the distance of cyclic ones. Writes

    DIR/sampling_noise/report.html            figure, tables and how to read them
    DIR/sampling_noise/report.md              the tables
    DIR/sampling_noise/sampling_noise.csv     every point
    DIR/sampling_noise/sampling_noise-*.svg   the figure, for a light and for a dark background

Points that are in the CSV already, with the same settings, are not computed again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import dataclasses
import functools
import pathlib
from typing import Any

from matplotlib import figure as mpl_figure
import pandas as pd

from privacy import calibration
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables

_NAME = "sampling_noise"
_POISSON, _ALLOCATED = "poisson", "allocated"
# The samplings, with their titles, and whether all may know the cohorts.
_SAMPLINGS = {
  _POISSON: ("Poisson", False),
  _ALLOCATED: ("allocated", False),
  "cyclic": ("cyclic", True),
  "spaced": ("spaced, half the distance", True),
}
_RELATIONS = {
  releases.ZERO_OUT: "a client’s data removed",
  releases.REPLACE_ONE: "a client’s data replaced",
}
_KEY = ["sampling", "relation", "population", "clients_per_round", "delta", "epsilon", "num_rounds"]
_Z = "noise_multiplier"
_CAPTION = (
  "Left: the noise multiplier of the updates against ε, both axes logarithmic; dashed samplings"
  " hold also against whoever knows the cohorts. Middle and right: allocated over Poisson cohorts,"
  " minus one, against ε and against the number of rounds. Lower is better."
)
_SUMMARY = (
  "The noise that one budget takes by how cohorts are sampled, independent over rounds. With known"
  " cohorts noise may be correlated over rounds (--bands): a round has more of it, and later noise"
  " cancels earlier noise, which these numbers do not show."
)


@dataclasses.dataclass(frozen=True)
class _Plan:
  """The points, from checked flags."""

  population: int
  clients_per_round: int
  delta: float
  epsilons: list[float]
  num_rounds: list[int]
  usual_epsilon: float
  usual_rounds: int

  def points(self) -> Iterator[tuple]:
    """Yields the values of `_KEY` of all points."""
    common = (self.population, self.clients_per_round, self.delta)
    for sampling, (_, is_known) in _SAMPLINGS.items():
      for relation in _RELATIONS:
        if is_known and relation == releases.REPLACE_ONE:
          continue  # Twice that of removing.
        for epsilon in self.epsilons:
          yield (sampling, relation, *common, epsilon, self.usual_rounds)
        if not is_known:
          for num_rounds in self.num_rounds:
            if num_rounds != self.usual_rounds:
              yield (sampling, relation, *common, self.usual_epsilon, num_rounds)


def _plan(args: argparse.Namespace) -> _Plan:
  if not all(0.0 < epsilon <= 100.0 for epsilon in args.epsilons):
    texts = ",".join(map(str, args.epsilons))
    raise ValueError(f"Found --epsilons={texts}; expected them in (0, 100].")
  if args.population < 2 * args.clients_per_round:
    raise ValueError(
      f"Found --clients_per_round={args.clients_per_round} with --population={args.population};"
      " expected at most half of it, or allocated cohorts are everybody."
    )
  epsilons, num_rounds = sorted(set(args.epsilons)), sorted(set(args.num_rounds))
  if args.quick:
    epsilons, num_rounds = epsilons[-2:], num_rounds[:2]
  usual = [epsilons[len(epsilons) // 2], num_rounds[-2:][0]]
  return _Plan(args.population, args.clients_per_round, args.delta, epsilons, num_rounds, *usual)


def noise(
  sampling: str,
  relation: str,
  population: int,
  clients_per_round: int,
  delta: float,
  epsilon: float,
  num_rounds: int,
) -> float:
  """Finds the noise multiplier of a point: the least with which a run has the epsilon.

  Args:
    sampling: A key of the samplings above.
    relation: The neighbouring data sets, one of `releases.RELATIONS`.
    population: n.
    clients_per_round: m.
    delta: The budget's delta.
    epsilon: The budget.
    num_rounds: T.

  Returns:
    z of the sum of updates.
  """
  own = {}
  if sampling == "spaced":
    own["separation"] = max(1, population // clients_per_round // 2)
  release = releases.Release(
    cohort=cohorts.of(sampling, population, float(clients_per_round), **own),
    parts=(parts.UpdateSum(),),
    relation=relation,
  )
  found = calibration.calibrate(release, epsilon, delta, num_rounds)
  return found.effective_noise_multiplier


def _measure(plan: _Plan, path: pathlib.Path) -> pd.Series:
  """Computes the points that the CSV at `path` lacks, and writes them; returns z by `_KEY`."""
  try:
    known = pd.read_csv(path, float_precision="round_trip").set_index(_KEY)[_Z].to_dict()
  except FileNotFoundError:
    known = {}
  except (KeyError, ValueError) as error:
    raise ValueError(f"Found {path}, which this study did not write; remove it.") from error
  points = list(plan.points())
  for point in points:
    if point not in known:
      known[point] = noise(*point)
      table = pd.DataFrame([(*key, z) for key, z in known.items()], columns=[*_KEY, _Z])
      atomic_files.write(path, table.to_csv(index=False))
  index = pd.MultiIndex.from_tuples(points, names=_KEY)
  return pd.Series([known[point] for point in points], index, name=_Z)


def _curve(z: pd.Series, along: str, **at: object) -> pd.Series:
  """Returns z along a name of `_KEY`, where others have these values."""
  levels = z.xs(tuple(at.values()), level=tuple(at))
  return levels.droplevel([name for name in levels.index.names if name != along]).sort_index()


def _saved(z: pd.Series, along: str, relation: str, **at: object) -> pd.Series:
  """Returns by how many percent allocated cohorts have more noise than Poisson ones."""
  allocated, poisson = (
    _curve(z, along, sampling=sampling, relation=relation, **at)
    for sampling in (_ALLOCATED, _POISSON)
  )
  return 100.0 * (allocated / poisson - 1.0)


def _draw(plan: _Plan, z: pd.Series) -> style.Figure:
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.4))
    left, *others = figure.subplots(1, 3)
    for (sampling, (title, is_known)), color in zip(
      _SAMPLINGS.items(), (style.GREY, *style.COLORS)
    ):
      at = dict(sampling=sampling, relation=releases.ZERO_OUT, num_rounds=plan.usual_rounds)
      curve = _curve(z, "epsilon", **at)
      dash = "--" if is_known else "-"
      left.plot(curve.index, curve, color=color, linestyle=dash, marker="o", label=title)
    left.set(xscale="log", yscale="log", xlabel="ε", ylabel="Noise multiplier")
    left.set_title(f"{plan.usual_rounds} rounds")
    style.mark(left.xaxis, plan.epsilons)
    style.mark(left.yaxis, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0])
    axes_of = zip(
      others, ("epsilon", "num_rounds"), ("num_rounds", "epsilon"), ("ε", "Number of rounds")
    )
    for axes, along, fixed, label in axes_of:
      value = plan.usual_rounds if fixed == "num_rounds" else plan.usual_epsilon
      axes.set(xscale="log", xlabel=label)
      for (relation, title), color in zip(_RELATIONS.items(), style.COLORS[3:]):
        saved = _saved(z, along, relation, **{fixed: value})
        axes.plot(saved.index, saved, color=color, marker="s", label=title)
        style.mark(axes.xaxis, list(saved.index))
      axes.axhline(0.0, color=style.GREY, linewidth=0.8)
      axes.set_title(f"{value} rounds" if fixed == "num_rounds" else f"ε = {value:g}")
    others[0].set_ylabel("Allocated over Poisson, %")
    lines: list[Any] = []
    labels: list[str] = []
    for axes in (left, others[0]):
      handles, titles = axes.get_legend_handles_labels()
      lines, labels = lines + handles, labels + titles
    figure.legend(lines, labels, loc="outside upper left", ncols=3)
    svg = style.to_svg(figure)
  return style.Figure(_NAME, "Noise of one budget by sampling", _CAPTION, svg)


def _lay_out(plan: _Plan, z: pd.Series) -> Iterator[tables.Table]:
  """Yields the noise by epsilon, and that of allocated and Poisson cohorts by rounds."""
  settings = f"n = {plan.population}, m = {plan.clients_per_round}, delta = {plan.delta:g}"
  for along, at, words in (
    ("epsilon", {"num_rounds": plan.usual_rounds}, f"{plan.usual_rounds} rounds"),
    ("num_rounds", {"epsilon": plan.usual_epsilon}, f"epsilon {plan.usual_epsilon:g}"),
  ):
    rows, places = [], getattr(plan, {"epsilon": "epsilons"}.get(along, along))
    for sampling, (title, is_known) in _SAMPLINGS.items():
      for relation, data in _RELATIONS.items():
        if is_known and (along != "epsilon" or relation == releases.REPLACE_ONE):
          continue
        curve = _curve(z, along, sampling=sampling, relation=relation, **at)
        cells = [tables.Cell(f"{curve[place]:.3f}") for place in places]
        rows.append(tables.Row(f"{title}: {data}", cells))
    headings = [along.replace("num_", ""), *(f"{place:g}" for place in places)]
    lead = f"Noise multipliers, {words}, {settings}:"
    yield tables.Table(f"Noise multipliers, {words}", headings, rows, lead=lead)


def report(plan: _Plan, folder: pathlib.Path) -> page.Page:
  """Computes the points of the plan that the folder's CSV lacks, and reports all."""
  z = _measure(plan, folder / f"{_NAME}.csv")
  return page.Page(
    "report",
    "Noise by sampling",
    "how much noise does one budget take?",
    f"{plan.population} clients, {plan.clients_per_round} a round, δ = {plan.delta:g}",
    _SUMMARY,
    [_draw(plan, z), *_lay_out(plan, z)],
  )


def define(parser: command_line.Parser) -> None:
  add = functools.partial(command_line.add_flag, parser)
  add("output_dir", str, "results", f"Directory to write {_NAME}/ to.")
  add("quick", bool, False, "The two largest epsilons and two fewest rounds: to see that it works.")
  add("population", int, 2500, "n, the number of clients.", least=2)
  add("clients_per_round", int, 100, "m, the clients expected in a round.", least=1)
  add("delta", float, 1e-5, "delta of the budgets.")
  add("epsilons", float, [0.5, 1.0, 3.0, 5.0, 10.0], "Budgets of a run.", are_several=True)
  add(
    "num_rounds", int, [25, 100, 300, 1000, 3000], "Numbers of rounds.", are_several=True, least=1
  )


def main(args: argparse.Namespace) -> None:
  plan = _plan(args)
  folder = pathlib.Path(args.output_dir, _NAME)
  atomic_files.make_folder("output_dir", folder)
  content = report(plan, folder)
  page.write_figures(content, folder)
  paths = [*page.write(content, folder).values(), folder / f"{_NAME}.csv"]
  print(page.terminal_text(content, paths))
