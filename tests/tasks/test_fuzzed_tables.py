"""Clean tables, broken at random: what is read is the same, or the difference is named."""

import collections
import csv
import io
import re

from helpers import messy
from helpers import own_tables
from helpers import pools
import numpy as np
import pytest

_NUMBERS = ("age", "dose", "charge")


def _some(rng, rows, how, column, share=0.1):
  """Changes a column in some rows."""
  changed = messy.change(column, how)(rows)
  return [new if rng.random() < share else old for old, new in zip(rows, changed)]


def _marks(rng, rows):
  # Not a blank, which is no value: that is counted, and not named.
  mark = str(rng.choice(["?", "-", "n.a.", "unknown", "#REF!"]))
  return _some(rng, rows, lambda _: mark, str(rng.choice(_NUMBERS)))


def _decimal_commas(rng, rows):
  sites = [f"site {i:02d}" for i in rng.choice(12, rng.integers(1, 12), replace=False)]
  changed = messy.change("dose", lambda t: t.replace(".", ",") if t[0].isdigit() else t)(rows)
  return [new if new[0] in sites else old for old, new in zip(rows, changed)]


def _thousands(rng, rows):
  mark = str(rng.choice(list(", '\u00a0")))
  return messy.change("charge", lambda t: t[:-6] + mark + t[-6:] if len(t) > 6 else t)(rows)


def _units(rng, rows):
  unit = str(rng.choice(["$", "\u20ac", "USD", "mg", "%"]))
  return messy.change("charge", lambda t: f"{t} {unit}" if t[0].isdigit() else t)(rows)


def _cut(rng, rows):
  return [row[:-2] if i and rng.random() < 0.05 else row for i, row in enumerate(rows)]


def _add(*row):
  return lambda rng, rows: messy.added(row, at=int(rng.integers(1, len(rows))))(rows)


def _code(rng, rows):
  return _some(rng, rows, lambda _: "-999", "age")


def _again(rng, rows):
  return [*rows[:120], rows[0], *rows[120:]]


def _stray_quote(rng, text):
  lines = text.splitlines(keepends=True)
  for i in rng.choice(np.arange(1, len(lines)), 2, replace=False):
    lines[i] = re.sub(r"([,;\t|])([ABC])([,;\t|])", r'\1"\2\3', lines[i])
  return "".join(lines)


def _separated(rng, text):
  rows = csv.reader(io.StringIO(text, newline=""))
  return messy.text(rows, str(rng.choice(list(";\t|"))))


_NAMES = r"names of clients are \d+ but for how they are written"
# What breaks rows, and what must be said of it if the table is not refused; "" for nothing.
_OF_ROWS = {
  "marks": (_marks, "read as missing: "),
  "decimal commas": (_decimal_commas, ""),
  "thousands": (_thousands, ""),
  "units": (_units, "in [$\u20acUm%]|look like numbers"),
  "capitals": (lambda g, r: _some(g, r, str.upper, "site"), _NAMES),
  "blanks": (lambda g, r: _some(g, r, lambda t: f" {t}  ", "site"), _NAMES),
  "labels": (lambda g, r: _some(g, r, str.upper, "outcome"), "refused"),
  "no label": (lambda g, r: _some(g, r, lambda _: "", "outcome"), "refused"),
  "no client": (lambda g, r: _some(g, r, lambda _: "", "site"), "refused"),
  "infinite": (lambda g, r: _some(g, r, lambda _: "inf", "dose"), "refused"),
  "total": (_add("Total", "99999", "99999", "A", "9999999", "no"), "further headers or totals"),
  "header": (_add("Site", "Age", "Dose", "Ward", "Charge", "no"), "further headers or totals"),
  "header again": (_again, "further headers or totals"),
  "code": (_code, "are -999 .*far from all others|are -999, far"),
  "short rows": (_cut, "rows lack their last values|refused"),
  "blank rows": (_add("", "", "", "", "", ""), "blank rows are left out"),
  "values beside": (lambda g, r: [*r[:9], [*r[9], "x"], *r[10:]], "refused"),
  "twice": (lambda g, r: [["site", "age", "age", *r[0][3:]], *r[1:]], "refused"),
  "names": (lambda g, r: [[f" {name}" for name in r[0]], *r[1:]], ""),
  "no names": (lambda g, r: r[1:], "refused"),
}
_OF_TEXT = {
  "separator": (_separated, "separated by"),
  "mark of order": (lambda g, t: "\ufeff" + t, ""),
  "Windows": (lambda g, t: t.replace("\n", "\r\n"), ""),
  "old Macs": (lambda g, t: t.replace("\n", "\r"), ""),
  "blank lines": (lambda g, t: t.replace("\nsite 0", "\n\nsite 0"), ""),
  "UTF-16": (lambda g, t: t.encode("utf-16"), ""),
  "Latin-1": (
    lambda g, t: t.replace("site 03", "s\u00fc 03").encode("latin-1", "ignore"),
    "refused",
  ),
  "quotes": (_stray_quote, "lines that look like rows|refused"),
  "cut": (lambda g, t: t[: -int(g.integers(12, 3000))], "cut|refused"),
  "NUL": (lambda g, t: t.replace("A", "\0", 1), "refused"),
}


def _load(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  one, splits = own_tables.load(path, seed=1)
  return one.description, pools.by_client(splits)


def _check(tmp_path, seed):
  """Breaks a table, and checks what becomes of it."""
  rng = np.random.default_rng(seed)
  rows = messy.clean(seed % 10)
  names = rng.choice([*_OF_ROWS, *_OF_TEXT], rng.integers(1, 4), replace=False).tolist()
  names = sorted(names, key=[*_OF_ROWS, *_OF_TEXT].index)
  broken, remarks = rows, []
  for name in names:
    how, remark = {**_OF_ROWS, **_OF_TEXT}[name]
    if name in _OF_TEXT and isinstance(broken, list):
      broken = messy.text(broken)
    if isinstance(broken, bytes):
      continue
    broken = how(rng, broken)
    remarks.append(remark)
  content = messy.text(broken) if isinstance(broken, list) else broken
  try:
    description, clients = _load(tmp_path / "broken.csv", content)
  except ValueError as error:
    assert "\n" not in str(error) and str(error)[-1] in ".?", (names, error)
    assert any("refused" in remark for remark in remarks) or len(names) > 1, (names, error)
    return "refused"
  # What is within quotes, or behind the cut, is not there.
  said = [remark for name, remark in zip(names, remarks) if name == "quotes"] or remarks
  for remark in said if "cut" not in names else ():
    assert re.search(remark, description), (names, description)
  if set(remarks) <= {"", "separated by", "cut|refused", "blank rows are left out"}:
    # An independent reader says which rows are there.
    count = collections.Counter(row[0] for row in rows[1:])
    missing = sum(count.values()) - sum(len(y) for _, y in clients.values())
    assert set(clients) == set(count)
    if "cut" not in names:
      assert not missing, (names, description)
      plain = _load(tmp_path / "clean.csv", messy.text(rows))[1]
      for client, (x, y) in plain.items():
        np.testing.assert_array_equal(clients[client][0], x, err_msg=str((names, description)))
        np.testing.assert_array_equal(clients[client][1], y)
  return "read"


@pytest.mark.parametrize("seed", range(40))
def test_broken_tables(tmp_path, seed):
  _check(tmp_path, seed)


@pytest.mark.slow
def test_five_hundred_broken_tables(tmp_path):
  counts = collections.Counter(_check(tmp_path, seed) for seed in range(500))
  assert min(counts["read"], counts["refused"]) > 100
