"""Numbers as people write them: notations, marks of missing ones, codes and gross errors."""

import json
import re

from helpers import messy
import numpy as np
import pytest

from tasks.own import doubts
from tasks.own import notation
from tasks.own import values


@pytest.mark.parametrize(
  "mark",
  [
    *(
      " ",
      "?",
      "-",
      ".",
      "Not Available",
      "#DIV/0!",
      "unknown",
      "n.a.",
      "\u2014",
      "N/D",
      "no data",
    ),
    *("zzz", "see file", "<NA>"),
  ],
)
@pytest.mark.parametrize("is_private", [False, True])
def test_marks_of_missing_numbers(ask, mark, is_private):
  every = 22 if mark in ("zzz", "see file") else 7  # These must be few.

  def table(mark):
    return messy.text(messy.change("charge", lambda _: mark, every)(messy.clean()))

  asked = dict(is_private=is_private, validation_fraction=0.25)
  found = ask(table(mark), **asked)
  messy.check(*found, ask(table(""), "empty.csv", **asked))
  listed = re.search(r"charge +number +(\d+) +2 +read as missing: (\d+) (.*)", found[0].description)
  if mark not in ("<NA>", " "):  # These are so in each column.
    assert listed[1] == listed[2] and listed[3] == repr(mark)
  if mark not in ("zzz", "see file"):
    # Where the user names it, it is so in texts, too.
    wards = messy.text(messy.change("ward", lambda _: mark, every=7)(messy.clean()))
    none = messy.text(messy.change("ward", lambda _: "", every=7)(messy.clean()))
    messy.check(*ask(wards, "wards.csv", missing=f'"{mark}"'), ask(none, "none.csv"))


_NOTATIONS = {
  "thousands": (messy.thousands, "commas between thousands"),
  "points and commas": (lambda t: messy.thousands(t, ".", ","), "decimal commas"),
  "blanks": (lambda t: messy.thousands(t, " "), ""),
  "narrow blanks": (lambda t: messy.thousands(t, "\u202f", ","), "decimal commas"),
  "Swiss": (lambda t: messy.thousands(t, "'"), ""),
  "commas": (messy.comma, "decimal commas"),
  "dollars": (lambda t: f"${messy.thousands(t)}", "in \\$; commas between thousands"),
  "euros": (lambda t: f"{messy.thousands(t, '.', ',')} \u20ac", "in \u20ac; decimal commas"),
  "code of a currency": (lambda t: f"USD {t}", "in USD"),
  "pounds of some": (lambda t: f"\u00a3{t}" if t < "5" else t, "in \u00a3"),
  "unit": (lambda t: f"{t} mg", "in mg"),
  "long unit": (lambda t: f"{t}kg/m2", "in kg/m2"),
  "unit of two words": (lambda t: f"{t} mm Hg", "in mm Hg"),
  "per cent": (lambda t: f"{t}%", "in %"),
  "points between thousands": (None, "points between thousands"),
  "plus": (lambda t: f"+{t}", ""),
  "marks beside": (
    lambda t: "?" if t[0] == "4" else f"{t} \u20ac",
    "in \u20ac; read as missing: \\d+ '\\?'",
  ),
}


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("name", _NOTATIONS)
def test_numbers_in_another_notation_are_the_same(ask, name, is_private):
  how, remark = _NOTATIONS[name]
  if how is None:  # As the doses tell, which have decimal commas.
    whole = messy.change("charge", lambda t: t[:-3])(messy.clean())
    grouped = messy.change("charge", lambda t: f"{t[:-3]}.{t[-3:]}" if len(t) > 3 else t)(whole)
    table = messy.text(messy.change("dose", messy.comma)(grouped))
    messy.check(
      *ask(table, is_private=is_private), ask(messy.text(whole), "w.csv", is_private=is_private)
    )
    return
  asked = dict(is_private=is_private, validation_fraction=0.25)
  rows = messy.clean()
  plain = messy.change("charge", lambda t: "" if name == "marks beside" and t[0] == "4" else t)(
    rows
  )
  expected = ask(messy.text(plain), "clean.csv", **asked)
  found = ask(messy.text(messy.change("charge", how)(rows)), **asked)
  messy.check(*found, expected)
  assert re.search(f"charge +number +\\d+ +.( +{remark})?(\n|$)", found[0].description)
  # One site writes so, and the others do not; a unit that none of the reference has is unknown.
  if name not in ("per cent", "marks beside") and not (is_private and "in " in remark):
    mixed = messy.of_site("site 07", messy.change("charge", how))(rows)
    messy.check(*ask(messy.text(mixed), "mixed.csv", **asked), expected)
  # A later table is read alike, and a model's card has the unit.
  one = found[0]
  again = ask(messy.text(messy.change("charge", how)(rows)), "later.csv", columns=one.columns)[1]
  np.testing.assert_array_equal(again["site 03"][0], found[1]["site 03"][0])
  unit = json.loads(one.columns)["features"][-1]["unit"]
  assert remark.replace("\\", "").startswith(f"in {unit}" * bool(unit))
  assert not unit or f"charge in {unit}" in one.preprocessing(None).description


