"""The theory, in numbers: the convex theorem on a problem whose optimum is known.

    python -m tff_superquantile.experiments.convergence [--quick]

Linear regression on 100 clients, optima certified by a duality gap. Checks the formulas against
linear programs and finite differences, runs the algorithm with exact reweighting, smoothing and the
weighted averaged iterate over numbers of rounds, and compares the error with the theorem's terms,
1 / (lambda T) and B / sqrt(theta m). Needs no TensorFlow; two minutes on one core. Writes

    DIR/convergence/report.html  figures, tables and how to read them
    DIR/convergence/report.md    the tables
    DIR/convergence/report.csv   the error of every setting (`convergence_study.Point`)
    DIR/convergence/bias.csv     what cohorts cost, exactly (`convergence_study.Bias`)

`--figures_dir=DIR` writes the figures as files too.
"""

from collections.abc import Sequence
import csv
import dataclasses
import io
import pathlib
import sys

from absl import flags
import markupsafe
import tqdm

from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import convergence_checks
from tff_superquantile.experiments import convergence_plot
from tff_superquantile.experiments import convergence_problem
from tff_superquantile.experiments import convergence_study
from tff_superquantile.experiments import pages
from tff_superquantile.experiments.run import run_folder

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "results", "Where OUTPUT_DIR/convergence/ is written."
)
_FIGURES_DIR = flags.DEFINE_string(
  "figures_dir", "", "Where to write the figures as SVG files; empty for not."
)
_QUICK = flags.DEFINE_bool("quick", False, "Few rounds and seeds: to see that all works.")
_NUM_SEEDS = flags.DEFINE_integer("num_seeds", 5, "Runs a setting with cohorts.", lower_bound=2)

_LOG2_ROUNDS = range(4, 17)
_QUICK_LOG2_ROUNDS = range(4, 12)
_QUICK_SEEDS = 2
_BIAS_SIZES = (2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90)
_OPTIMA = (1.0, 0.99, 0.8, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)


@dataclasses.dataclass(frozen=True)
class _Results:
  """All that was computed."""

  problem: convergence_problem.Problem
  constants: convergence_problem.Constants
  checks: list[convergence_checks.Check]
  optima: list[convergence_study.Optimum]
  points: list[convergence_study.Point]
  biases: list[convergence_study.Bias]


def _compute(num_seeds: int, all_rounds: Sequence[int]) -> _Results:
  problem = convergence_problem.build_problem()
  points: list[convergence_study.Point] = []
  terminal = sys.stderr.isatty()
  with tqdm.tqdm(
    total=3 + len(convergence_study.COHORT_SIZES),
    desc="convergence",
    dynamic_ncols=terminal,
    mininterval=0.2 if terminal else 20,
  ) as bar:
    checks = convergence_checks.run(problem)
    bar.update()
    optima = [convergence_study.optimum(problem, theta) for theta in _OPTIMA]
    bar.update()
    sizes = sorted({*_BIAS_SIZES, *convergence_study.COHORT_SIZES})
    biases = [
      convergence_study.sampling_bias(problem, theta, size)
      for theta in convergence_study.THETAS
      for size in sizes
    ]
    bar.update()
    for size in convergence_study.COHORT_SIZES:
      points += convergence_study.measure(
        problem,
        size,
        thetas=convergence_study.THETAS,
        all_rounds=all_rounds,
        num_seeds=num_seeds,
      )
      bar.update()
  constants = convergence_problem.build_constants(problem)
  return _Results(problem, constants, checks, optima, points, biases)


