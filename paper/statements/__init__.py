"""Checks the paper: a row for each number, figure, theorem and claim, with a verdict.

    python -m paper.statements --output_dir=DIR

Says of each statement what was measured and whether it holds, differs, is wrong, or cannot be
checked here. Mathematics is checked by brute force while the page is made. Measurements are those
of the finished runs and studies in DIR and, where it has none, those that the project keeps. No
TensorFlow; seconds. Writes

    DIR/paper/paper.html    all statements and tables
    DIR/paper/paper.md      the same
    DIR/paper/paper.csv     a row a statement: where, says, found, verdict, why

`--docs_dir=docs` keeps the measurements of DIR in the project and writes docs/paper.md.
"""

from __future__ import annotations

import dataclasses
import pathlib

from absl import flags
import pandas as pd

from paper.statements import measurements
from paper.statements import on_comparisons
from paper.statements import on_convergence
from paper.statements import on_print
from paper.statements import on_privacy
from paper.statements import on_quantiles
from paper.statements import on_settings
from paper.statements import on_superquantile
from paper.statements import printed
from paper.statements import rows
from paper.statements import schematics
from paper.statements import sources
from tff_superquantile import atomic_files
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.report import tables

_IMAGES = "images/paper-"  # Seen from docs/.
_GRIDS_NOTE = (
  "Errors in %: in each entry what the paper prints, then, after the arrow, what was measured on 10"
  " digits by writer, mean ± sd over seeds; in brackets the value of a parameter that is another"
  " one, or is not printed. The data are others, so the numbers are not to be equal;"
  " the claims above say what carries over. Bold as in the paper."
)


def _sections(evidence: measurements.Evidence) -> dict[str, list[rows.Row]]:
  """Returns all statements, by the titles of their sections."""
  return {
    "Claims of the text, by the paper’s own tables": [
      *on_print.statements(),
      *on_print.on_chains(),
      *on_print.on_costs(),
      *on_print.on_personalization(),
    ],
    "Claims of the text, measured": [
      *on_comparisons.statements(evidence),
      *on_comparisons.on_personalization(evidence),
      *on_settings.of_histograms(evidence),
      *on_settings.of_sizes(evidence),
      *on_settings.of_spread(evidence),
      *on_settings.of_drawings(evidence),
      *on_settings.of_settings(evidence),
    ],
    "The superquantile": [
      *on_superquantile.of_superquantile(),
      *on_superquantile.of_formulas(),
      *on_superquantile.of_smoothing(),
    ],
    "Convergence": [
      *on_convergence.statements(evidence),
      *on_convergence.of_nonconvex(evidence),
    ],
    "Privacy": [
      *on_privacy.of_accounting(),
      *on_quantiles.of_bounds(evidence),
      *on_quantiles.of_quantiles(evidence),
      *on_privacy.of_training(evidence),
    ],
    "How the tables are printed": [
      *printed.mark_rows(),
      *printed.entire_rows(),
      *printed.twice_rows(),
      *on_print.subset_rows(),
      *on_print.spread_rows(),
    ],
  }


def report(evidence: measurements.Evidence) -> page.Page:
  """Makes the page.

  Args:
    evidence: The measurements.

  Returns:
    The page.
  """
  sections = _sections(evidence)
  statements = [row for of_section in sections.values() for row in of_section]
  distinct = {(row.where, row.says) for row in statements}
  cells = list(printed.cell_rows(evidence))
  grids = list(printed.grids(evidence))
  grids[-1] = dataclasses.replace(grids[-1], note=_GRIDS_NOTE)
  columns = [field.name for field in dataclasses.fields(rows.Row)]
  frame = pd.DataFrame(
    [{**dataclasses.asdict(row), "verdict": row.judgement} for row in [*statements, *cells]],
    columns=columns,
  )
  return page.Page(
    "paper",
    "The paper, checked",
    "which of its statements hold?",
    f"{tables.plural(len(distinct), 'statement')} and {tables.plural(len(cells), 'cell')} of"
    " tables",
    f"Of {len(statements)} verdicts on {tables.plural(len(distinct), 'statement')}, some by several"
    f" data: {rows.count(statements)}. The {len(cells)} cells of the"
    " tables"
    " of errors are of EMNIST and Sent140, which are not here: each stands beside a measurement on"
    " other data, where there is one.",
    [
      *(rows.table(title, of_section) for title, of_section in sections.items()),
      *grids,
      schematics.model_family(),
      schematics.quantile_and_polytope(),
      _commands(evidence),
    ],
    frame.to_csv(index=False, lineterminator="\n"),
  )


def _commands(evidence: measurements.Evidence) -> tables.Table:
  """Lists where the measurements come from."""
  laid_out = []
  for name, source in sources.SOURCES.items():
    found = (
      tables.plural(len(evidence.methods(name)), "row") if evidence.has(name) else "nothing yet"
    )
    laid_out.append(
      tables.Row(
        name,
        [
          tables.Cell(source.command),
          tables.Cell(source.data or "the paper’s own data or problem"),
          tables.Cell(found),
        ],
      )
    )
  return tables.Table(
    "Where the measurements come from", ["", "command", "data", "found"], laid_out, kind="words"
  )


def define_flags() -> None:
  flags.DEFINE_string("output_dir", "results", "Directory with runs and studies, and for paper/.")
  flags.DEFINE_string(
    "docs_dir",
    "",
    "The project’s docs/: keeps the measurements of --output_dir in the project and writes paper.md"
    " there; empty for neither.",
  )


def main() -> None:
  output_dir, docs_dir = flags.FLAGS.output_dir, flags.FLAGS.docs_dir
  folder = pathlib.Path(output_dir, "paper")
  atomic_files.make_folder("output_dir", folder)
  if docs_dir:
    if not pathlib.Path(docs_dir, "architecture.md").exists():
      raise ValueError(
        f"Found --docs_dir={docs_dir}; expected the docs/ of a clone of the project."
      )
    measurements.keep(output_dir)
  if docs_dir:
    # From what is kept alone, so that everybody gets the same page.
    kept = report(measurements.load())
    page.write_figures(kept, pathlib.Path(docs_dir, "images"), _IMAGES.rpartition("/")[2])
    atomic_files.write(pathlib.Path(docs_dir, "paper.md"), page.render(kept, "md", _IMAGES))
  print(page.publish(report(measurements.load(output_dir)), folder))