@pytest.mark.parametrize(
  "text, point, comma, alone",  # The number by each mark of decimals, and by the text alone.
  [
    ("3,125", 3125, 3.125, None),
    ("3.125", 3.125, 3125, 3.125),
    ("0,125", 0.125, 0.125, 0.125),
    ("1.234.567", 1234567, 1234567, 1234567),
    ("1,23,456.75", 123456.75, 123456.75, 123456.75),
    ("12,5", 12.5, 12.5, 12.5),
    ("(1,234.50)", -1234.5, -1234.5, -1234.5),
    ("\u22127", -7, -7, -7),
    ("12-", -12, -12, -12),
    ("5e3", 5000, 5000, 5000),
    ("inf", np.inf, np.inf, np.inf),
    ("1_000", *[None] * 3),
    ("12,34,5", *[None] * 3),
    ("1,2345.6", *[None] * 3),
    ("10:30", *[None] * 3),
    ("2024-01-05", *[None] * 3),
    ("192.168.0.1", *[None] * 3),
    ("--5", *[None] * 3),
    ("5 mg", *[None] * 3),  # Its unit is not the column's.
    ("(5", *[None] * 3),
    (".", *[None] * 3),
  ],
)
def test_texts_are_the_numbers_that_people_mean(text, point, comma, alone):
  numbers = [notation.Notation(mark, "kg").number(text) for mark in (".", ",", "")]
  assert numbers == [point, comma, alone]
  column = values.Column.of("v", [text, None, text])
  spread = column.spread(notation.Notation(",", "kg").numbers(column))
  np.testing.assert_array_equal(spread[[0, 2]], [np.nan if comma is None else comma] * 2)


@pytest.mark.parametrize(
  "column, how, remark",
  [
    ("charge", lambda t: f"{t[0]},500", None),  # Doses have points before decimals.
    ("age", lambda t: f"{t[0]},500", "'.,500' is one of two"),
    ("age", lambda t: f"{t} {'mg' if t < '5' else 'g'}", "their units are 'g', 'mg'"),
    ("age", lambda t: f"{t}A" if t < "3" else t, "some have 'A' and some have not"),
    ("age", lambda t: f"{t} %" if t < "3" else t, "some have '%' and some have not"),
    ("age", lambda t: f"<{t}" if t < "3" else t, "others are not, first '<"),
  ],
)
def test_what_looks_like_numbers_is_said(ask, column, how, remark):
  rows = messy.change(column, how)(messy.clean())
  if remark and "one of two" in remark:  # Nothing else tells.
    rows = [[*row[:2], *row[3:4], *row[5:]] for row in rows]
  described = ask(messy.text(rows))[0].description
  if remark is None:
    assert re.search(f"{column} +number.*commas between thousands", described)
  else:
    assert re.search(
      f"{column} +(category|dropped).*values look like numbers, but .*{remark}", described
    )


