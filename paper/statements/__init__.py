"""Checks the paper: a row for each number, figure, theorem and claim, with a verdict.

    python -m paper.statements --output_dir=DIR

Quotes each statement and says what was found, and whether it is false, inconsistent, a misprint,
reproduced here or on other data, differs, or cannot be checked here. Mathematics is checked by
brute force while the page is made. Measurements are those of the finished runs and studies in DIR
and, where it has none, those that the project keeps. No TensorFlow; seconds. Writes

    DIR/paper/paper.html    all statements and tables
    DIR/paper/paper.md      the same
    DIR/paper/paper.csv     a row a statement: verdict, where, what the paper says, what was found

`--docs_dir=docs` keeps the measurements of DIR in the project and writes docs/paper.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import pathlib

import markupsafe
import pandas as pd

from paper.statements import measurements
from paper.statements import on_comparisons
from paper.statements import on_convergence
from paper.statements import on_people
from paper.statements import on_print
from paper.statements import on_privacy
from paper.statements import on_quantiles
from paper.statements import on_settings
from paper.statements import on_superquantile
from paper.statements import printed
from paper.statements import rows
from paper.statements import schematics
from paper.statements import sources
from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables

_IMAGES = "images/paper-"  # Seen from docs/.
_GRIDS_NOTE = (
  "Errors in %, bold as in the paper: what it prints; after → what was measured on digits, mean ±"
  " sd over seeds; after ⇒ on EMNIST’s writers; in brackets the value of a parameter that is"
  " another one, or is not printed. Data and rounds are not the paper’s, so numbers may differ. All"
  " tables and columns are in paper.csv, which ./run_experiments.sh paper writes."
)


_TEMPLATES = pathlib.Path(__file__).parent / "templates"
_INTRO = (
  "Each row quotes the paper and says what was found. The kinds do not weigh alike: a misprint is"
  " no error of thought. “Ours” is a criterion that the paper does not give. Measurements are of"
  " five seeds, those of people of one, with intervals over clients, and those of nonconvex losses"
  " of three, unless a row says otherwise. What a row shares with the one above is not repeated."
)


def _statements(evidence: measurements.Evidence) -> list[rows.Row]:
  """Returns all statements, in the order of their subjects."""
  return [
    *on_convergence.of_proofs(),
    *on_superquantile.of_superquantile(),
    *on_superquantile.of_formulas(),
    *on_superquantile.of_smoothing(),
    *on_convergence.statements(evidence),
    *on_convergence.of_nonconvex(evidence),
    *on_convergence.of_gradients(),
    *on_privacy.of_accounting(),
    *on_quantiles.of_theorem(),
    *on_quantiles.of_bounds(evidence),
    *on_quantiles.of_quantiles(evidence),
    *on_privacy.of_training(evidence),
    *on_comparisons.statements(evidence),
    *on_settings.of_histograms(evidence),
    *on_settings.of_sizes(evidence),
    *on_settings.of_spread(evidence),
    *on_comparisons.on_personalization(evidence),
    *on_settings.of_settings(evidence),
    *on_print.statements(),
    *on_print.on_chains(),
    *on_print.on_costs(),
    *on_print.on_personalization(),
    *on_print.subset_rows(),
    *on_print.spread_rows(),
    *printed.twice_rows(),
    *printed.mark_rows(),
    *printed.entire_rows(),
  ]


@dataclasses.dataclass(frozen=True)
class Report:
  """The page on the paper: title, summary, tables of errors, schematics, and the CSV file.

  `lines` are the summary's further ones.
  """

  page: page.Page
  lines: list[str]
  statements: list[rows.Row]

  def render(self, suffix: str, images: str = "") -> str:
    """Returns the text of the page, "html" or "md".

    Markdown finds the figures of docs/images at `images`; empty for none.
    """
    environment = page.environment(_TEMPLATES)
    environment.filters.update(marked=rows.marked, tagged=_tagged)
    return environment.get_template(f"paper.{suffix}.j2").render(
      page=self.page,
      lines=self.lines,
      parts=list(rows.parts(self.statements)),
      picture=_picture,
      today=datetime.date.today().isoformat(),
      images=images,
    )

  def publish(self, folder: pathlib.Path) -> str:
    """Writes the page into a folder and describes it for a terminal."""
    paths = []
    for suffix in ("html", "md", "csv"):
      paths.append(folder / f"{self.page.name}.{suffix}")
      text = self.page.csv if suffix == "csv" else self.render(suffix)
      atomic_files.write(paths[-1], text)
    return "\n".join([self.page.summary, *self.lines, "Report:", *(f"  {path}" for path in paths)])


def _tagged(text: str) -> markupsafe.Markup:
  """Returns a text of `rows.marked` with its tags, and all else escaped."""
  escaped = markupsafe.escape(text).translate(rows.TAGS)
  return markupsafe.Markup(escaped)  # noqa: S704  (It is escaped but for the tags.)


def _picture(figure: rows.Figure) -> style.Figure | None:
  """Returns a figure of the documentation, or None where it is missing."""
  path = rows.IMAGES / f"{figure.name}-light.svg"
  if not path.exists():
    return None
  return style.Figure(figure.name, figure.caption, figure.caption, path.read_bytes())


def report(evidence: measurements.Evidence) -> Report:
  """Makes the page of the measurements."""
  statements = _statements(evidence)
  quotations = {row.key for row in statements if row.key}
  cells = list(printed.cell_rows(evidence))
  grids = list(printed.grids(evidence))
  grids[-1] = dataclasses.replace(grids[-1], note=_GRIDS_NOTE)
  fields = ("where", "brief", "says", "evidence", "rule", "source")
  frame = pd.DataFrame(
    [
      {"verdict": row.verdict.value, **{field: getattr(row, field) for field in fields}}
      for row in [*statements, *cells]
    ]
  )
  scope = (
    f"{tables.plural(len(quotations), 'quotation')}, {tables.plural(len(statements), 'row')}, and"
    f" {tables.plural(len(cells), 'cell')} of tables"
  )
  figures = [schematics.model_family(), schematics.quantile_and_polytope()]
  blocks: list[page.Block] = [*grids, *on_people.grids(evidence), _measurements(), *figures]
  csv = frame.to_csv(index=False, lineterminator="\n")
  made = page.Page(
    "paper", "The paper, checked", "which of its statements hold?", scope, _INTRO, blocks, csv
  )
  return Report(made, rows.summary(statements), statements)


def _measurements() -> tables.Table:
  """Returns the data, commands and versions of the measurements."""
  laid_out = [
    tables.Row(name, [tables.Cell(t) for t in (source.data, source.command, sources.made(name))])
    for name, source in sources.SOURCES.items()
  ]
  headings = ["name", "data, where they are not the paper’s", "command", "made"]
  return tables.Table("Measurements", headings, laid_out, kind="words")


def define(parser: command_line.Parser) -> None:
  output_dir = "Directory with runs and studies, and for paper/."
  command_line.add_flag(parser, "output_dir", str, "results", output_dir)
  command_line.add_flag(
    parser,
    "docs_dir",
    str,
    "",
    "The project’s docs/: keeps the measurements of --output_dir in the project and writes paper.md"
    " there; empty for neither.",
  )


def main(args: argparse.Namespace) -> None:
  output_dir, docs_dir = args.output_dir, args.docs_dir
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
    page.write_figures(kept.page, pathlib.Path(docs_dir, "images"), _IMAGES.rpartition("/")[2])
    atomic_files.write(pathlib.Path(docs_dir, "paper.md"), kept.render("md", _IMAGES))
  print(report(measurements.load(output_dir)).publish(folder))
