"""Pages: a report's content, written as HTML, Markdown and CSV and shown in a terminal."""

from __future__ import annotations

import base64
from collections.abc import Sequence
import dataclasses
import datetime
import pathlib
import re
from typing import TypeAlias

import jinja2
import markupsafe

from tff_superquantile import atomic_files
from tff_superquantile.experiments.pages import answer
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.pages import tables

CAVEATS = "In words, and what the numbers leave open"
_TEMPLATES = pathlib.Path(__file__).parent / "templates"


@dataclasses.dataclass(frozen=True)
class Text:
  """A paragraph; every form of the report has it."""

  text: str


@dataclasses.dataclass(frozen=True)
class Details:
  """Blocks for browsers alone, folded away."""

  title: str
  blocks: Sequence[Block]


Block: TypeAlias = Text | tables.Table | style.Figure | Details


@dataclasses.dataclass(frozen=True)
class Page:
  """A report. All texts are plain: they are escaped for HTML and Markdown when written.

  Attributes:
    name: Name of its files, NAME.html, NAME.md and NAME.csv.
    title: Its subject.
    question: The question that it answers.
    scope: The number of methods and runs behind it.
    summary: The answer, or what follows `answers`; lines are paragraphs.
    blocks: The rest, in the order of reading.
    csv: The content of NAME.csv; empty for none.
    answers: What a comparison says first, before its summary.
    picture: A small figure beside the first answer, for browsers alone.
  """

  name: str
  title: str
  question: str
  scope: str
  summary: str
  blocks: Sequence[Block]
  csv: str = ""
  answers: Sequence[answer.Answer] = ()
  picture: style.Figure | None = None


def environment(*folders: pathlib.Path) -> jinja2.Environment:
  """Returns what renders the templates of these folders, which may extend the pages'."""
  made = jinja2.Environment(
    loader=jinja2.FileSystemLoader([*folders, _TEMPLATES]),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  made.filters.update(
    dark=style.dark,
    data_uri=lambda svg: "data:image/svg+xml;base64," + base64.b64encode(svg).decode(),
    kind=lambda block: type(block).__name__,
    markdown_table=lambda table: markupsafe.Markup(markdown_table(table)),
    md=lambda text: markupsafe.Markup(_escape_markdown(text)),
    unbroken=_unbroken,
  )
  return made


def _unbroken(text: str) -> str:
  """Keeps a number with its unit, and a parameter with its value."""
  for parts in (" %", " = "):
    text = text.replace(parts, parts.replace(" ", "\N{NO-BREAK SPACE}"))
  return text


def render(page: Page, suffix: str, images: str = "") -> str:
  """Returns the text of a page in "html" or "md", which shows figures whose files begin so."""
  today = datetime.date.today().isoformat()
  template = environment().get_template(f"page.{suffix}.j2")
  return template.render(page=page, today=today, images=images, caveats=CAVEATS)


def write(page: Page, folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Writes the page into an existing folder, each file whole or not at all; returns the files."""
  texts = {suffix: render(page, suffix) for suffix in ("html", "md")}
  if page.csv:
    texts["csv"] = page.csv
  paths = {suffix: folder / f"{page.name}.{suffix}" for suffix in texts}
  for suffix, text in texts.items():
    atomic_files.write(paths[suffix], text)
  return paths


def write_figures(page: Page, folder: pathlib.Path, prefix: str = "") -> list[pathlib.Path]:
  """Writes the figures as PREFIXNAME-light.svg and PREFIXNAME-dark.svg; returns the files."""
  folder.mkdir(parents=True, exist_ok=True)
  paths = []
  for figure in figures(page):
    for theme in ("light", "dark"):
      paths.append(folder / f"{prefix}{figure.name}-{theme}.svg")
      atomic_files.write(paths[-1], getattr(figure, theme))
  return paths


def figures(page: Page) -> list[style.Figure]:
  """Returns the page's figures."""
  return [block for block in page.blocks if isinstance(block, style.Figure)]


def terminal_text(page: Page, paths: Sequence[pathlib.Path]) -> str:
  """Returns Markdown for a terminal: answers, tables that have a lead, texts, caveats and files."""
  lines = [f"{page.title}:"] if page.answers else [f"{page.title}: {page.summary}", ""]
  for said in page.answers:
    lines += [said.words, ""]
    if said.box is not None:
      lines += [markdown_table(said.box, for_terminal=True), "", said.box.note, ""]
    lines += [f"Next: {said.command}", ""] if said.command else []
    lines += [*said.reasons, ""] if said.reasons else []
  lines += [page.summary, ""] if page.answers and page.summary else []
  for block in page.blocks:
    if isinstance(block, tables.Table) and block.lead:
      lines += [block.lead, "", markdown_table(block, for_terminal=True), ""]
  caveats = [caveat for said in page.answers for caveat in said.caveats]
  lines += [f"{CAVEATS}:", *(f"- {caveat}" for caveat in caveats), ""] if caveats else []
  lines += [block.text for block in page.blocks if isinstance(block, Text)]
  return "\n".join([*lines, "Report:", *(f"  {path}" for path in paths)])


def publish(page: Page, folder: pathlib.Path) -> str:
  """Writes the page into a folder and describes it for a terminal.

  Args:
    page: The page.
    folder: An existing folder; files of the page's name are replaced.

  Returns:
    Markdown for a terminal, with the names of the files.
  """
  return terminal_text(page, list(write(page, folder).values()))


def markdown_table(table: tables.Table, for_terminal: bool = False) -> str:
  """Lays a table out in lines of equal length, numbers to the right and the best ones bold.

  Args:
    table: The table.
    for_terminal: Whether only the columns of `table.brief` are shown, if it has any, and nothing is
      bold.

  Returns:
    Lines of Markdown.
  """
  shown = [
    index
    for index, heading in enumerate(table.headings[1:])
    if not (for_terminal and table.brief) or heading in table.brief
  ]

  def text(cell: tables.Cell) -> str:
    escaped = cell._replace(text=_escape_markdown(cell.text), spread=_escape_markdown(cell.spread))
    if not cell.best or for_terminal:
      return str(escaped)
    return f"**{escaped.text}** {escaped.spread}".strip()

  lines = [
    [_escape_markdown(table.headings[index]) for index in (0, *(1 + index for index in shown))],
    *([_escape_markdown(row.name), *(text(row.cells[i]) for i in shown)] for row in table.rows),
  ]
  widths = [max(4, *map(len, column)) for column in zip(*lines)]
  rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
  rows = [
    " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines
  ]
  return "\n".join([f"| {rows[0]} |", f"|{rule}|", *(f"| {row} |" for row in rows[1:])])


def _escape_markdown(text: str) -> str:
  """Escapes characters that Markdown reads as markup; underscores within words are none."""
  text = text.replace("&", "&amp;").replace("<", "&lt;")
  return re.sub(r"([\\`*\[\]|~]|^[>#]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", text)
