"""Tables as people have them are read as the clean ones, or refused, or remarked on."""

import gzip
import io
import re

from helpers import messy
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest

_TEXT = messy.text(messy.clean())


@pytest.mark.parametrize(
  "how, said",
  [
    (
      lambda t, i: "Not Available" if i % 20 == 0 else t,
      "12 of 240 labels .* first 'Not Available'.*--missing",
    ),
    (
      lambda t, i: "?" if i == 7 else t,
      r"1 of 240 labels .* first '\?'.*--rows_without_label=drop",
    ),
    (
      lambda t, i: ">9000" if t[0] == "9" else t,
      "labels that are no numbers .*--label_kind=classes",
    ),
    (
      lambda t, i: ("no", "no ", "NO", "yes")[i % 4],
      "3 classes .* 2 but for how they are written, such as 'NO' and 'no'",
    ),
    (lambda t, i: ("Ja", "JA", "nein")[i % 3], "3 classes .* that are 2 but for how"),
    (
      lambda t, i: ("a  b", "a b", "c")[i % 3],
      "3 classes .* that are 2 but for how",
    ),
    (
      lambda t, i: ("e\u0301", "\xe9", "c")[i % 3],
      r"3 classes .* 2 but for how they are written, such as 'e\\u0301' and '\\xe9'",
    ),
    (
      lambda t, i: ("\ufb01n", "fin", "c")[i % 3],
      "3 classes .* that are 2 but for how",
    ),
    (
      lambda t, i: ("y s", "y\u00a0s", "c")[i % 3],
      "3 classes .* that are 2 but for how",
    ),
  ],
)
def test_labels_that_are_nearly_alike_or_numbers_are_refused(ask, how, said):
  table = messy.text(messy.labels(how)(messy.clean()))
  with pytest.raises(ValueError, match=said):
    ask(table)
  if "classes .* " in said:  # The remedy is one.
    names = sorted({how("", i).strip() for i in range(1, 241)})
    assert ask(table, classes=",".join(names))[0].labels == tuple(names)


def test_labels_in_another_notation_are_numbers_and_letters_are_classes(ask):
  plain = ask(messy.text(messy.labels(lambda t, i: t)(messy.clean())), "clean.csv")
  for how in (messy.comma, lambda t: f"{t} kg", messy.thousands):
    found = ask(messy.text(messy.labels(lambda t, i, how=how: how(t))(messy.clean())))
    messy.check(*found, plain)
  letters = ask(messy.text(messy.labels(lambda t, i: "aAb"[i % 3])(messy.clean())))[0]
  assert letters.labels == ("A", "a", "b")
  doses = ask(messy.text(messy.labels(lambda t, i: f"{1 + i % 3} mg")(messy.clean())))[0]
  assert doses.labels == ("1 mg", "2 mg", "3 mg")


def test_blanks_around_values_are_left_out_and_counted(ask):
  def blanks(t, i):
    return (f" {t}", t, f"{t}\u00a0")[i % 3]

  rows = messy.clean()
  spaced = [[row[0], *(blanks(t, i) for t in row[1:])] if i else row for i, row in enumerate(rows)]
  plain, found = ask(messy.text(rows), "clean.csv"), ask(messy.text(spaced))
  messy.check(*found, plain)
  assert found[0].labels == plain[0].labels
  for column in ("ward", "outcome"):
    assert f"160 values of column {column} have blanks around them" in found[0].description
  assert "blanks around" not in plain[0].description
  later = ask(messy.text(spaced), "later.csv", columns=found[0].columns)[1]
  for client, (_, y) in found[1].items():
    np.testing.assert_array_equal(later[client][1], y)


def test_na_is_missing_with_blanks_too(ask):
  def ward(mark):
    return messy.text(messy.change("ward", lambda _: mark, 5)(messy.clean()))

  plain = ask(ward("NA"), "clean.csv")
  for mark in (" NA ", "\tNA", "  ", ""):
    found = ask(ward(mark))
    messy.check(*found, plain)
    assert " 48 " in re.search("ward +category.*", found[0].description)[0]


