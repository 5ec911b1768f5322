"""Exported models give our logits where only TensorFlow is, and their cards say the truth."""

import ast
import dataclasses
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

from helpers import commands
from helpers import finished_runs
import numpy as np
import pytest
from scipy import special
import tensorflow as tf
import tensorflow_federated as tff

import tasks
from tasks import models
from tasks import preprocessing
from tasks.own import encoding
from tasks.own import features as own_features
from tasks.own import labels
from tasks.sent140 import features
from tasks.shakespeare import characters
from tff_superquantile import atomic_files
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.export import examples
from tff_superquantile.experiments.export import exported_model
from tff_superquantile.experiments.export import formats
from tff_superquantile.experiments.export import model_card
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

_PAGE = commands.ROOT / "docs" / "how_to" / "use_a_model.md"
_KEPT = finished_runs.KEPT
_TREE = "superquantile_theta_0.5_tree_epsilon_20"
_TASKS = (
  *("synthetic", "emnist_linear", "emnist_convnet", "sent140_linear", "sent140_lstm"),
  "shakespeare",
)
_LONG = " ".join(["good", "bad", ","] * 8)  # More words than the LSTM takes.
_TEXTS = ("@bob I had a GOOD day!", "good &amp; caf\xe9 &quot;day&quot;", "", "\t#???", _LONG)
# The vectors of what GloVe's files have, with a line end within a word.
_VECTORS = {
  "good": (1, -0.5, 2),
  "caf\xe9": (-1, 0.25, 0),
  ",": (3, 0, 1),
  "next\x85line": (5, 5, 5),
}
_OTHER_LINES = ". . 9 9 9\n 7 7 7\ngood 8 8 8\n"  # Two words, none, and one that was there.

_PACKAGES = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n"
_CARRY_OUT = """
import json, os, pathlib, sys
import numpy as np
found = {}
for folder in map(pathlib.Path, sys.argv[1:]):
  os.chdir(folder)
  for program in folder.glob("*.py"):
    names = {"rows": np.load("rows.npy")}
    exec(program.read_text(), names)
    found[f"{folder.name} {program.stem}"] = np.asarray(names["answers"]).tolist()
for module in ("tensorflow_federated", "tff_superquantile", "tasks"):
  assert module not in sys.modules
print(json.dumps(found))
"""


def _words():
  rows = [features.split_words(text) for text in _TEXTS]
  width = max(map(len, rows))
  return rows, np.array([row + [""] * (width - len(row)) for row in rows])


def _glove(folder):
  lines = [" ".join([word, *map(str, vector)]) + "\n" for word, vector in _VECTORS.items()]
  (folder / "glove.txt").write_bytes("".join([*lines, _OTHER_LINES]).encode())
  return folder / "glove.txt"


def _example(task):
  """(raw examples, the model's x) of a task, without the code that is tested."""
  rng = np.random.default_rng(7)
  if task == "synthetic":
    x = rng.normal(size=(6, 20)).astype(np.float32)
    return x, x
  if task.startswith("emnist"):
    pixels = rng.integers(0, 256, (5, 28, 28)).astype(np.uint8)
    return pixels, (pixels / 255).astype(np.float32)
  if task == "shakespeare":
    texts = ("Enter the nurse. ".ljust(80, "a"), "0z}[&'()- \xe9~ok".rjust(80, "\n"), "short?")
    raw = np.array([[""] * (80 - len(text)) + list(text) for text in texts])
    x = [[characters.LETTERS.find(c) + 1 if c else 0 for c in row] for row in raw.tolist()]
    return raw, np.float32(x)
  represent = features.represent_mean if task.endswith("linear") else features.represent_sequence
  rows, raw = _words()
  vectors = [np.float32([_VECTORS.get(word, (0, 0, 0)) for word in row]) for row in rows]
  return raw, np.stack([represent(v.reshape(-1, 3)) for v in vectors])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """A finished run of each task, with weights that are far from those at the start."""
  folder = tmp_path_factory.mktemp("runs")
  glove = _glove(folder)
  found = {}
  for name in _TASKS:
    task = tasks.get_task(name)
    _, x = _example(name)
    spec = preprocessing.none(tf.TensorSpec([None, *x.shape[1:]]))
    rng = np.random.default_rng(1)
    start, _ = task.build_model_for(spec, 0).initial_weights
    weights = [(w + 0.1 * rng.normal(size=w.shape)).astype(np.float32) for w in start]
    flags = dict(task=name, theta=0.5, seed=0)
    if name.startswith("sent140"):
      flags["glove"] = glove
    path = folder / name / "superquantile_theta_0.5" / "seed_0"
    run = run_folder.Run(finished_runs.write_folder(path, flags, weights), 0)
    found[name] = exported_model.load(run, run.config), spec
  return found


