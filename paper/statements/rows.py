"""Rows of the page: what the paper says in its own words, what was found, and a verdict.

`words.csv` has a row a quotation: key, where, brief, the line of the paper's LaTeX, and the LaTeX.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import csv
import dataclasses
import enum
import functools
import pathlib
import re
from typing import NamedTuple

from paper.statements import sources
from tff_superquantile.experiments.pages import tables

_HERE = pathlib.Path(__file__).parent
IMAGES = _HERE.parents[1] / "docs" / "images"


class Verdict(enum.Enum):
  """What became of a statement; the kinds do not weigh alike."""

  FALSE = "false"
  INCONSISTENT = "inconsistent"
  DIFFERS = "differs"
  REPRODUCED = "reproduced"
  ELSEWHERE = "reproduced on other data"
  UNCHECKED = "cannot be checked here"
  OURS = "our question"
  MISPRINT = "misprint"


# The parts of the page in the order of reading: title, badge, and what the verdict means.
PARTS: Mapping[Verdict, tuple[str, str, str]] = {
  Verdict.FALSE: ("False", "🟥", "A counterexample or the paper’s own numbers rule it out."),
  Verdict.INCONSISTENT: (
    "Inconsistent",
    "🟧",
    "Two places of the paper, or the paper and its authors’ scripts, say different things.",
  ),
  Verdict.DIFFERS: (
    "Differs",
    "🟦",
    "It may be as printed where the authors measured, or be a matter of degree; here, or by the"
    " tolerance in the row, it is another.",
  ),
  Verdict.REPRODUCED: (
    "Reproduced",
    "🟩",
    "Mathematics by brute force, the paper’s own tables, or its own data and setting.",
  ),
  Verdict.ELSEWHERE: (
    "Reproduced on other data",
    "🟢",
    "The direction holds on data, rounds or cohorts that are not the paper’s (“Measurements”).",
  ),
  Verdict.UNCHECKED: (
    "Cannot be checked here",
    "⬜",
    "Data are missing, the statement is open to several readings, or the evidence is a tie.",
  ),
  Verdict.OURS: (
    "Questions of our own",
    "🔷",
    "The paper does not claim these; its experiments raise them.",
  ),
  Verdict.MISPRINT: (
    "Misprints",
    "🟨",
    "What is meant is clear, and the proof, the code or the next formula has it right.",
  ),
}


_MOST_BRIEFS = 8  # That the summary names of a kind.


class Words(NamedTuple):
  """A quotation: its place, what it is about, its line in the paper's LaTeX, and that LaTeX."""

  where: str
  brief: str
  line: int
  latex: str


@functools.cache
def words() -> Mapping[str, Words]:
  """Returns the quotations by their keys."""
  with (_HERE / "words.csv").open(encoding="utf-8", newline="") as file:
    return {
      row["key"]: Words(row["where"], row["brief"], int(row["line"]), row["latex"])
      for row in csv.DictReader(file)
    }


_SIGNS = {
  **{
    "newfl": "Δ-FL", "term": "Tilted-ERM", "qffl": "q-FFL", "afl": "AFL", "fedavgsub": "FedAvg-Sub",
    "fedavg": "FedAvg", "eps": "ε", "epsilon": "ε", "theta": "θ", "lambda": "λ", "kappa": "κ",
    "gamma": "γ", "tau": "τ", "sigma": "σ", "nu": "ν", "pi": "π", "psi": "ψ", "mu": "μ", "xi": "ξ",
    "delta": "δ", "eta": "η", "partial": "∂", "grad": "∇", "infty": "∞", "to": "→", "le": "≤",
    "leq": "≤", "ge": "≥", "geq": "≥", "approx": "≈", "in": "∈", "sum": "Σ", "star": "*",
    "gtrsim": "≳", "max": "max", "min": "min", "sup": "sup", "exp": "exp", "log": "log",
    "expect": "E", "Ncal": "N", "Xcal": "X", "riskM": "M", "supq": "S", "lceil": "⌈",
    "rceil": "⌉", "vert": "|", "vee": "∨", "inv": "⁻¹", "cdots": "…", "pm": "±", "bm": "",
  },
}  # fmt: skip
_INNER = r"\{((?:[^{}]|\{[^{}]*\})*)\}"


