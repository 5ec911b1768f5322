"""Runs on a table of the user's own, from the command line."""

import json

import numpy as np
import pytest
import tensorflow as tf

_COLUMNS = ("--client_column=site", "--label_column=outcome")


def _write(path, *, shift=0.0, number=False):
  """Twelve clients; the sign of v tells the outcome, for a third of them less so."""
  rng = np.random.default_rng(0)
  lines = ["site,outcome,v,w"]
  for i in range(240):
    v, w = rng.normal(size=2)
    noise = rng.normal() * (2.0 if i % 3 == 0 else 0.1)
    outcome = 100 + 10 * (v + noise) if number else int(v + noise > 0)
    lines.append(f"s{i % 12},{outcome},{v + shift:.4f},{'ab'[w > 0]}")
  path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def own(lab):
  """Carries out commands with the flags of a table, in few rounds."""
  _write(lab.folder / "visits.csv")
  _write(lab.folder / "costs.csv", number=True)
  flags = (*_COLUMNS, f"--cache_dir={lab.cache_dir}", "--output_dir=own", "--num_rounds=30")

  def own(module, *arguments):
    return lab.bare(module, *flags, *arguments)

  return own


@pytest.fixture(scope="module")
def compared(own):
  result = own("sweep", "--experiment=own", "--data_dir=visits.csv", "--rounds_per_evaluation=10")
  assert result.code == 0, result.err
  return result


def test_comparison_says_what_it_found_then_trains_and_reports(lab, compared):
  found, _, rest = compared.out.partition("Experiment own into own/own_visits_linear")
  for line in ("visits, outcome (linear)", "240 examples of 12 clients (site)"):
    assert line in found
  train, test = (line.split() for line in found.splitlines()[-2:])
  assert train[:6] == ["train", "10", "200", "20", "20", "20"]
  assert test[:6] == ["test", "2", "40", "20", "20", "20"]
  assert "visits, outcome (linear)" in rest and "own/own_visits_linear/report.html" in rest
  report = (lab.folder / "own" / "own_visits_linear" / "report.md").read_text()
  assert "Misclassification error" in report
  for method in ("fed_avg", "superquantile_theta_0.5", "superquantile_theta_0.25"):
    run = lab.folder / "own" / "own_visits_linear" / method / "seed_0"
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["train"]["loss"]["mean"] < np.log(2) - 0.1
    assert "--clients_per_round=10" in (run / "flags.txt").read_text()


def _errors_outside(run, table, predict):
  """The test clients' errors by an exported model, and in the run's file."""
  rows = np.genfromtxt(table, delimiter=",", names=True, dtype=None, encoding="utf-8")
  raw = np.column_stack([rows["v"], rows["w"] == "b"]).astype(np.float32)
  errors = predict(raw, rows["outcome"])
  clients = np.genfromtxt(
    run / "test_clients.csv", delimiter=",", names=True, dtype=None, encoding="utf-8"
  )
  found = [np.mean(errors[rows["site"] == client]) for client in clients["client_id"]]
  return found, clients["error"]


def _export(lab, run, kind):
  out = lab.folder / f"exported_{kind}"
  result = lab.bare("export", str(run), f"--format={kind}", f"--out={out}", "--overwrite")
  assert result.code == 0, result.err
  return out


def test_exported_model_takes_rows_of_the_table(lab, compared):
  run = lab.folder / "own" / "own_visits_linear" / "superquantile_theta_0.5" / "seed_0"
  out = _export(lab, run, "tflite")
  assert (out / "labels.txt").read_text() == "0\n1\n"
  assert "v; w (0 a, 1 b)" in (out / "MODEL_CARD.md").read_text()
  interpreter = tf.lite.Interpreter(str(out / "model.tflite"))
  runner = interpreter.get_signature_runner()

  def predict(raw, outcome):
    return runner(features=raw)["probabilities"].argmax(axis=1) != outcome

  found, errors = _errors_outside(run, lab.folder / "visits.csv", predict)
  np.testing.assert_allclose(found, errors, atol=1e-9)