_COUNTRIES = messy.text(messy.labels(lambda t, i: ("NA", "ZA", "BW")[i % 3])(messy.clean()))


def test_na_may_be_a_label(ask):
  with pytest.raises(
    ValueError, match=r"80 of 240 rows without a label .*, as 'NA' is read as mis"
  ):
    ask(_COUNTRIES)
  with pytest.raises(ValueError, match="or name it among all --classes if it is one.$"):
    ask(_COUNTRIES)
  one, clients = ask(_COUNTRIES, classes="BW,NA,ZA")
  assert one.labels == ("BW", "NA", "ZA")
  assert sum(np.sum(y == 1) for _, y in clients.values()) == 80
  # So it is in a later table, by what the run has kept.
  later = ask(_COUNTRIES, "later.csv", columns=one.columns)[1]
  assert sum(np.sum(y == 1) for _, y in later.values()) == 80
  left = ask(_COUNTRIES, rows_without_label="drop")
  assert left[0].labels == ("BW", "ZA") and "80 rows without a label" in left[0].description


@pytest.mark.parametrize("is_private", [False, True])
def test_rows_without_a_client_are_refused_or_dropped(ask, is_private):
  rows = messy.clean()
  table = messy.text([["  ", *row[1:]] if i % 9 == 4 else row for i, row in enumerate(rows)])
  asked = dict(is_private=is_private, validation_fraction=0.25)
  with pytest.raises(
    ValueError, match="27 of 240 rows without a client.*--rows_without_client=dro"
  ):
    ask(table, **asked)
  found = ask(table, rows_without_client="drop", **asked)
  kept = messy.text([row for i, row in enumerate(rows) if i % 9 != 4])
  messy.check(*found, ask(kept, "clean.csv", **asked))
  said = "27 rows without a client are left out." in found[0].description
  assert said != is_private


@pytest.mark.parametrize("column", ["ward", "outcome"])
def test_codes_with_an_e_are_names(ask, column):
  codes = ("1E12", "300", "3E2", "70", "7E1")
  spelled = dict(zip(codes, "abcde"))

  def table(name):
    return messy.text(
      [
        [name(codes[i % 5]) if i and c == column else t for t, c in zip(row, messy.COLUMNS)]
        for i, row in enumerate(messy.clean())
      ]
    )

  found, plain = ask(table(str)), ask(table(spelled.get), "clean.csv")
  if column == "outcome":
    assert (found[0].labels, plain[0].labels) == (codes, tuple("abcde"))
    plain = found[0], plain[1]
  messy.check(*found, plain)
  assert "1e+12" not in found[0].description
  # A small e is how programs write numbers: it is one, and said to be.
  small, numbers = (
    ask(table(write), f"{write.__name__}.csv") for write in (str.lower, _as_whole_number)
  )
  messy.check(*small, numbers)
  assert f"Values of column {column} such as '3e2' are read as powers of" in small[0].description
  assert "powers of" not in numbers[0].description


def _as_whole_number(text):
  return str(int(float(text)))


@pytest.mark.parametrize("row", [3, 200])
def test_long_texts_are_read_wherever_they_are(ask, row):
  rows = messy.clean()
  for i, of_row in enumerate(rows):
    of_row.insert(1, "notes" if not i else "x" * 140_000 if i == row else "ok")
  one, _ = ask(messy.text(rows))
  assert re.search("notes +category .*2 categories", one.description)


def test_lines_are_counted_as_editors_do(ask):
  rows = messy.text(messy.clean()).splitlines()
  rows[5] += ",and,more"
  title = ['"A title', 'of two lines"', ""]
  for before, line in (([], 6), (["sep=,"], 7), (title, 9), (["sep=,", *title], 10)):
    for end in ("\n", "\r\n"):
      with pytest.raises(ValueError, match=f"6 names of columns and 8 values in line {line};"):
        ask(end.join([*before, *rows]))


