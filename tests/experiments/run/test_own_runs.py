"""Runs on a table of the user's own, from the command line."""

import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

_COLUMNS = ("--client_column=site", "--label_column=outcome")


def _write(path, *, shift=0.0, number=False, wards="ab", prefix="z"):
  """Twelve clients; the sign of v tells the outcome, for a third of them less so."""
  rng = np.random.default_rng(0)
  lines = ["site,outcome,v,w"]
  for i in range(240):
    v, w = rng.normal(size=2)
    noise = rng.normal() * (2.0 if i % 3 == 0 else 0.1)
    outcome = 100 + 10 * (v + noise) if number else int(v + noise > 0)
    lines.append(f"{prefix}{i % 12},{outcome},{v + shift:.4f},{wards[int(w > 0)]}")
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
  shutil.rmtree(out, ignore_errors=True)
  result = lab.bare("export", str(run), f"--format={kind}", f"--out={out}")
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


def _read(path):
  return np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding="utf-8")


def _inputs_by_hand(run, training_table, later_table):
  """The later rows' x, by the training clients' means: v standardised, w one-hot."""
  train, later = _read(training_table), _read(later_table)
  known = train[np.isin(train["site"], _read(run / "train_clients.csv")["client_id"])]["v"]
  v = (later["v"] - known.mean()) / known.std()
  return later, np.column_stack([v, later["w"] == "a", later["w"] == "b"])


def _evaluate(lab, run, table, *flags):
  out = lab.folder / f"of_{table.stem}.csv"
  out.unlink(missing_ok=True)
  flags = (f"--data_dir={table}", f"--out={out}", *flags)
  result = lab.bare("evaluate", str(run), *flags)
  assert result.code == 0, result.err
  return _read(out)


def test_evaluation_of_a_later_table_is_that_of_numpy(lab, compared):
  run = lab.folder / "own" / "own_visits_linear" / "fed_avg" / "seed_0"
  table = lab.folder / "later.csv"
  _write(table, shift=3.0, wards="ca", prefix="w")  # An unknown category comes first.
  later, x = _inputs_by_hand(run, lab.folder / "visits.csv", table)
  weights = np.load(run / "weights.npz")
  scores = (x @ weights["trainable_0"] + weights["trainable_1"])[:, 0]
  signs = np.where(later["outcome"] == 1, 1, -1)
  found = _evaluate(lab, run, table)
  assert len(found) == 2 and set(found["client_id"]) <= set(later["site"])
  for one in found:
    own = later["site"] == one["client_id"]
    loss = np.log1p(np.exp(-signs * scores))[own].mean()
    np.testing.assert_allclose(one["loss"], loss, rtol=1e-4)
    np.testing.assert_allclose(one["error"], (signs * scores < 0)[own].mean(), atol=1e-6)
  assert found["error"].min() > 0.25  # Standardised by its own mean, it would be like visits.csv.
  # A single client that came later.
  head, *lines = table.read_text().splitlines(keepends=True)
  alone = lab.folder / "one_later.csv"
  alone.write_text(
    head + "".join(line for line in lines if line.startswith(f"{found['client_id'][0]},"))
  )
  np.testing.assert_allclose(
    _evaluate(lab, run, alone, "--split=all")["error"], found["error"][0], atol=1e-9
  )


def test_evaluation_says_what_is_unknown_and_what_has_moved(lab, compared):
  run = lab.folder / "own" / "own_visits_linear" / "fed_avg" / "seed_0"
  table = lab.folder / "later_values.csv"
  _write(table, shift=3.0, wards="ca", prefix="w")
  later = _read(table)
  features = json.loads((run / "columns.json").read_text())["features"]
  (v,) = [feature for feature in features if feature["name"] == "v"]
  moved = (later["v"].mean() - v["mean"]) / v["std"]
  assert moved > 1
  for split in ("test", "all"):
    result = lab.bare("evaluate", str(run), f"--data_dir={table}", f"--split={split}")
    assert result.code == 0, result.err
    for said in (
      f"Column w: {np.sum(later['w'] == 'c')} rows of unknown categories, all zeros to the model",
      f"Column v: a mean {moved:.1f} standard deviations above the run's",
    ):
      (line,) = [line for line in result.out.splitlines() if said in line]
      assert "among the 240 examples" in line
  own = lab.bare("evaluate", str(run), "--split=all").out
  assert "unknown categories" not in own and "standard deviations" not in own


