"""An exported model, tuned to one client's rows: by numpy or TensorFlow as the run would."""

import argparse
import dataclasses
import json
import subprocess
import sys

from helpers import commands
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import models
from tasks import preprocessing
from tasks.own import encoding
from tasks.own import features
from tasks.own import labels
from tff_superquantile import evaluation
from tff_superquantile.experiments import cli
from tff_superquantile.experiments.export import exported_model
from tff_superquantile.experiments.export import formats
from tff_superquantile.experiments.export import personalize
from tff_superquantile.experiments.run import run_files

_SETTINGS = dict(epochs=[2, 6], learning_rate=0.3, proximal_weight=0.2, batch_size=5, l2=0.01)
_X_SPEC = tf.TensorSpec([None, 4], tf.float32)
# By the number of classes, 0 for numbers.
_LABELS = {0: (), 2: ("no", "yes"), 3: ("a", "b", "c")}


def _export(folder, num_classes, name, hidden_size=0):
  """Exports a model with weights of chance; returns it, as `_Case` needs it."""
  y_spec = tf.TensorSpec([None], tf.int32 if num_classes else tf.float32)
  model = models.build_table_model(
    1, (_X_SPEC, y_spec), num_classes=num_classes, hidden_size=hidden_size
  )
  rng = np.random.default_rng(num_classes)
  weights = [rng.normal(size=np.shape(w)).astype(np.float32) for w in model.initial_weights[0]]
  scale = None if num_classes else (5.0, 2.0)
  exported = exported_model.ExportedModel(
    model,
    run_files.Weights(tuple(weights), ()),
    preprocessing.none(_X_SPEC),
    _LABELS[num_classes],
    scale,
  )
  folder.mkdir()
  formats.write(exported, name, folder)
  (folder / formats.CARD).write_text("# Model card\n")
  tuning = formats.Tuning(
    **_SETTINGS, label_scale=scale, num_classes=num_classes, num_trainable=len(weights)
  )
  (folder / formats.TUNING).write_text(json.dumps(dataclasses.asdict(tuning)))
  return exported