def test_two_columns_that_are_one_but_for_blanks_are_refused(ask):
  rows = messy.clean()
  columns = {name: [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])}
  buffer = io.BytesIO()
  parquet.write_table(pa.table({**columns, " dose": columns["age"]}), buffer)
  with pytest.raises(ValueError, match="has the column 'dose' twice; rename one"):
    ask(buffer.getvalue(), "visits.parquet")


_TOTAL = ["Total", "13000", "1200.5", "A", "1300000.0", "no"]
_IDS = ['{"ImportId":"QID1"}', *(f'{{"ImportId":"QID{i}"}}' for i in range(2, 6)), "no"]
_WORDS = ["Site", "How old are you?", "Dose", "Ward", "Charge", "no"]


@pytest.mark.parametrize(
  "change, names",
  [
    (messy.added(_TOTAL), ["Total"]),
    (messy.added(["Sum", "", "1200.5", "", "1300000.0", "no"]), ["Sum"]),
    (messy.added(["Mean", "mean", "mean", "", "mean", "no"]), ["Mean"]),
    (messy.added(_WORDS, at=1), ["Site"]),
    (messy.added(_WORDS, _IDS, at=1), ["Site", '{"ImportId":"QID1"}']),
    (
      messy.added(_WORDS, _IDS, ["(unit)", "years", "mg", "-", "$", "yes"], at=1),
      ["(unit)", _IDS[0], "Site"],
    ),
    (messy.added([*messy.COLUMNS[:5], "no"], [*messy.COLUMNS[:5], "no"], at=99), ["site"]),
  ],
)
def test_further_headers_and_totals_are_named(ask, change, names):
  described = ask(messy.text(change(messy.clean())))[0].description
  remark = re.search(r"All rows of (.*) \((\d) of \d+ clients\) have texts", described)
  assert remark and int(remark[2]) == len(names)
  assert all(repr(name) in remark[1] for name in names)
  assert "headers or totals" not in ask(_TEXT, "clean.csv")[0].description


def _sites(rows=None):
  """{site: the text of its rows, without the column of sites}."""
  rows = rows or messy.clean()
  sites = sorted({row[0] for row in rows[1:]})
  return {s: messy.text([row[1:] for row in rows if row[0] in ("site", s)]) for s in sites}


_ENDS = {
  "capitals": lambda site, i: f"{site}.{'CSV' if i % 3 else 'csv'}",
  "tabs": lambda site, i: f"{site}.{'tsv' if i % 2 else 'csv'}",
  "packed": lambda site, i: f"{site}.{'csv.gz' if i % 2 else 'CSV'}",
  "sub-folders": lambda site, i: f"{'north' if i % 2 else 'south'}/{site}.csv",
  "hive": lambda site, i: f"site={site.replace(' ', '%20')}/part-0.csv",
}


@pytest.mark.parametrize("kind", _ENDS)
def test_no_file_of_a_folder_is_left_out_without_a_word(ask, kind):
  files = {}
  for i, (site, content) in enumerate(_sites().items()):
    name = _ENDS[kind](site, i)
    content = content.replace(",", "\t") if name.endswith("tsv") else content
    files[name] = gzip.compress(content.encode()) if name.endswith("gz") else content
  others = {"notes.txt": "x", "more/site 99.xlsx": b"PK", ".hidden": "x", "_SUCCESS": ""}
  one, clients = ask(
    {**files, **others}, "visits", client_column="site" if kind == "hive" else None
  )
  of_name = {name.rpartition("/")[2]: examples for name, examples in clients.items()}
  expected = {}
  for site, (x, y) in ask(_TEXT)[1].items():
    expected[site] = (x, y)
  assert set(of_name) == set(expected)
  for site, (_, y) in expected.items():
    np.testing.assert_array_equal(of_name[site][1], y)
  assert "Files left out: 'more/site 99.xlsx', 'notes.txt'." in one.description