@pytest.mark.parametrize("code", ["-999", "-200", "9999", "-1000.0", "999", "-9"])
@pytest.mark.parametrize("column", ["age", "outcome"])
def test_codes_far_from_all_others_are_named_and_can_be_missing(ask, column, code):
  rows = messy.labels(lambda t, i: f"{float(t) / 50:.2f}" if i % 2 else f"{float(t) / 50:.1f}")(
    messy.clean()
  )
  marked = messy.text(messy.change(column, lambda _: code, every=20)(rows))
  number = f"{float(code):g}"
  described = ask(marked)[0].description
  assert f"5.0 % are {number}, far from all others: if that stands for missing" in described
  assert f"pass --missing={number}" in described
  asked = dict(missing=code, rows_without_label="drop" if column == "outcome" else None)
  empty = messy.text(messy.change(column, lambda _: "", every=20)(rows))
  messy.check(*ask(marked, **asked), ask(empty, "empty.csv", **asked))
  assert "far from" not in ask(messy.text(rows), "clean.csv")[0].description


def test_of_few_numbers_codes_are_at_one_end_alone():
  assert doubts.on_codes(np.tile([0.0, 11.0, 15.0, 26.0, 32.0, 37.0], 9)) == ""


def _with_far(rng, number):
  values = rng.normal(10, 2, 500)
  values[rng.choice(500, number, replace=False)] *= 100
  return values


@pytest.mark.parametrize(
  "draw, number",
  [
    (lambda rng: _with_far(rng, 0), 0),
    (lambda rng: _with_far(rng, 1), 1),
    (lambda rng: _with_far(rng, 7), 7),
    (lambda rng: -_with_far(rng, 7), 7),
    (lambda rng: _with_far(rng, 60), 0),  # A kind of their own.
    (lambda rng: np.append(_with_far(rng, 7), np.nan), 7),
    (lambda rng: rng.lognormal(sigma=2.0, size=5000), 0),  # Long tails.
    (lambda rng: rng.standard_cauchy(5000), 0),
    (lambda rng: rng.pareto(1.0, 5000), 0),
    (lambda rng: rng.poisson(0.2, 500) * 100.0, 0),  # Most are equal.
    (lambda rng: np.zeros(0), 0),
    (lambda rng: np.full(9, np.nan), 0),
  ],
)
def test_only_gross_errors_are_far_from_all_others(draw, number):
  numbers = draw(np.random.default_rng(1))
  is_far = doubts.are_far(numbers)
  assert is_far.sum() == number
  assert not number or np.abs(numbers[is_far]).min() > np.nanmax(np.abs(numbers[~is_far]))


@pytest.mark.parametrize("column", ["age", "outcome"])
def test_gross_errors_are_named_with_number_share_value_and_client(ask, column):
  rng = np.random.default_rng(2)
  lines = ["site,age,dose,outcome"]
  for i in range(200):
    row = dict(age=50 + 5 * rng.normal(), dose=rng.normal(), outcome=3 + rng.normal())
    row[column] *= 100 if i in (90, 7, 150) else 1
    lines.append(f"s{i % 20:02d},{row['age']:.3f},{row['dose']:.3f},{row['outcome']:.3f}")
  described = ask("\n".join(lines), label_column="outcome")[0].description
  what = "labels outcome" if column == "outcome" else "values of column age"
  value = lines[8].split(",")[1 if column == "age" else 3]  # Of clients in order, s07 is the first.
  assert f"3 of 200 {what} (2 %) are far from all others (more than 20 robust deviations), the" in (
    described
  )
  assert f"first {float(value):.6g} of client 's07': if these are errors, mend them." in described