def test_evaluation_reads_rows_otherwise_and_advises_no_flag_that_it_lacks(lab, compared):
  run = lab.folder / "own" / "own_visits_linear" / "fed_avg" / "seed_0"
  _write(lab.folder / "good.csv", prefix="w")
  good = (lab.folder / "good.csv").read_text()
  expected = _evaluate(lab, run, lab.folder / "good.csv", "--split=all")
  row = good.splitlines()[1].split(",")
  far, unlabelled = f"{row[0]},{row[1]},-999,b\n", f"{row[0]},,{row[2]},b\n"
  other = good.replace("outcome", "result", 1).replace(",", "^") + unlabelled.replace(",", "^")
  other += f",1,{row[2]},b\n".replace(",", "^")
  (lab.folder / "other_rows.csv").write_text(other)
  flags = ("--separator=^", "--label_column=result", "--split=all")
  flags += ("--rows_without_label=drop", "--rows_without_client=drop")
  found = _evaluate(lab, run, lab.folder / "other_rows.csv", *flags)
  assert found.tolist() == expected.tolist()
  (lab.folder / "far.csv").write_text(good + far)
  marked = _evaluate(lab, run, lab.folder / "far.csv", "--split=all", "--missing=-999")
  assert marked["num_examples"].sum() == expected["num_examples"].sum() + 1
  for text, said in (
    (good + unlabelled, "rows without a label .*: mend them, or .* by --rows_without_label=drop"),
    (good + far.replace("-999", "inf"), "1 infinite .*: mend them, or name them in --missing"),
    (good.replace("site", "place", 1), "no column 'site' of clients; .*: rename one"),
    (good.replace(",", "^"), "no column 'v' .*: name the character .* by --separator, .*"),
    ("site,outcome,v,w\nw0,1,0,a\nw0,0,0,b\n", ".*: measure .* --split=all, or get more data"),
  ):
    (lab.folder / "bad.csv").write_text(text)
    result = lab.bare("evaluate", str(run), "--data_dir=bad.csv")
    assert result.code == 2 and re.search(f"Error: Found .*{said}[.]\n$", result.err), result.err


def test_evaluation_of_later_numbers_is_that_of_numpy(lab, regression):
  run = lab.folder / "own" / "own_costs_mlp" / "fed_avg" / "seed_0"
  table = lab.folder / "later_costs.csv"
  _write(table, shift=3.0, number=True, wards="ba", prefix="w")
  later, x = _inputs_by_hand(run, lab.folder / "costs.csv", table)
  v, a, w, b = (np.load(run / "weights.npz")[f"trainable_{i}"] for i in range(4))
  predicted = (np.maximum(x @ v + a, 0) @ w + b)[:, 0]
  costs = _read(lab.folder / "costs.csv")
  known = costs[np.isin(costs["site"], _read(run / "train_clients.csv")["client_id"])]["outcome"]
  residuals = predicted - (later["outcome"] - known.mean()) / known.std()
  for one in _evaluate(lab, run, table):
    own = residuals[later["site"] == one["client_id"]]
    np.testing.assert_allclose(one["error"], np.sqrt(np.mean(own**2)), rtol=1e-4)
    np.testing.assert_allclose(one["loss"], np.mean(own**2) / 2, rtol=1e-4)


def test_export_needs_no_table(lab, compared):
  run = lab.folder / "own" / "own_visits_linear" / "superquantile_theta_0.5" / "seed_0"
  before = (_export(lab, run, "npz") / "MODEL_CARD.md").read_text()
  table = lab.folder / "visits.csv"
  table.rename(lab.folder / "moved.csv")
  try:
    assert (_export(lab, run, "npz") / "MODEL_CARD.md").read_text() == before
  finally:
    (lab.folder / "moved.csv").rename(table)