def _error_table(results: _Results) -> list[list[str]]:
  """Tail fraction and cohort size by line: errors, rate, floor and bound."""
  all_rounds = sorted({point.num_rounds for point in results.points})
  shown = all_rounds[-1:-9:-3][::-1]
  lines = [["theta, m", *[f"T = {t}" for t in shown], "rate", "floor", "bias", "B / sqrt(theta m)"]]
  floors = {(bias.theta, bias.cohort_size): bias for bias in results.biases}
  for theta in convergence_study.THETAS:
    for size in convergence_study.COHORT_SIZES:
      here = [p for p in results.points if (p.theta, p.cohort_size) == (theta, size)]
      errors = {point.num_rounds: point.error for point in here}
      bias = floors[theta, size]
      lines.append(
        [
          f"{theta:g}, {size}",
          *[f"{errors[t]:.1e}" for t in shown],
          f"{convergence_study.rate(here):.2f}",
          # Rounding is all that is left where there is no bias.
          *["0" if x < 1e-9 else f"{x:.1e}" for x in (bias.floor, bias.at_optimum)],
          f"{bias.bound:.2f}",
        ]
      )
  return lines


def _optima_table(optima: Sequence[convergence_study.Optimum]) -> list[list[str]]:
  lines = [["theta", "min F_theta", "mean", "worst", "from FedAvg's", "tied", "gap"]]
  for best in optima:
    numbers = [f"{x:.6f}" for x in (best.value, best.mean, best.worst, best.distance)]
    lines.append([f"{best.theta:g}", *numbers, str(best.num_tied), f"{best.gap:.0e}"])
  return lines


def _check_table(checks: Sequence[convergence_checks.Check]) -> list[list[str]]:
  lines = [["check", "found", "allowed", ""]]
  for check in checks:
    passed = "passed" if check.passed else "FAILED"
    lines.append([check.title, f"{check.found:.1e}", f"{check.limit:.0e}", passed])
  return lines


def _csv(rows: Sequence) -> str:
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator="\n")
  writer.writerow([field.name for field in dataclasses.fields(rows[0])])
  writer.writerows([repr(value) for value in dataclasses.astuple(row)] for row in rows)
  return buffer.getvalue()


def main() -> None:
  folder = pathlib.Path(_OUTPUT_DIR.value, "convergence")
  run_folder.make("output_dir", folder)
  if _FIGURES_DIR.value:
    run_folder.make("figures_dir", pathlib.Path(_FIGURES_DIR.value))
  log2_rounds = _QUICK_LOG2_ROUNDS if _QUICK.value else _LOG2_ROUNDS
  num_seeds = min(_NUM_SEEDS.value, _QUICK_SEEDS) if _QUICK.value else _NUM_SEEDS.value
  results = _compute(num_seeds, [2**k for k in log2_rounds])

  tables = [
    ("Errors", _error_table(results)),
    ("Optima", _optima_table(results.optima)),
    ("Checks", _check_table(results.checks)),
  ]
  figures = convergence_plot.draw(results.points, results.biases, results.problem.num_clients)
  content = dict(
    constants=results.constants,
    problem=results.problem,
    local_steps=convergence_study.LOCAL_STEPS,
    num_seeds=num_seeds,
  )
  laid_out = [(title, markupsafe.Markup(pages.markdown_table(lines))) for title, lines in tables]
  texts = {
    "report.html": pages.render("convergence.html.j2", **content, tables=tables, figures=figures),
    "report.md": pages.render("convergence.md.j2", **content, tables=laid_out),
    "report.csv": _csv(results.points),
    "bias.csv": _csv(results.biases),
  }
  for name, text in texts.items():
    atomic_files.write(folder / name, text)
  print(f"\nF_theta at the averaged iterate less its minimum, n = {results.problem.num_clients}:\n")
  print(laid_out[0][1])
  print("\nReport:", *(f"  {folder / name}" for name in texts), sep="\n")
  if _FIGURES_DIR.value:
    print("Figures:")
    for figure in figures:
      for theme, svg in (("light", figure.light), ("dark", figure.dark)):
        path = pathlib.Path(_FIGURES_DIR.value, f"convergence-{figure.name}-{theme}.svg")
        atomic_files.write(path, svg.decode())
        print(f"  {path}")
  failed = [check.title for check in results.checks if not check.passed]
  if failed:
    cli.fail(f"Found checks that failed: {'; '.join(failed)}.", cli.FAILED)


if __name__ == "__main__":
  cli.run(main)