def _on_rows(code, rows):
  """A program of a card, of other rows than its own."""
  pattern = r"^(\w+) = np.(zeros|full|array\(\[means\]).*$"
  return re.sub(pattern, rf"\1 = {rows}", code, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def folders(runs, tmp_path_factory):
  """Each model in every format, with the programs of its cards on raw examples."""
  found = {}
  for name, (model, _) in runs.items():
    folder = found[name] = tmp_path_factory.mktemp("out") / name
    folder.mkdir()
    raw, _ = _example(name)
    np.save(folder / "rows.npy", raw)
    rows = "rows" if raw.dtype.kind != "U" else "np.char.encode(rows, 'utf-8').astype(object)"
    for kind in formats.FORMATS:
      formats.write(model, kind, folder)
      if code := examples.code(model, kind):
        (folder / f"{kind}.py").write_text(_on_rows(code, rows))
  return found


@pytest.fixture(scope="module")
def answers(folders, tmp_path_factory):
  """The probabilities by task and format, in a process without this project."""
  result = subprocess.run(
    # An environment may import us whenever Python starts, but not without its site's files (-S).
    [sys.executable, "-S", "-c", _PACKAGES + _CARRY_OUT, *map(str, folders.values())],
    cwd=tmp_path_factory.mktemp("elsewhere"),
    env={**commands.os.environ, "PYTHONPATH": "", "TF_USE_LEGACY_KERAS": "1"},
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", _TASKS)
def test_programs_of_cards_give_our_answers_where_only_tensorflow_is(answers, runs, name):
  model, spec = runs[name]
  _, x = _example(name)
  ours = tasks.get_task(name).build_model_for(spec, 3)
  logits = ours.predict_on_batch((model.weights.trainable, ()), x, training=False).numpy()
  if logits.ndim == 1 or logits.shape[1] == 1:
    logits = np.stack([0 * logits.reshape(-1), logits.reshape(-1)], axis=1)
  expected = special.softmax(logits.astype(np.float64), axis=1)
  kinds = {key.partition(" ")[2] for key in answers if key.startswith(f"{name} ")}
  assert kinds == {"saved_model", "keras", "tflite", *(["npz"] if name == "synthetic" else [])}
  for kind in kinds:
    np.testing.assert_allclose(answers[f"{name} {kind}"], expected, atol=1e-6)


def test_batches_may_be_of_one_example_or_of_none(folders, runs):
  raw, x = _example("emnist_convnet")
  logits = runs["emnist_convnet"][0].outputs(x)["logits"]
  folder = folders["emnist_convnet"]
  serve = tf.saved_model.load(str(folder / "saved_model")).signatures["serving_default"]
  for call in (serve, tf.keras.models.load_model(folder / "model.keras")):
    assert call(tf.constant(raw[:0]))["probabilities"].shape == (0, 62)
    np.testing.assert_allclose(call(tf.constant(raw[1:2]))["logits"], logits[1:2], atol=1e-5)


@pytest.mark.parametrize("name", _TASKS)
def test_arrays_and_labels(folders, runs, name):
  model, _ = runs[name]
  arrays = dict(np.load(folders[name] / "model.npz"))
  labels = (folders[name] / formats.LABELS).read_text().splitlines()
  assert arrays.pop("labels").tolist() == labels == list(model.labels)
  assert [a.shape for a in arrays.values()] == [w.shape for w in model.weights.trainable]
  for array, weights in zip(arrays.values(), model.weights.trainable):
    np.testing.assert_array_equal(array, weights)
    assert array.dtype == np.float32
  assert list(arrays)[-1].startswith("dense/")


def test_labels_are_those_of_the_data(runs):
  labels = runs["emnist_linear"][0].labels
  assert len(set(labels)) == 62 and [labels[i] for i in (0, 10, 35, 36)] == ["0", "A", "Z", "a"]
  assert runs["sent140_lstm"][0].labels == ("negative", "positive")


def test_examples_of_the_page(folders, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "model").symlink_to(folders["synthetic"])
  blocks = re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
  for block in blocks:
    exec(block, {})
  answers = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines()]
  assert len(answers) == 2
  for answer in answers:
    assert len(answer) == 3 and set(answer) <= set("0123456789")


def _answers(code, folder, monkeypatch, rows, values):
  """What a program of a card says of rows in the folder of an export."""
  monkeypatch.chdir(folder)
  names = {"rows": values}
  exec(_on_rows(code, rows), names)
  return names["answers"]


def _exported(model, weights=((), ())):
  spec = preprocessing.none(model.input_spec[0])
  return exported_model.ExportedModel(model, run_files.Weights(*weights), spec, ("a", "b"))


def _functional(predict, weights=((), ())):
  return tff.learning.models.FunctionalModel(
    initial_weights=weights,
    predict_on_batch_fn=tf.function(predict),
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(output),
    input_spec=(tf.TensorSpec([None, 2, 2], tf.float32), tf.TensorSpec([None], tf.int32)),
  )


def test_a_users_model_has_all_formats_that_suffice(tmp_path):
  def predict(weights, x, training=True):
    (factor,), (shift,) = weights
    assert not training
    return tf.linalg.slogdet(x)[1][:, tf.newaxis] * factor + shift

  weights = ((np.float32([2.0, -1.0]),), (np.float32([0.5, 4.0]),))
  model = _exported(_functional(predict, weights), weights)
  formats.write(model, "npz", tmp_path)
  names = ["labels", "non_trainable_0", "trainable_0"]
  assert sorted(np.load(tmp_path / "model.npz")) == names
  formats.write(model, "saved_model", tmp_path)
  serve = tf.saved_model.load(str(tmp_path / "saved_model")).signatures["serving_default"]
  logits = serve(features=np.float32([[[2, 0], [0, 3]]]))["logits"]
  np.testing.assert_allclose(logits, [np.log(6) * weights[0][0] + weights[1][0]], rtol=1e-6)
  with pytest.raises(ValueError, match="without Keras layers.*another --format"):
    formats.write(model, "keras", tmp_path)
  with pytest.raises(ValueError, match=r"do not suffice for this model \(LogMatrixDeterminant\)"):
    formats.write(model, "tflite", tmp_path)
  assert not [*tmp_path.glob("*.tflite"), *tmp_path.glob("*.keras")]


def test_a_functional_model_of_keras_is_exported():
  layers = [tf.keras.layers.Flatten(input_shape=(2, 2)), tf.keras.layers.Dense(1)]
  spec = (tf.TensorSpec([None, 2, 2], tf.float32), tf.TensorSpec([None], tf.int32))
  loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
  keras = tf.keras.Sequential(layers)
  model = tff.learning.models.functional_model_from_keras(keras, loss, spec)
  rng = np.random.default_rng(0)
  kernel, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 1), (1,)))
  x = rng.normal(size=(3, 2, 2)).astype(np.float32)
  score = x.reshape(3, 4) @ kernel + bias
  got = _exported(model, ((kernel, bias), ())).to_module().serve(x)
  np.testing.assert_allclose(got["logits"], score, rtol=1e-5)
  np.testing.assert_allclose(got["probabilities"][:, 1], 1 / (1 + np.exp(-score[:, 0])), rtol=1e-5)