def test_a_run_that_lost_its_columns_says_so(lab, own, compared):
  run = lab.folder / "lost" / "own_visits_linear" / "fed_avg" / "seed_0"
  shutil.copytree(lab.folder / "own" / "own_visits_linear" / "fed_avg" / "seed_0", run)
  (run / "columns.json").unlink()
  said = "Found no columns.json in", "bring the file back, or train again"
  lab.bare("evaluate", str(run)).assert_refused(*said)
  asked = ("train", "--task=own", f"--data_dir={lab.folder / 'visits.csv'}", "--theta=0.5")
  own(*asked, f"--initial_weights={run}").assert_fails_with_a_sentence(2, *said)


def test_run_that_starts_from_another_takes_its_columns_over(lab, own, compared):
  start = lab.folder / "own" / "own_visits_linear" / "fed_avg" / "seed_0"
  table = lab.folder / "other.csv"
  _write(table, shift=3.0, wards="cb")
  asked = ("train", "--task=own", f"--data_dir={table}", f"--initial_weights={start}")
  asked += ("--theta=0.5", "--run_name=tuned", "--num_rounds=1")
  own(*asked, "--features=v").assert_refused("--features=v in place of v,w")
  result = own(*asked)
  assert result.code == 0, result.err
  assert "rows of unknown categories" in result.out
  run = lab.folder / "own" / "own_other_linear" / "tuned" / "seed_0"
  assert (run / "columns.json").read_text() == (start / "columns.json").read_text()
  # It goes on with these: with those of the table the weights would not even fit.
  result = own(*asked, "--num_rounds=2")
  assert result.code == 0, result.err
  assert (run / "columns.json").read_text() == (start / "columns.json").read_text()


def test_later_table_s_clients_that_have_trained_are_measured_apart(lab, compared):
  run = lab.folder / "own" / "own_visits_linear" / "fed_avg" / "seed_0"
  rows = [line.split(",") for line in (lab.folder / "visits.csv").read_text().splitlines()]
  new = {"z0": "y0", "z5": "y5", "z7": "y7"}  # These are others in the later table.
  kept = [row for i, row in enumerate(rows) if row[0] != "z3" or i < 60]  # With few examples.
  later = [",".join([new.get(site, site), *rest]) for site, *rest in kept]
  (lab.folder / "again.csv").write_text("\n".join(later) + "\n")
  flags = ("--data_dir=again.csv", "--split=all", "--min_examples_per_client=6", "--out=again.out")
  result = lab.bare("evaluate", str(run), *flags)
  assert result.code == 0, result.err
  found = _read(lab.folder / "again.out")
  in_run = {s: set(_read(run / f"{s}_clients.csv")["client_id"]) for s in ("train", "test")}
  sites = {line.split(",")[0] for line in later[1:]} - {"z3"}
  assert set(found["client_id"]) == sites
  for client, place in zip(found["client_id"], found["place"]):
    assert place == next((split for split, ids in in_run.items() if client in ids), "")
  trained = sites & in_run["train"]
  assert 0 < len(trained) < len(sites)
  assert f"are no forecast for others, {len(trained)}:" in result.out
  _, others, its = result.out.split("that have ")
  for text, group in ((others, sites - trained), (its, trained)):
    mean = np.mean([e for e, client in zip(found["error"], found["client_id"]) if client in group])
    (row,) = (line.split() for line in text.splitlines() if line.split()[:1] == ["mean"])
    assert row[1] == f"{100 * mean:.1f}"


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
  arguments = (*arguments, "--output_dir=alone")  # Not beside exact runs of the same clients.
  result = own("train", "--task=own", "--theta=0.5", *arguments)
  assert result.code == 0, result.err
  assert "40 examples of 2 clients that are not trained on" in result.out
  run = lab.folder / "alone" / "own_visits_linear" / "superquantile_theta_0.5_epsilon_8" / "seed_0"
  assert json.loads((run / "manifest.json").read_text())["data"] is None
  table, test = _read(lab.folder / "visits.csv"), _read(run / "test_clients.csv")["client_id"]
  [v, _] = json.loads((run / "columns.json").read_text())["features"]
  np.testing.assert_allclose(v["mean"], table[np.isin(table["site"], test)]["v"].mean())
  # Its columns are exact statistics of clients who would train in another split.
  start = (f"--initial_weights={run}", "--task=own", "--theta=0.5", *arguments)
  shared = own("train", *start, "--split_seed=1", "--output_dir=elsewhere")
  shared.assert_fails_with_a_sentence(
    2, "to be protected, and are measured exactly in", "--split_seed=0"
  )
  assert own("train", *start, "--seed=1").code == 0  # Another seed has the same split.
  described = lab.bare(
    "describe", "--task=own", *_COLUMNS, *arguments, f"--cache_dir={lab.cache_dir}"
  )
  assert ["train", "10", *["-"] * 6] in [line.split() for line in described.out.splitlines()]