def typeset(latex: str) -> str:
  """Returns LaTeX of the paper as plain text, formulas in a line."""
  text = re.sub(r"\\(?:Cref|cite)\{[^}]*\}", "…", latex)
  text = re.sub(r"(?<=[a-zA-Z])(?=\\(?:log|exp|max|min)(?![a-zA-Z]))", " ", text)
  text = re.sub(r"\\vert(?![a-zA-Z])", "|", text)
  text = text.replace(r"\{", "❴").replace(r"\}", "❵").replace(r"\|", "‖")
  text = re.sub(r"\\pow\{([^{}]*)\}", r"^(\1)", text)
  for accent, sign in (("hat", "\u0302"), ("overline", "\u0304")):
    text = re.sub(rf"\\{accent} *(\\?[a-zA-Z]+?)(?![a-zA-Z])", rf"\1{sign}", text)
  for _ in range(6):
    before = text
    text = re.sub(rf"\\(?:normsq|squarednorm)\*?{_INNER}", r"‖\1‖²", text)
    text = re.sub(rf"\\norm\*?{_INNER}", r"‖\1‖", text)
    text = re.sub(rf"\\sqrt{_INNER}", r"√(\1)", text)
    text = re.sub(rf"\\frac{_INNER}{_INNER}", r"(\1) / (\2)", text)
    text = re.sub(rf"\\(?:mathrm|mathbb|mathcal|textsuperscript|text){_INNER}", r"\1", text)
    if text == before:
      break
  text = re.sub(r"\\(?:left|right|[Bb]igg?|middle|overline|hat|em|emph)(?![a-zA-Z])", "", text)
  text = re.sub(r"\\([a-zA-Z]+)", lambda match: _SIGNS.get(match[1], match[1]), text)
  text = re.sub(r"\\[,;! ]", " ", text).replace(r"\%", "%").replace("&", " ").replace("$", "")
  text = re.sub(r"(?<=[_^])\{([^{}]*)\}", r"(\1)", text)
  text = re.sub(r"[{}~]", "", text).replace("❴", "{").replace("❵", "}")
  text = re.sub(r"\(([^()\s]{1,3})\) / ", r"\1 / ", text)
  text = re.sub(r" / \((\w)\)", r" / \1", text).replace("^(th)", "th").replace("^th", "th")
  return re.sub(r"\s+", " ", text).strip()


# Marks in texts that go through the escapes of HTML and of Markdown, and the tags they stand for.
TAGS: Mapping[int, str] = {
  0xE000: "<sup>", 0xE001: "</sup>", 0xE002: "<sub>", 0xE003: "</sub>",
}  # fmt: skip
_GROUP = r"\(((?:[^()]|\([^()]*\))*)\)"


def marked(text: str, is_quotation: bool = False) -> str:
  """Returns a text with its raised and lowered parts, as w^(t+1), w_i, between marks of `TAGS`.

  In a quotation, which is of `typeset`, a part without brackets is one sign and all that follows
  a _ is lowered. In other texts it follows a single letter: a_b is, make_pool is not.
  """
  single = r"[^ ()]" if is_quotation else r"\d+|[^ ()\d]"
  raised = rf"\^(−)?(?:{_GROUP}|({single}))"

  def raise_(match: re.Match[str]) -> str:
    sign, group, single = (part or "" for part in match.groups())
    # w^(t) is of round t, no power.
    inner = f"({group})" if sign or group in ("t", "t+1") else group
    return f"\ue000{sign}{inner if group else single}\ue001"

  text = re.sub(raised, raise_, text)
  if is_quotation:
    return re.sub(rf"_(?:{_GROUP}|([^ ()]))", lambda m: f"\ue002{m[1] or m[2]}\ue003", text)
  lowered = rf"(?<![\w.-])([^\W\d_]\u0302?)_(?:{_GROUP}|([A-Za-zα-ω*]+))"
  return re.sub(lowered, lambda m: f"{m[1]}\ue002{m[2] or m[3]}\ue003", text)