def _rows(num_classes, size=24, seed=3):
  """A client whose labels follow a rule of its own; x, and y as an export takes them."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[size, 4]).astype(np.float32)
  scores = x @ rng.normal(size=[4, max(1, num_classes)])
  y = scores.argmax(axis=1) if num_classes > 2 else (scores[:, 0] > 0).astype(int)
  return x, y if num_classes else 5.0 + 2.0 * scores[:, 0]


def _as_evaluation(exported, x, y, seed):
  """The weights of `evaluation.Personalizer` for a client with all these rows."""
  y = y.astype(np.int32) if exported.labels else ((y - 5.0) / 2.0).astype(np.float32)
  examples = evaluation.ClientExamples(["c"], x, y, np.array([0, len(y)]))
  how = evaluation.Personalizer(
    exported.model,
    evaluation.SplitExamples(examples, examples, 0),
    tff.learning.optimizers.build_sgdm(_SETTINGS["learning_rate"]),
    seed=0,
    batch_size=_SETTINGS["batch_size"],
    l2=_SETTINGS["l2"],
    proximal_strength=_SETTINGS["proximal_weight"],
    error="misclassification" if exported.labels else "rmse",
  )
  rng = np.random.default_rng(seed)
  epochs = how._chosen_epochs(exported.weights, x, y, _SETTINGS["epochs"], rng)
  assert epochs == 6
  return how.tune(exported.weights, x, y, epochs, rng)[0].trainable


def _weights_of(folder):
  """The kernel and the intercept of a model.npz; Keras counts their layers."""
  with np.load(folder / "model.npz") as arrays:
    return [arrays[name] for name in arrays if name.endswith(("/kernel", "/bias"))]


def _personalize(folder, rows, out):
  personalize.main(argparse.Namespace(label_column=None, export=folder, rows=rows, out=out))


@pytest.mark.parametrize("name", ["npz", "saved_model"])
@pytest.mark.parametrize("num_classes", list(_LABELS))
def test_an_export_is_tuned_as_the_run_tunes(tmp_path, capsys, num_classes, name):
  exported = _export(tmp_path / "export", num_classes, name)
  x, y = _rows(num_classes)
  np.savez(tmp_path / "rows.npz", x=x, y=y)
  _personalize(tmp_path / "export", tmp_path / "rows.npz", tmp_path / "own")
  assert "By its 24 rows the client keeps a model of its own." in capsys.readouterr().out
  assert "tuned to 24 rows of one client" in (tmp_path / "own/MODEL_CARD.md").read_text()
  expected = dataclasses.replace(
    exported, weights=run_files.Weights(tuple(_as_evaluation(exported, x, y, 0)), ())
  )
  if name == "npz":
    for found, array in zip(_weights_of(tmp_path / "own"), expected.weights.trainable):
      np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-5)
  else:
    serve = tf.saved_model.load(str(tmp_path / "own/saved_model")).signatures["serving_default"]
    for output, values in serve(features=tf.constant(x)).items():
      np.testing.assert_allclose(values, expected.outputs(x)[output], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["npz", "saved_model"])
@pytest.mark.parametrize("what", ["one row", "one class", "diverges", "noise"])
def test_the_shared_model_is_kept_where_its_own_is_no_better(tmp_path, capsys, name, what):
  _export(tmp_path / "export", 2, name)
  x, y = _rows(2, size=1 if what == "one row" else 60)
  if what == "noise":  # The shared model knows nothing, and there is nothing to know.
    x, y = 0.01 * x, np.arange(60) % 2
  if what == "one class":
    y = np.zeros(60, int)
  np.savez(tmp_path / "rows.npz", x=x, y=y)
  path = tmp_path / "export" / formats.TUNING
  rate = 1e9 if what == "diverges" else 1e-30 if what == "noise" else 0.3
  path.write_text(json.dumps(json.loads(path.read_text()) | dict(learning_rate=rate)))
  _personalize(tmp_path / "export", tmp_path / "rows.npz", tmp_path / "own")
  is_own = what == "one class"
  assert ("a model of its own" in capsys.readouterr().out) == is_own
  if not is_own:
    assert commands.contents(tmp_path / "own") == commands.contents(tmp_path / "export")


def _table(folder, name):
  """Exports a model of a table; returns the encoding and how to tune it."""
  columns = (
    features.Feature("age", "number", True, 40.0, 10.0),
    features.Feature("ward", "category", True, categories=("north", "south")),
    features.Feature("new", "boolean", False, 0.5, 0.5),
  )
  table = encoding.Encoding(columns, labels.Label("y", ("no", "yes")), {})
  spec = (tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None], tf.int32))
  model = models.build_table_model(1, spec, num_classes=2)
  weights = run_files.Weights(tuple(np.zeros_like(w) for w in model.initial_weights[0]), ())
  exported = exported_model.ExportedModel(
    model, weights, table.preprocessing(), ("no", "yes"), None, table.to_text()
  )
  folder.mkdir()
  formats.write(exported, name, folder)
  (folder / "MODEL_CARD.md").write_text("")
  tuning = formats.Tuning(**_SETTINGS, label_scale=None, num_classes=2, num_trainable=2)
  (folder / "tuning.json").write_text(json.dumps(dataclasses.asdict(tuning)))
  return table, tuning


_AS_NUMBERS = [[55, 0, 1], [np.nan, np.nan, 0], [1e9, -1, 1]]


def test_a_table_is_read_as_by_the_run_without_tensorflow(tmp_path):
  table, tuning = _table(tmp_path / "export", "npz")
  lines = ["new,y,ward,age,unused", "true,yes,north,55,1", "0,no,,,2", "1,yes,west,1e9,3"]
  (tmp_path / "rows.csv").write_text("\n".join([lines[0], *lines[1:] * 9]) + "\n")
  found = personalize.LinearModel(tmp_path / "export/model.npz", tuning)
  x, y = personalize.read_rows(tmp_path / "rows.csv", found, tuning, tmp_path / "export", {})
  raw = np.array(_AS_NUMBERS, float)
  np.testing.assert_array_equal(x, np.tile(table.encode(raw), (9, 1)))
  np.testing.assert_array_equal(x, found.inputs(np.tile(raw, (9, 1))))  # NumPy alone.
  assert y.tolist() == [1, 0, 1] * 9
  # As a command, which imports neither TensorFlow nor TFF.
  script = (
    "import sys; from tff_superquantile import commands;"
    "code = commands.main(['personalize', 'export', 'rows.csv', '--out=own']);"
    " print({'tensorflow', 'tensorflow_federated'} & {*sys.modules}); sys.exit(code)"
  )
  command = [sys.executable, "-c", script]
  result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
  assert result.returncode == 0, result.stderr
  assert result.stdout.splitlines() == [
    "By its 27 rows the client keeps a model of its own.",
    "Written: own",
    "set()",
  ]
  kernel, bias = _weights_of(tmp_path / "own")
  scores = x @ kernel + bias
  np.testing.assert_array_equal(scores[:, 0] > 0, y)


# Ways to write the rows of _AS_NUMBERS that a run reads alike, with flags.
_WRITTEN = {
  "marks of missing values": ("new,y,ward,age\n1,yes,north,55\n0,no,NA,n/a\n1,yes,west,1e9\n", {}),
  "blanks, semicolons": (
    "new;y;ward;age\n TRUE; yes; north;55,0\nFalse;no; NA ;?\n1.0;yes;west;1000000000,0\n",
    {},
  ),
  "a title, a code": (
    "Ward 7\n\nnew,y,ward,age\n1,yes,north,55\n0,no,-999,-999\n1,yes,west,1e9\n",
    dict(missing="-999"),
  ),
  "short rows, other names": (
    "new,z,ward,age\n1,yes,north,55\n0,no\n1,yes,west,1e9\n1,,west\n",
    dict(label_column="z", rows_without_label="drop"),
  ),
}


@pytest.mark.parametrize("how", _WRITTEN)
@pytest.mark.parametrize("name", ["npz", "saved_model"])
def test_clients_rows_are_read_by_the_runs_own_reader(tmp_path, how, name):
  text, asked = _WRITTEN[how]
  table, tuning = _table(tmp_path / "export", name)
  if how == "blanks, semicolons":  # The run's numbers had a decimal comma.
    first = dataclasses.replace(table.features[0], decimal=",")
    table = dataclasses.replace(table, features=(first, *table.features[1:]))
    (tmp_path / "export/columns.json").write_text(table.to_text())
  (tmp_path / "rows.csv").write_text(text)
  kind = personalize.LinearModel if name == "npz" else personalize.SavedModel
  model = kind(tmp_path / f"export/{'model.npz' if name == 'npz' else name}", tuning)
  # The run's own flags do as well.
  of_run = {n: v for n, v in asked.items() if n != "label_column"}
  for settings, given in (
    (tuning, asked),
    (dataclasses.replace(tuning, **of_run), {n: v for n, v in asked.items() if n not in of_run}),
  ):
    x, y = personalize.read_rows(tmp_path / "rows.csv", model, settings, tmp_path / "export", given)
    order = np.lexsort(np.nan_to_num(x, nan=-9.0).T)  # Short rows come last.
    raw = np.array(_AS_NUMBERS, float)
    expected = table.encode(raw) if name == "npz" else raw
    np.testing.assert_array_equal(
      x[order], expected[np.lexsort(np.nan_to_num(expected, nan=-9.0).T)]
    )
    assert sorted(y) == [0, 1, 1]
    assert np.isfinite(model.loss_and_gradient(model.weights, x, y)[0])


def test_columns_and_labels_that_the_model_does_not_know_are_named(tmp_path):
  _, tuning = _table(tmp_path / "export", "npz")
  model = personalize.LinearModel(tmp_path / "export/model.npz", tuning)
  for text, said in (
    ("new,y,ward\n1,yes,north\n", "Found no column 'age' in .*, which the model reads"),
    ("new,ward,age\n1,north,5\n", "Found no column 'y' of labels; .* by --label_column, or"),
    ("new^y^ward^age\n1^yes^north^5\n", "no column 'age' in .* by --separator"),
    ("new,y,ward,age\n1,yes,north,inf\n", "--missing, or leave the column out by --drop_columns"),
    ("new,y,ward,age\n1,perhaps,north,5\n", "classes that the model does not know"),
    ("new,y,ward,age\n1,,north,5\n", "1 of 1 rows without a label"),
    ("new,y,ward,age\n1,yes,north,old\n", "values of another kind in column 'age'"),
  ):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
      personalize.read_rows(tmp_path / "rows.csv", model, tuning, tmp_path / "export", {})


def test_a_remedy_is_one_of_the_command(tmp_path, capsys):
  _table(tmp_path / "export", "npz")
  (tmp_path / "rows.csv").write_text("new,y,ward,age\n1,yes,north,inf\n")
  flags = [str(tmp_path / "export"), str(tmp_path / "rows.csv"), f"--out={tmp_path / 'own'}"]
  assert cli.run(personalize, flags) == cli.USAGE_ERROR
  assert capsys.readouterr().err.endswith(": mend them, or name them in --missing.\n")
  assert cli.run(personalize, [*flags, "--drop_columns=age"]) == cli.USAGE_ERROR
  assert "--nolabel_column" not in capsys.readouterr().err


@pytest.mark.parametrize(
  "change, message",
  [
    (dict(rows="missing.npz"), "Found no file .*missing.npz; expected the rows"),
    (dict(rows="rows.csv"), "Found no columns.json in .*; expected the export of a run on a table"),
    (dict(rows="rows.txt"), r"expected a table \(.csv, .*\) .*, or a .npz file with the arrays"),
    (dict(rows="no_y.npz"), "Found x in .*; expected the arrays x and y"),
    (dict(rows="classes.npz"), "Found 3 examples and 2 labels"),
    (dict(rows="nan.npz"), "Found 3 examples and 2 labels"),
    (dict(rows="none.npz"), "Found 0 examples and 0 labels"),
    (dict(export="nowhere"), "Found no tuning.json in"),
    (dict(export="mlp"), "Found a model that is not linear"),
    (dict(export="card"), "Found neither model.npz nor saved_model/"),
    (dict(out="export"), "already there"),
  ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path, change, message):
  _export(tmp_path / "export", 2, "npz")
  _export(tmp_path / "mlp", 2, "npz", hidden_size=3)
  _export(tmp_path / "card", 2, "npz")
  (tmp_path / "card/model.npz").unlink()
  x = np.zeros([3, 4])
  for suffix in ("csv", "txt"):
    (tmp_path / f"rows.{suffix}").write_text("a,y\n1,0\n")
  np.savez(tmp_path / "rows.npz", x=x, y=[0, 1, 1])
  np.savez(tmp_path / "no_y.npz", x=x)
  np.savez(tmp_path / "classes.npz", x=x, y=[0, 1, 2])
  np.savez(tmp_path / "nan.npz", x=x, y=[0, 1, np.nan])
  np.savez(tmp_path / "none.npz", x=x[:0], y=[])
  paths = dict(export="export", rows="rows.npz", out="own") | change
  with pytest.raises((ValueError, OSError), match=message):
    _personalize(*(tmp_path / paths[name] for name in ("export", "rows", "out")))
  assert not (tmp_path / "own").exists()
