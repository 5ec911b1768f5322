"""Tables whose right decision is known by their construction."""

import itertools

import numpy as np

from tasks import places

_ROWS = 24


def _ids(seed, num_train, num_test):
  """Ids of clients, of whom the run of this seed trains on the first and tests on the others."""
  train, test = [], []
  for i in itertools.count():
    side, most = (
      (test, num_test) if places.place(f"c{i}", seed, "test") < 0.2 else (train, num_train)
    )
    if len(side) < most:
      side.append(f"c{i}")
    if len(train) == num_train and len(test) == num_test:
      return train, test


def _classes(scores, rng, noise=0.5):
  return (scores + noise * rng.normal(size=len(scores)) > 0).astype(int)


def _alike(rng, place):
  """One rule for everybody."""
  x = rng.normal(size=[_ROWS, 4])
  return x, _classes(x[:, 0] - x[:, 1], rng, 1.0)


def _nothing(rng, place):
  """Labels that are drawn without a look at the features."""
  return rng.normal(size=[_ROWS, 3]), (rng.random(_ROWS) < 0.4).astype(int)


def _contradictory(rng, place):
  """Half of the clients mean the opposite."""
  x = rng.normal(size=[2 * _ROWS, 2])
  return x, _classes((-1) ** place * x[:, 0], rng, 0.3)


def _shifted(rng, place):
  """Every fifth client is where labels are higher, and has few rows of its own.

  These take turns on either side: a line serves one side alone where most are there.
  """
  is_rare = place % 5 == 0
  x = rng.normal(size=[8 if is_rare else _ROWS, 4])
  x[:, 1] = 0.3 * x[:, 1] + is_rare * 2 * (-1) ** (place // 5)
  labels = x[:, 0] + 2.5 * (np.abs(x[:, 1]) > 1) + rng.normal(size=len(x))
  return x, np.round(labels, 3)


def _noisy(rng, place):
  """Every fifth client has labels of which two in five are wrong."""
  x, y = _alike(rng, place)
  return x, y ^ (rng.random(len(y)) < (0.4 if place % 5 == 0 else 0.0))


def _rare(rng, place):
  """One label in twenty is of the class that counts, and lies a little apart."""
  y = (rng.random(2 * _ROWS) < 0.05).astype(int)
  x = rng.normal(size=[len(y), 3])
  x[:, 0] += 1.5 * y
  return x, y


def _numbers(rng, place):
  x = rng.normal(size=[_ROWS, 4])
  return x, np.round(x @ [1, -1, 0.5, 0] + 0.3 * rng.normal(size=_ROWS), 3)


def _with_one_far(rng, place):
  """The first client of its side writes its labels in another unit."""
  x, y = _numbers(rng, place)
  return x, y * (100 if place == 0 else 1)


def _slipped(rng, place):
  """One label in fifty has its point two places further to the right."""
  x, y = _numbers(rng, place)
  return x, np.round(10 + y, 3) * np.where(rng.random(len(y)) < 0.02, 100, 1)


def _slipped_features(rng, place):
  """The same of a feature, on which the label depends most."""
  x, y = _numbers(rng, place)
  x[:, 0] *= np.where(rng.random(len(y)) < 0.02, 100, 1)
  return x, y


def _tiny(rng, place):
  """One rule for many clients of two to six rows."""
  x, _ = _numbers(rng, place)
  x = x[: rng.integers(2, 7)]
  return x, np.round(2 * x[:, 0] - x[:, 1] + rng.normal(size=len(x)), 3)


def _short(rng, place):
  """Each client has a line of its own, and twelve rows."""
  time = np.arange(12)
  x = np.column_stack([time, rng.normal(size=12)])
  start, slope = rng.normal() * 12, 0.25 + 0.2 * rng.normal()
  return x, np.round(start + 5 * slope * time + 0.7 * rng.normal(size=12), 3)


def _reversed(rng, place):
  """A fifth of the clients means the opposite."""
  x = rng.normal(size=[_ROWS, 2])
  return x, _classes((-1 if place % 5 == 0 else 1) * (2 * x[:, 0] - 1.5 * x[:, 1]), rng, 0.7)


def _one_class(rng, place):
  """Nine in ten labels of a client are of its own class, whatever the features are."""
  x, _ = _alike(rng, place)
  return x, np.where(rng.random(len(x)) < 0.9, place % 3, rng.integers(3, size=len(x)))


def _drifting(rng, place):
  """What is measured grows from row to row, and the rule stays."""
  x, _ = _alike(rng, place)
  x += np.linspace(-1, 1, len(x))[:, None]
  return x, _classes(x[:, 0] - x[:, 1], rng, 1.0)


def _levels(rng, place):
  """Each client has a level of its own, and the features say little beside it."""
  x, y = _numbers(rng, place)
  return x, np.round(0.2 * y + 3 * rng.normal(), 3)


def _squared(rng, place):
  """The label goes with the distance of a feature from its middle, which no line tells."""
  x, _ = _numbers(rng, place)
  return x, np.round(x[:, 0] ** 2 + 0.5 * rng.normal(size=len(x)), 3)


_USUAL, _ENOUGH = (40, 30), dict(num_rounds=60)
# By name: the decision, the rows of a client by its place on its side, the numbers of training and
# test clients, and flags of the runs.
TABLES = {
  "alike": ("keep", _alike, _USUAL, _ENOUGH),
  "nothing": ("nothing learned", _nothing, _USUAL, {}),
  "few rounds": ("train longer", _numbers, _USUAL, dict(num_rounds=3)),
  "contradictory": ("own models", _contradictory, _USUAL, {}),
  # A quarter of these clients shows the change in 14 of 20 tables alone.
  "shifted": ("take", _shifted, (200, 160), dict(folds=2)),
  "noisy": ("keep", _noisy, _USUAL, _ENOUGH),
  "rare class": ("rare class", _rare, _USUAL, _ENOUGH),
  "three test clients": ("few clients", _numbers, (12, 3), {}),
  "one far": ("far client", _with_one_far, _USUAL, dict(num_rounds=20)),
  "slipped labels": ("gross errors", _slipped, _USUAL, dict(num_rounds=20)),
  "slipped features": ("gross errors", _slipped_features, _USUAL, dict(num_rounds=20)),
  "tiny clients": ("keep", _tiny, (120, 60), _ENOUGH),
  "short clients": ("own models", _short, _USUAL, _ENOUGH),
  "reversed fifth": ("own models", _reversed, _USUAL, {}),
  "reversed fifth, as advised": ("personalise", _reversed, _USUAL, dict(personalize="chosen")),
  "one class each": ("own models", _one_class, _USUAL, {}),
  "drifting": ("keep", _drifting, _USUAL, _ENOUGH),
  # These two were chosen when the rules were there.
  "levels": ("own models", _levels, _USUAL, _ENOUGH),
  "squared": ("not learned", _squared, _USUAL, _ENOUGH),
}


def write(name, seed, path):
  """Writes the table of a name; returns the decision and the flags of its runs."""
  decision, rows, numbers, flags = TABLES[name]
  rng = np.random.default_rng([seed, *name.encode()])
  lines = []
  for side, ids in enumerate(_ids(seed, *numbers)):
    for place, client in enumerate(ids):
      # Of one far client, which is trained on or tested on.
      x, y = rows(rng, place + (name == "one far" and side != seed % 2))
      lines += [",".join([client, *(f"{v:.3f}" for v in a), str(b)]) for a, b in zip(x, y)]
  header = ",".join(["client", *(f"x{i}" for i in range(x.shape[1])), "y"])
  path.write_text("\n".join([header, *lines]) + "\n")
  return decision, flags