@pytest.mark.parametrize(
  "how",
  [
    lambda name, i: name.upper() if i > 120 else name,
    lambda name, i: f" {name} " if i > 120 else name,
    lambda name, i: f"{int(name[-2:])}.0" if i > 120 else str(int(name[-2:])),
    lambda name, i: name.replace(" ", "\u00a0") if i > 120 else name,
    lambda name, i: name.replace(" ", "  ") if i > 120 else name,
  ],
)
def test_clients_under_several_names_are_named(ask, how):
  rows = messy.clean()
  renamed = [[how(r[0], i), *r[1:]] for i, r in enumerate(rows[1:])]
  said = ask(messy.text([rows[0], *renamed]))[0].description
  assert "24 names of clients are 12 but for how they are written, such as " in said


def _padded(rows):
  return [[f" {name} " for name in rows[0]], *rows[1:]]


_SAME = {
  "blanks around names": lambda rows: messy.text(_padded(rows)),
  "semicolons": lambda rows: messy.text(rows, ";"),
  "semicolons and commas": lambda rows: messy.text(
    [[messy.comma(t) for t in r] for r in rows], ";"
  ),
  "tabs": lambda rows: messy.text(rows, "\t"),
  "bars": lambda rows: messy.text(rows, "|"),
  "BOM with semicolons": lambda rows: b"\xef\xbb\xbf" + messy.text(rows, ";").encode(),
  "UTF-16 with tabs": lambda rows: messy.text(rows, "\t").encode("utf-16"),
  "Excel's line": lambda rows: "sep=;\n" + messy.text(rows, ";"),
  "a title": lambda rows: "Visits of 2024;;;\n\n(c) us\n" + messy.text(rows, ";"),
  "lines of old Macs": lambda rows: messy.text(rows).replace("\n", "\r"),
  "lines of Windows": lambda rows: messy.text(rows).replace("\n", "\r\n"),
  "blank lines": lambda rows: "\n\n" + messy.text(rows).replace("\nsite 03", "\n\nsite 03"),
  "rows of commas": lambda rows: messy.text(rows) + ",,,,,\n" * 9,
  "an index": lambda rows: messy.text([["", *rows[0]], *(["7", *row] for row in rows[1:])]),
  "commas at the end": lambda rows: messy.text(rows).replace("\n", ",,\n"),
  "packed, with another name": lambda rows: gzip.compress(messy.text(rows).encode()),
  "all quoted": lambda rows: "".join(",".join(f'"{t}"' for t in row) + "\n" for row in rows),
}


@pytest.mark.parametrize("name", _SAME)
def test_other_dialects_hold_the_same(ask, name):
  one, clients = ask(_SAME[name](messy.clean()))
  messy.check(one, clients, ask(_TEXT, "clean.csv"))
  separator = {"semicolons": "';'", "tabs": "'\\t'", "bars": "'|'", "BOM with semicolons": "';'"}
  assert name not in separator or f"separated by {separator[name]}" in one.description
  assert name != "a title" or "2 rows before the names of columns are left" in one.description
  assert name != "rows of commas" or "9 blank rows are left out." in one.description