def test_probabilities_of_extreme_logits():
  def predict(weights, x, training=True):
    del weights, training
    return x[:, 0, 0]

  serve = _exported(_functional(predict)).to_module().serve
  x = np.zeros((3, 2, 2), np.float32)
  x[:, 0, 0] = 60.0, -60.0, np.nan
  probabilities = serve(x)["probabilities"].numpy()
  assert 0.0 < probabilities[0, 0] == probabilities[1, 1] < 1e-25
  assert np.isnan(probabilities[2]).all()


# Cards.


def _write(output_dir, method, errors, sizes, **flags):
  """Writes a run whose test clients have these errors."""
  path = finished_runs.write_run(output_dir, method, 0)
  rows = [f"writer {i},{n},0.5,{e}\n" for i, (n, e) in enumerate(zip(sizes, errors))]
  (path / "test_clients.csv").write_text("client_id,num_examples,loss,error\n" + "".join(rows))
  with open(path / "flags.txt", "a") as stream:
    stream.writelines(f"--{name}={value}\n" for name, value in flags.items())
  return run_folder.Run(path, 0)


def _card(run, labels=("no", "yes")):
  return model_card.build(run, raw="numbers", labels=labels)


def test_card_describes_the_errors_of_clients_of_few_and_many_examples(tmp_path):
  errors = np.tile([0.5, 0.2, 0.2, 0.3, 0.1, 0.6], 4)
  run = _write(tmp_path, "superquantile_theta_0.5", errors, 4 * [10, 20, 30, 40, 50, 60])
  _write(tmp_path, "fed_avg", errors, 24 * [10])  # Which a report compares, and no card.
  card = _card(run)
  p10, p50, p90 = (f"{100 * np.percentile(errors, q):.1f}" for q in (10, 50, 90))
  said = (
    f"31.7 % on average, p10 {p10} %, p50 {p50} %, p90 {p90} %, worst 10 % 60.0 %, of 24 clients"
  )
  assert said in card
  (by_size,) = finished_runs.markdown_tables(card)
  assert by_size[1:] == [
    ["10 to 20", "8", "35.0"],
    ["30 to 40", "8", "25.0"],
    ["50 to 60", "8", "35.0"],
  ]
  assert "Guarantee: None" in card and "theta: 0.5" in card and "Seed 0" in card