class Figure(NamedTuple):
  """A figure of docs/images beside a row: the beginning of its files, and what it shows."""

  name: str
  caption: str


@dataclasses.dataclass(frozen=True)
class Row:
  """One statement of the paper.

  Attributes:
    key: The key of its quotation; empty for a cell of a table and for a question of our own.
    outcome: What was measured, or computed, with its numbers and seeds.
    verdict: The verdict.
    why: How it differs and why, what is true, or what is missing.
    rule: The tolerance or criterion that decides, where it is not the paper's own.
    source: The name of the measurements behind it, as in `sources.SOURCES`; empty for none.
    about: The narrower place, such as a table's column, or what is not quoted.
    by_reading: Whether reading decides, not a computation.
    figure: The figure that belongs to it.
  """

  key: str
  outcome: str
  verdict: Verdict
  why: str = ""
  rule: str = ""
  source: str = ""
  about: str = ""
  by_reading: bool = False
  figure: Figure | None = None

  @property
  def where(self) -> str:
    """The place in the paper."""
    return words()[self.key].where if self.key else self.about

  @property
  def brief(self) -> str:
    """What it is about, in a few words."""
    if not self.key:
      return self.about
    brief = words()[self.key].brief
    return f"{brief}: {self.about}" if self.about else brief

  @property
  def says(self) -> str:
    """The paper's words; empty where there are none."""
    return typeset(words()[self.key].latex) if self.key else ""

  @property
  def line(self) -> int:
    """The line of the quotation in the paper's LaTeX; 0 without one."""
    return words()[self.key].line if self.key else 0

  @property
  def evidence(self) -> str:
    """All that was found, in sentences."""
    return " ".join(filter(None, [self.outcome, self.why, "By reading." * self.by_reading]))


def judge(holds: bool, otherwise: Verdict, yes: Verdict = Verdict.REPRODUCED) -> Verdict:
  """Returns one verdict if a statement holds, else the other."""
  return yes if holds else otherwise


def missing(key: str, source: str, about: str = "") -> Row:
  """Returns the row of a statement whose measurements are not there."""
  command = sources.SOURCES[source].command
  return Row(key, "No measurement yet.", Verdict.UNCHECKED, f"It needs {command}", about=about)


class Part(NamedTuple):
  """A part of the page: statements of one kind."""

  verdict: Verdict
  title: str
  badge: str
  intro: str
  rows: Sequence[Row]


def parts(rows: Iterable[Row]) -> Iterator[Part]:
  """Yields the parts that have rows, in the order of reading."""
  rows = list(rows)
  for verdict, (title, badge, intro) in PARTS.items():
    chosen = [row for row in rows if row.verdict is verdict]
    if chosen:
      yield Part(verdict, title, badge, intro, chosen)


def summary(rows: Iterable[Row]) -> list[str]:
  """Returns a line for each kind of verdict: how many, and which."""
  lines = []
  for part in parts(rows):
    briefs = dict.fromkeys(
      words()[row.key].brief if row.key else f"{row.about.partition('?')[0]}?" for row in part.rows
    )
    first, further = list(briefs)[:_MOST_BRIEFS], len(briefs) - _MOST_BRIEFS
    more = f"; and {further} more" if further > 0 else ""
    named = f"{'; '.join(first)}{more}".removesuffix("?")
    end = "?" if part.verdict is Verdict.OURS else "."
    lines.append(f"{part.title}, {tables.plural(len(part.rows), 'row')}: {named}{end}")
  return lines