@pytest.mark.parametrize(
  "content, changes, said",
  [
    (gzip.compress(_TEXT.encode() * 9)[:-50], {}, "visits.csv cannot be read"),
    (_TEXT.replace("A", "\u00c4").encode("latin-1"), {}, "visits.csv cannot be read .*in UTF-8"),
    (gzip.compress(_TEXT.replace(".5", "\0.5").encode()), {}, "visits.csv has NUL bytes"),
    (_TEXT.encode("utf-16-le"), {}, "visits.csv has NUL bytes, as text in UTF-16"),
    (b"PK\x03\x04...", {}, "visits.csv is an Excel file .* save it as .csv"),
    (b"PK\x03\x04...", dict(name="visits.xlsx"), "visits.xlsx is an Excel file .* save it as .csv"),
    (b"\xd0\xcf\x11\xe0...", {}, r"is an Excel file \(.xls\)"),
    ("\n<!DOCTYPE html><table>", {}, "is a web page"),
    (b"%PDF-1.7", dict(name="visits.pdf"), "is a PDF document"),
    ({"a.xlsx": b"PK", "b.txt": ""}, dict(name="v"), "Found no .csv, .* but a.xlsx, b.txt"),
    (messy.text(messy.clean()[1:]), {}, "no column 'outcome' .*columns are 'site 00"),
    (_TEXT, dict(label_column="out come"), "no column 'out come'"),
    (_TEXT.replace("outcome", "out  come"), {}, "'out  come'"),
    (messy.text(messy.clean(), "#"), {}, "no column 'outcome'.*site#age.* by --separator"),
    (_TEXT.replace("\nsite 0", "\nsite,,0", 1), {}, "6 names .* and 8 values in line 2"),
    (_TEXT, dict(separator=";;"), "--separator=';;'; expected a single"),
    (_TEXT, dict(drop_columns="dose,w"), "'w' for --drop_columns"),
    (_TEXT, dict(drop_columns="outcome"), "in two places"),
    (_TEXT, dict(drop_columns="age", features="age"), "in two places"),
    (re.sub(r"(\nsite 03),\d+", r"\1,inf", _TEXT), {}, "20 infinite .*--missing, .*--drop_columns"),
    (_TEXT.replace(",no\n", ",\n"), {}, r"\d+ of 240 rows .*--rows_without_label=drop"),
  ],
)  # fmt: skip
def test_messages_say_what_a_file_is(ask, content, changes, said):
  with pytest.raises(ValueError, match=said) as caught:
    ask(content, **changes)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["site", "age", "ward", "outcome"])
@pytest.mark.parametrize("first, last", [(50, 90), (10, 12), (200, 239), (1, 240), (77, None)])
def test_rows_within_stray_quotes_are_named(ask, first, last, column):
  lines = _TEXT.splitlines()
  for i in filter(None, (first, last)):
    cells = lines[i].split(",")
    cells[messy.COLUMNS.index(column)] = '"' + cells[messy.COLUMNS.index(column)]
    lines[i] = ",".join(cells)
  try:
    one, _ = ask("\n".join(lines) + "\n")
  except ValueError as error:
    assert "look for a quotation mark too many or too few" in str(error) or first == 1
    return
  said = re.search(
    f"A value of column {column} has (\\d+) lines that look like rows", one.description
  )
  assert said and abs(int(said[1]) - ((last or 240) - first)) <= 1


def test_flags_leave_out_columns_and_rows(ask):
  rows = messy.clean()
  few = [[*row[:1], *row[2:3], *row[4:]] for row in rows]
  messy.check(*ask(messy.text(rows), drop_columns="age,ward"), ask(messy.text(few), "few.csv"))
  unlabelled = messy.change("outcome", lambda _: " ", every=5)(rows)
  labelled = [row for row in unlabelled if row[-1] != " "]
  one, clients = ask(messy.text(unlabelled), rows_without_label="drop")
  messy.check(one, clients, ask(messy.text(labelled), "labelled.csv"))
  assert "48 rows without a label are left out." in one.description
  messy.check(*ask(messy.text(rows, "#"), separator="#"), ask(messy.text(rows), "clean.csv"))
  messy.check(*ask(messy.text(rows, "\t"), separator="tab"), ask(messy.text(rows), "clean.csv"))
  short = [row if i % 9 or not i else row[:-2] + [""] * 0 for i, row in enumerate(rows)]
  assert (
    "26 rows lack their last values"
    in ask(messy.text(short), label_column="age", label_kind="number")[0].description
  )
  others = (dict(drop_columns="age"), dict(missing="-9"), dict(separator=","))
  digests = {ask(_TEXT, **asked)[0].data_digest for asked in ({}, *others)}
  assert len(digests | {ask(_TEXT, rows_without_label="drop")[0].data_digest}) == 5