def test_mistake_ends_a_comparison_before_its_runs(lab, own):
  result = own("sweep", "--experiment=own", "--data_dir=visits.csv", "--label_column=outcom")
  result.assert_fails_with_a_sentence(2, "no column 'outcom'", "did you mean 'outcome'")
  assert result.out == "" and result.err.startswith("Reading visits.csv\nError: ")


def test_any_task_is_described(lab):
  result = lab.bare("describe", f"--cache_dir={lab.cache_dir}")
  assert result.code == 0, result.err
  rows = {line.split()[0]: line.split() for line in result.out.splitlines()}
  assert rows["train"][1:7] == ["2500", "250000", "100", "100", "100", "10"]
  assert rows["test"][1:7] == ["500", "50000", "100", "100", "100", "10"]


_GROWN = "the test clients' loss has grown from"


def test_loss_without_bound_ends_a_run_and_its_repetition_with_the_flag(own, lab):
  """The message is that of a round that is released, and the round before is the last saved."""
  arguments = ("train", "--task=own", "--data_dir=costs.csv", "--algorithm=fed_avg")
  arguments += ("--client_learning_rate=3", "--rounds_per_evaluation=4", "--run_name=grows")
  first = own(*arguments)
  first.assert_fails_with_a_sentence(1, _GROWN, "lower --client_learning_rate")
  run = lab.folder / "own" / "own_costs_linear" / "grows" / "seed_0"
  (sentence,) = first.errors()
  assert sentence.removeprefix("Error: ") == (run / "diverged.txt").read_text().strip()
  rows = (run / "rounds.csv").read_text()
  assert f" in round {rows.splitlines()[-1].partition(',')[0]};" in sentence
  assert own(*arguments).errors() == [sentence]
  assert [row.partition(",")[0] for row in (run / "rounds.csv").read_text().splitlines()] == [
    row.partition(",")[0] for row in rows.splitlines()
  ]
  shutil.rmtree(run / "checkpoints")  # From the beginning.
  assert own(*arguments).errors() == [sentence]
  assert not (run / "metrics.json").exists()


def test_comparison_that_diverges_has_a_report(own, lab):
  flags = ("sweep", "--experiment=own", "--data_dir=costs.csv", "--output_dir=all_diverge")
  result = own(*flags, "--client_learning_rate=1e6", "--thetas=0.5")
  assert result.code == 1 and "Traceback" not in result.err
  assert "No run has left a model. Not counted: 2 unfinished runs. 2 runs diverged" in result.out
  report = (lab.folder / "all_diverge" / "own_costs_linear" / "report.md").read_text()
  assert report.count("lower --client_learning_rate") == 3  # The summary, and a line a run.


def test_comparison_whose_loss_ends_above_its_beginning_warns(own):
  """Losses of classes grow, too, but not without bound."""
  flags = ("sweep", "--experiment=own", "--data_dir=visits.csv", "--output_dir=warned")
  result = own(*flags, "--client_learning_rate=1e4", "--thetas=0.5", "--num_rounds=5")
  assert result.code == 0, result.err
  warnings = [line for line in result.err.splitlines() if _GROWN in line]
  assert len(warnings) == 2 and all(line.startswith("Warning: ") for line in warnings)
