"""Pages from the templates, tables in Markdown."""

import base64
from collections.abc import Sequence
import pathlib
import re
from typing import Any

import jinja2
import markupsafe

_TEMPLATES = pathlib.Path(__file__).parent / "templates"


def render(template: str, **content: Any) -> str:
  """Fills a template.

  Args:
    template: Its file name.
    **content: Its variables. Text is escaped for HTML, and by the filter `md` for Markdown; what is
      marked safe is left alone. The filter `data_uri` embeds an SVG.

  Returns:
    The page.
  """
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_TEMPLATES),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  environment.filters["data_uri"] = lambda svg: (
    "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
  )
  environment.filters["md"] = lambda text: markupsafe.Markup(escape_markdown(text))
  return environment.get_template(template).render(**content)


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
  """Lays out a table, header first, in aligned columns: the first to the left, others right."""
  widths = [max(4, *map(len, column)) for column in zip(*lines)]
  text = [
    " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines
  ]
  rule = "|".join(["-" * (widths[0] + 2), *["-" * (width + 1) + ":" for width in widths[1:]]])
  return "\n".join([f"| {text[0]} |", f"|{rule}|", *[f"| {line} |" for line in text[1:]]])


def escape_markdown(text: str) -> str:
  """Escapes what Markdown would read as markup; underscores within words are none."""
  text = text.replace("&", "&amp;").replace("<", "&lt;")
  return re.sub(r"([\\`*\[\]|~>#]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", text)