def test_card_says_what_a_reader_needs_beside_errors(tmp_path):
  run = _write(tmp_path, "fed_avg", [0.1, 0.2, 0.6], [7, 8, 9], data_dir="/home/x/mines.csv")
  atomic_files.write_json(run.path / "manifest.json", {"data": "0123abc"})
  ids = run.clients("test")["client_id"]
  columns = {"client_id": ids, "num_examples": [7, 8, 9], "loss": [1, 1, 1], "error": [0.0, 0, 0.3]}
  columns["balanced_error"] = [0.5, 0.0, np.nan]
  constant = kept.Reference("'no', the most frequent class", columns, {})
  found = kept.References("print", {kept.CONSTANT: constant}, {})
  kept.write(run.path.parent.parent, 0, found)
  run_files.write_clients(
    run.path / "test_clients.csv",
    {**run.clients("test"), "balanced_error": [0.2, 0.4, 0.9]},
  )
  pooled = {"error": 0.31, "recall": {"0": 0.9, "1": 0.25}, "share": {"0": 0.94, "1": 0.06}}
  atomic_files.write_json(run.path / "metrics.json", {"test": {"pooled": pooled}})
  card = _card(run_folder.Run(run.path, 0))
  for said in (
    "Data file: mines.csv",
    "Digest of the data: 0123abc",
    "the error is 30.0 % on average, and 60.0 % for the worst of them",
    "Cross-entropy in nats: 0.500 on average, 0.500 for the worst client, of 3 clients",
    "90.0 % for the worst client, of 3 clients",
    "Misclassification error in %: 30.0 % on average, 60.0 % for the worst client, of 3 clients; of"
    " all examples together 31.0 %",
    "no: 94.0 % of the examples, of which 90.0 % are found (recall)",
    "yes: 6.0 % of the examples, of which 25.0 % are found (recall)",
    "Answer: 'no', the most frequent class",
    "Misclassification error in %: 10.0 % on average, 30.0 % for the worst client, of 3 clients",
    "Balanced error in %: 25.0 % on average, 50.0 % for the worst client, of 2 clients",
    "## Intended use and limits",
    "The numbers are of 3 test clients",
  ):
    assert said in card
  assert "/home/x" not in card


def test_card_of_equal_sizes_and_of_no_clients(tmp_path):
  run = _write(tmp_path, "fed_avg", [0.1, 0.2, 0.3], [7, 7, 7])
  (by_size,) = finished_runs.markdown_tables(_card(run))
  assert by_size[1:] == [["7", "3", "20.0"]]
  (run.path / "test_clients.csv").unlink()
  assert "no errors of test clients" in _card(run_folder.Run(run.path, 0))


