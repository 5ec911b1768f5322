"""Tables as people have them: a clean one of 12 sites, and what may become of it in an export."""

import csv
import io

import numpy as np

COLUMNS = ("site", "age", "dose", "ward", "charge", "outcome")
NUM_ROWS = 240


def clean(seed=0):
  """Rows of texts without any quirk, the names of the columns first."""
  rng = np.random.default_rng(seed)
  rows = [list(COLUMNS)]
  for i in range(NUM_ROWS):
    charge = 1000 + 9000 * rng.random()
    numbers = [str(rng.integers(18, 91)), f"{1 + 9 * rng.random():.2f}", rng.choice(list("ABC"))]
    rows.append([f"site {i % 12:02d}", *numbers, f"{charge:.2f}", rng.choice(["no", "yes"])])
  return rows


def text(rows, separator=","):
  out = io.StringIO(newline="")
  csv.writer(out, delimiter=separator, lineterminator="\n").writerows(rows)
  return out.getvalue()


def change(column, how, every=1):
  """Returns a change of rows: `how` of a text, in every so many rows."""

  def changed(rows):
    place = rows[0].index(column)
    return [
      [*row[:place], how(row[place]), *row[place + 1 :]] if i and i % every == 0 else row
      for i, row in enumerate(rows)
    ]

  return changed


def of_site(name, how):
  """Returns a change of the rows of one site alone."""
  return lambda rows: [row if row[0] != name else how([rows[0], row])[1] for row in rows]


def added(*new, at=None):
  """Returns a change that adds rows, after so many others."""
  return lambda rows: [*rows[: at or len(rows)], *map(list, new), *rows[at or len(rows) :]]


def check(one, clients, expected):
  """Checks that clients, inputs and labels are those of another table, to the last bit."""
  other, of_other = expected
  assert one.labels == other.labels and list(clients) == list(of_other)
  for client, (x, y) in of_other.items():
    np.testing.assert_array_equal(clients[client][0], x)
    np.testing.assert_array_equal(clients[client][1], y)


def comma(text):
  return text.replace(".", ",")


def thousands(text, group=",", mark="."):
  whole, _, rest = text.partition(".")
  return f"{whole[:-3]}{group}{whole[-3:]}{mark}{rest}"


def labels(how):
  """Labels of a charge, as `how` has it, and its place."""

  def change(rows):
    return [[*row[:5], how(row[4], i) if i else row[5]] for i, row in enumerate(rows)]

  return change