def test_exported_model_of_numbers_predicts_in_their_unit(lab, regression):
  run = lab.folder / "own" / "own_costs_mlp" / "fed_avg" / "seed_0"
  out = _export(lab, run, "keras")
  assert not (out / "labels.txt").exists()
  model = tf.keras.models.load_model(out / "model.keras")

  def predict(raw, outcome):
    return (model.predict(raw, verbose=0)["prediction"] - outcome) ** 2

  found, errors = _errors_outside(run, lab.folder / "costs.csv", predict)
  ratio = np.sqrt(found) / errors
  np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
  assert 10 < ratio[0] < 25  # The standard deviation of the labels.


@pytest.fixture(scope="module")
def regression(own):
  arguments = ("--task=own", "--data_dir=costs.csv", "--algorithm=fed_avg", "--model=mlp")
  result = own("train", *arguments)
  assert result.code == 0, result.err
  return result


def test_regression_reports_its_own_error(lab, regression):
  assert "label outcome: numbers, mean" in regression.out
  run = lab.folder / "own" / "own_costs_mlp" / "fed_avg" / "seed_0"
  metrics = json.loads((run / "metrics.json").read_text())
  # The noise has a standard deviation of 1.2 beside 1 of what can be predicted.
  assert 0.5 < metrics["test"]["error"]["mean"] < 0.95
  losses, errors = (
    np.genfromtxt(run / "test_clients.csv", delimiter=",", names=True)[name]
    for name in ("loss", "error")
  )
  np.testing.assert_allclose(errors, np.sqrt(2 * losses), rtol=1e-5)
  report = own_report(lab)
  assert report.count("Root mean squared error of test clients in standard deviations of the") == 1
  assert "nats" not in report


def own_report(lab):
  result = lab.bare("report", "--output_dir=own")
  assert result.code == 0, result.err
  return (lab.folder / "own" / "own_costs_mlp" / "report.md").read_text()


def test_another_table_of_that_name_is_not_compared(lab, own, compared):
  _write(lab.folder / "visits.csv", shift=1.0)
  arguments = ("--task=own", "--data_dir=visits.csv", "--theta=0.1")
  try:
    own("train", *arguments).assert_fails_with_a_sentence(2, "another table", "--output_dir")
    features = own("train", *arguments, "--features=v")
    features.assert_fails_with_a_sentence(2, "other columns")
  finally:
    _write(lab.folder / "visits.csv")
  assert own("train", "--task=own", "--data_dir=visits.csv", "--algorithm=fed_avg").code == 0


def test_private_run_says_nothing_of_training_clients(lab, own):
  arguments = ("--data_dir=visits.csv", "--epsilon=8", "--clip_norm=1", "--num_rounds=3")
  result = own("train", "--task=own", "--theta=0.5", *arguments)
  assert result.code == 0, result.err
  assert "40 examples of 2 clients that are not trained on" in result.out
  run = lab.folder / "own" / "own_visits_linear" / "superquantile_theta_0.5_epsilon_8" / "seed_0"
  assert json.loads((run / "manifest.json").read_text())["data"] is None
  described = lab.bare(
    "describe", "--task=own", *_COLUMNS, *arguments, f"--cache_dir={lab.cache_dir}"
  )
  assert ["train", "10", *["-"] * 6] in [line.split() for line in described.out.splitlines()]


def test_mistake_ends_a_comparison_before_its_runs(lab, own):
  result = own("sweep", "--experiment=own", "--data_dir=visits.csv", "--label_column=outcom")
  result.assert_refused("no column 'outcom'", "did you mean 'outcome'")


def test_any_task_is_described(lab):
  result = lab.bare("describe", f"--cache_dir={lab.cache_dir}")
  assert result.code == 0, result.err
  rows = {line.split()[0]: line.split() for line in result.out.splitlines()}
  assert rows["train"][1:7] == ["2500", "250000", "100", "100", "100", "10"]
  assert rows["test"][1:7] == ["500", "50000", "100", "100", "100", "10"]