def test_card_of_a_private_run_says_what_its_ledger_covers(tmp_path):
  path = shutil.copytree(_KEPT / "synthetic", tmp_path / "synthetic") / _TREE / "seed_0"
  card = _card(run_folder.Run(path, 0), labels=tuple("0123456789"))
  ledger = (path / "privacy.json").read_bytes()
  assert hashlib.sha256(ledger).hexdigest() in card
  assert "epsilon = 20, delta = 0.01, after 20 rounds" in card
  for sentence in (
    *json.loads(ledger)["guarantee"].values(),
    *json.loads(ledger)["not_covered"].values(),
  ):
    assert sentence.split(";")[0].split("(")[0] in card
  assert "FedAvg" not in card.split("## Privacy")[0]
  (path / "privacy.json").unlink()
  with pytest.raises(ValueError, match="no privacy.json"):
    _card(run_folder.Run(path, 0), labels=tuple("0123456789"))


# The command.


@pytest.fixture(scope="module")
def results(lab):
  shutil.copytree(_KEPT / "synthetic", lab.folder / "results" / "synthetic")
  return pathlib.Path("results/synthetic")


def _export(lab, run, *arguments):
  return lab.bare("export", str(run), *arguments)


def test_command_writes_all_or_nothing(lab, results):
  run = results / "superquantile_theta_0.5" / "seed_0"
  result = _export(lab, run, "--format=npz", "--out=sub/model")
  assert (result.code, result.out) == (0, "Written: sub/model\n")
  assert re.fullmatch(r"Exporting .*/seed_0\n", result.err)
  out = lab.folder / "sub" / "model"
  beside = ("MODEL_CARD.md", "labels.txt", "tuning.json")
  assert sorted(commands.contents(out)) == sorted((*beside, "model.npz"))
  weights = run_files.read_weights(lab.folder / run / "weights.npz").trainable
  np.testing.assert_array_equal(np.load(out / "model.npz")["dense/kernel"], weights[0])
  before = commands.contents(out)
  _export(lab, run, "--out=sub/model").assert_refused("sub/model already there", "another --out")
  assert commands.contents(out) == before
  assert [path.name for path in out.parent.iterdir()] == ["model"]


def _number(name, mean, std, has_missing=False):
  return own_features.Feature(name, "number", has_missing, mean, std)


_WARD = own_features.Feature("ward", "category", True, categories=("a", "b", "c"))
_EVERYDAY = (_number("age", 41.3, 17.2, True), _WARD, _number("year", 2003.4, 5.2))
_FAR = {
  "time": _number("time", 1.7e9 + 0.25, 3000.0),
  "tiny": _number("tiny", 1e-42, 1e-43),
  "huge": _number("huge", 1e50, 1e49, True),
}


def _encoding(columns):
  return encoding.Encoding(tuple(columns), labels.Label("y"), {})


def _of_features(columns, hidden_size=0):
  """A model of a table with these columns, and rows of it with the logits of the run."""
  rng = np.random.default_rng(3)
  way = _encoding(columns).preprocessing()
  model = models.build_table_model(0, way.input_spec, num_classes=2, hidden_size=hidden_size)
  weights = [rng.normal(size=w.shape).astype(np.float32) for w in model.initial_weights[0]]
  exported = exported_model.ExportedModel(
    model, run_files.Weights(tuple(weights), ()), way, ("no", "yes")
  )
  raw = np.column_stack([rng.normal(size=50) * f.std + f.mean for f in columns])
  for i, feature in enumerate(columns):
    if feature.categories:
      raw[:, i] = rng.choice([-1, *range(len(feature.categories)), 7], 50)
  raw[::7] = np.nan
  x = _encoding(columns).encode(np.where(raw == 7, -1, raw))  # Either is that of no category.
  if hidden_size:
    x = np.maximum(x @ weights[0] + weights[1], 0)
  return exported, raw, x @ weights[-2] + weights[-1]


@pytest.mark.parametrize("far", [(), ("time",), ("tiny",), ("huge",), tuple(_FAR)], ids=str)
@pytest.mark.parametrize("kind", sorted(formats.FORMATS))
def test_programs_of_cards_give_the_runs_answers_to_a_table(tmp_path, monkeypatch, kind, far):
  """Also of columns that float32 does not hold."""
  exported, raw, logits = _of_features((*_EVERYDAY, *(_FAR[name] for name in far)))
  if kind == "tflite" and far:
    with pytest.raises(ValueError, match="^Found .* of the model as tflite that differ by"):
      formats.write(exported, kind, tmp_path)
    return
  formats.write(exported, kind, tmp_path)
  rows = "rows.astype(np.float32)" if kind == "tflite" else "rows"
  found = _answers(examples.code(exported, kind), tmp_path, monkeypatch, rows, raw)
  second = 1 / (1 + np.exp(-logits.astype(float)[:, 0]))
  atol = 1e-4 if kind == "tflite" else 1e-5
  np.testing.assert_allclose(found, np.column_stack([1 - second, second]), atol=atol)


def test_an_export_that_gives_other_answers_is_not_written(tmp_path):
  exported, _, _ = _of_features(_EVERYDAY)
  wrong = _encoding((_number("age", 41.2, 17.2, True), *_EVERYDAY[1:])).preprocessing()
  swapped = dataclasses.replace(exported.preprocessing, apply=wrong.apply)
  for kind in ("saved_model", "keras", "tflite"):
    with pytest.raises(ValueError, match=f"Found .* of the model as {kind} that differ by"):
      formats.write(dataclasses.replace(exported, preprocessing=swapped), kind, tmp_path)


def test_an_export_whose_answers_are_not_numbers_is_not_written(tmp_path):
  exported, _, _ = _of_features(_EVERYDAY)
  apply = exported.preprocessing.apply
  nothing = dataclasses.replace(exported.preprocessing, apply=lambda *x: apply(*x) * np.nan)
  with pytest.raises(ValueError, match="that differ by nan"):
    formats.write(dataclasses.replace(exported, preprocessing=nothing), "saved_model", tmp_path)


@pytest.mark.parametrize("hidden_size", [0, 8])
@pytest.mark.parametrize("kind", ["saved_model", "keras", "npz"])
def test_labels_that_are_times_are_predicted_as_wide(tmp_path, monkeypatch, kind, hidden_size):
  exported, raw, scores = _of_features(_EVERYDAY, hidden_size)
  exported = dataclasses.replace(exported, labels=(), label_scale=(1.7e9, 100.0))
  formats.write(exported, kind, tmp_path)
  found = _answers(examples.code(exported, kind), tmp_path, monkeypatch, "rows", raw)
  expected = 1.7e9 + 100.0 * np.float64(scores).reshape(-1)
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-2)
  with pytest.raises(ValueError, match="Found prediction of the model as tflite that differ"):
    formats.write(exported, "tflite", tmp_path)


def test_command_ends_with_one_sentence(lab, results):
  run = results / "fed_avg" / "seed_0"
  _export(lab, "nowhere", "--out=x").assert_refused("Found no finished run in nowhere")
  _export(lab, run, "--out=x", "--format=onnx").assert_refused("--format=onnx", "saved_model")
  _export(lab, run).assert_refused("Found no --out")
  copies = [
    lab.folder / shutil.copytree(lab.folder / run, lab.folder / f"r/synthetic/{name}/seed_0")
    for name in ("unfinished", "damaged", "other", "private")
  ]
  unfinished, damaged, other, private = copies
  (unfinished / "metrics.json").unlink()
  _export(lab, unfinished, "--out=x").assert_refused("at round 20 of 20", "flags.txt")
  (damaged / "weights.npz").write_bytes((damaged / "weights.npz").read_bytes()[:-300])
  # These are seen while it exports, which it says before.
  _export(lab, damaged, "--out=x").assert_fails_with_a_sentence(2, "weights.npz is damaged")
  (other / "flags.txt").write_text("--task=emnist_linear\n--exact_siblings=refused\n")
  unfit = _export(lab, other, "--out=x")
  unfit.assert_fails_with_a_sentence(2, "Found weights of shapes", "(784, 62)")
  with open(private / "flags.txt", "a") as stream:
    stream.write("--epsilon=1\n")
  _export(lab, private, "--out=x").assert_fails_with_a_sentence(2, "no privacy.json")
  assert not (lab.folder / "x").exists()


def test_words_need_their_vectors(tmp_path):
  weights = [np.zeros(3, np.float32)]
  flags = dict(task="sent140_linear", glove=tmp_path / "missing.txt")
  run = run_folder.Run(finished_runs.write_folder(tmp_path / "a/b/seed_0", flags, weights), 0)
  with pytest.raises(ValueError, match="--glove"):
    exported_model.load(run, run.config)
  moved = finished_run.config(run, {"glove": str(_glove(tmp_path))})
  model = exported_model.load(run, moved)
  assert model.preprocessing.x_spec.shape == [None, 3]
