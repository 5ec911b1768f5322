"""Any finished model on any clients: exact numbers, and whose numbers are not computed."""

import os
import pathlib
import shutil
import types

from helpers import finished_runs
import numpy as np
import pytest

from privacy import audit
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import evaluate
from tff_superquantile.experiments import evaluation_text
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import register
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

_KEPT = finished_runs.KEPT / "synthetic"
_TREE = "superquantile_theta_0.5_tree_epsilon_20"
_IDS = [f"writer {i}" for i in range(len(finished_runs.SIZES))]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  return finished_runs.clients(tmp_path_factory.mktemp("clients"), 0)


@pytest.fixture
def data(monkeypatch, files):
  """What the run's task finds: clients by split, which a test may change, of those of `files`."""
  splits = {"test": files, "train": files.subset(_IDS[:3])}

  def load_task(task, config, everybody=False):
    return finished_runs.model(), {"pool 0": files} if everybody else splits

  opened = types.SimpleNamespace(labels=(), remarks=())
  monkeypatch.setattr(finished_run, "get_task", lambda run, config, is_own=True: opened)
  monkeypatch.setattr(finished_run, "load_task", load_task)
  return splits


def _write(tmp_path, **flags):
  folder = finished_runs.write_run(tmp_path / "out", "fed_avg", 0)
  with open(folder / "flags.txt", "a") as stream:
    stream.writelines(f"--{name}={value}\n" for name, value in flags.items())
  return folder


def test_numbers_are_those_of_numpy(tmp_path, data, files, monkeypatch):
  monkeypatch.setattr(evaluate, "_CLIENTS_AT_ONCE", 4)
  folder = _write(tmp_path)
  weights, bias = run_files.read_weights(folder / "weights.npz").trainable
  evaluated = evaluate.evaluate(folder)
  found = evaluated.columns
  of_classes = ["balanced_error", "ranking_error", "calibration_error"]
  assert list(found) == ["client_id", "num_examples", "loss", "error", *of_classes]
  assert list(found["client_id"]) == _IDS
  assert found["num_examples"].tolist() == list(finished_runs.SIZES)
  x, y, offsets = files.load()
  logits = x.astype(np.float64) @ weights + bias
  losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
  wrong = logits.argmax(axis=1) != y
  for i, (start, end) in enumerate(zip(offsets, offsets[1:])):
    np.testing.assert_allclose(found["loss"][i], losses[start:end].mean(), rtol=1e-5)
    np.testing.assert_allclose(found["error"][i], wrong[start:end].mean(), atol=1e-12)

  def rows(text):
    return {line[2:16].strip(): line[16:].split() for line in text.splitlines()[1:]}

  own = rows(evaluation_text.distribution(found))
  # Of eleven clients there are no percentiles.
  assert list(own) == ["mean", "sd", "best client", "worst client"]
  worst = found["error"].max(), found["loss"].max(), np.nanmax(found["balanced_error"])
  assert own["worst client"][:3] == [
    f"{100 * worst[0]:.1f}",
    f"{worst[1]:.3f}",
    f"{100 * worst[2]:.1f}",
  ]
  many = {name: np.concatenate([values, values]) for name, values in found.items()}
  of_many = rows(evaluation_text.distribution(many))
  for name, error, loss in (
    ("mean", many["error"].mean(), many["loss"].mean()),
    ("p90", np.quantile(many["error"], 0.9), np.quantile(many["loss"], 0.9)),
    # A tenth of 22 clients: the two worst, and a fifth of the next.
    ("worst 10 %", *((np.sort(many[n])[::-1][:3] @ [1, 1, 0.2]) / 2.2 for n in ("error", "loss"))),
  ):
    assert of_many[name][:2] == [f"{100 * error:.1f}", f"{loss:.3f}"]
  assert {"p10", "p50", "p95", "best 10 %"} <= set(of_many)
  # All examples together, and those of some clients.
  its = np.arange(len(_IDS)) % 2 == 0
  for chosen in (np.full(len(_IDS), True), its):
    is_row = np.repeat(chosen, finished_runs.SIZES)
    labels = ["low", "middle", "high"]
    _, *own = evaluated.of(chosen)
    text = evaluation_text.together(*own, labels, "misclassification")
    recalls = [np.mean(~wrong[is_row & (y == c)]) for c in range(3)]
    assert f"All {is_row.sum()} examples together: error {100 * wrong[is_row].mean():.1f} %" in text
    assert f"balanced error {100 * (1 - np.mean(recalls)):.1f} %" in text
    for c, line in enumerate(text.splitlines()[2:]):
      share = np.mean(y[is_row] == c)
      assert line.split() == [labels[c], f"{100 * share:.1f}", f"{100 * recalls[c]:.1f}"]


def test_clients_of_other_data(tmp_path, data, files):
  folder = _write(tmp_path)
  data["test"] = files.subset(_IDS[5:7])
  with pytest.raises(ValueError, match="other test clients"):
    evaluate.evaluate(folder)
  found = evaluate.evaluate(folder, overrides={"data_dir": "/later"}).columns
  assert list(found["client_id"]) == _IDS[5:7]
  assert list(evaluate.evaluate(folder, "train").columns["client_id"]) == _IDS[:3]
  with pytest.raises(ValueError, match="expected one of test, train"):
    evaluate.evaluate(folder, "validation")
  everybody = evaluate.evaluate(folder, "all", {"data_dir": "/later"}).columns
  assert list(everybody["client_id"]) == _IDS
  for name in ("num_examples", "loss", "error"):
    np.testing.assert_array_equal(everybody[name][5:7], found[name])
  with pytest.raises(ValueError, match="--num_test_clients with --split=all"):
    evaluate.evaluate(folder, "all", {"num_test_clients": "2"})


def test_a_private_run_is_evaluated_on_those_outside_of_its_guarantee(tmp_path, data, files):
  folder = _write(tmp_path, epsilon=5)
  elsewhere = {"data_dir": "/elsewhere"}
  assert len(evaluate.evaluate(folder).columns["error"]) == len(_IDS)
  moved = evaluate.evaluate(folder, overrides=elsewhere)
  assert len(moved.columns["error"]) == len(_IDS)
  for split, asked in (("train", "train"), ("validation", "validation"), ("all", "train")):
    with pytest.raises(ValueError, match=f"{split} .*private_evaluation .*--split={asked} "):
      evaluate.evaluate(folder, split)
  # Nobody knows whom it protects: only those whom it has measured are not.
  own = folder / "test_clients.csv"
  own.write_text("client_id,num_examples,loss,error\nwriter 5,1,0,0\nwriter 6,1,0,0\n")
  data["test"], data["train"] = files.subset(_IDS[5:7]), files.subset(_IDS[7:])
  assert list(evaluate.evaluate(folder, "test", elsewhere).columns["client_id"]) == _IDS[5:7]
  for split in ("train", "all"):
    with pytest.raises(ValueError, match="may be protected in .*private_evaluation"):
      evaluate.evaluate(folder, split, elsewhere)
  assert len(evaluate.evaluate(folder, "train", elsewhere, is_allowed=True).columns["error"]) == 4
  # It is known: others of the data came later.
  config = run_config.from_flags(run_folder.Run(folder, 0).flags)
  token = register.enter(folder, register.Coverage({"writer 7"}, set(_IDS[5:7])), config)
  atomic_files.write_json(folder / "manifest.json", {register.TOKEN: token})
  data["test"], data["train"] = files.subset(_IDS[:7]), files.subset(_IDS[8:])
  for split, ids in (("test", _IDS[:7]), ("train", _IDS[8:])):
    assert list(evaluate.evaluate(folder, split, elsewhere).columns["client_id"]) == ids
  with pytest.raises(ValueError, match="Found 1 client who are to be measured exactly, and are"):
    evaluate.evaluate(folder, "all", elsewhere)


def test_a_table_of_an_evaluation_is_there_whole_or_not_at_all(tmp_path, data, monkeypatch):
  folder, out = _write(tmp_path), tmp_path / "out" / "exact"
  evaluate.evaluate(folder, out=out)
  found = run_files.read_columns(out, is_whole=True)
  assert list(found["client_id"]) == _IDS and "place" in out.read_text().splitlines()[0]
  out.unlink()
  monkeypatch.setattr(evaluate, "_evaluate_all", lambda *_: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    evaluate.evaluate(folder, out=out)
  assert not out.exists()


def test_noise_without_a_budget_is_private_too(tmp_path, data):
  folder = _write(tmp_path, update_noise_multiplier=1.0)
  with pytest.raises(ValueError, match="private_evaluation"):
    evaluate.evaluate(folder, "train")


@pytest.mark.parametrize("name", ["metrics.json", "flags.txt", "weights.npz", "rounds.csv"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_in_a_run_s_folder_is_refused_at_once(tmp_path, name, make):
  folder = _write(tmp_path)
  (folder / name).unlink(missing_ok=True)
  make(folder / name)

  def read():
    run = run_folder.find_finished(folder)
    return run.weights, run.rounds, run.flags

  with pytest.raises(ValueError, match=f"{name}, which is no file; expected|finished run"):
    read()


@pytest.mark.parametrize(
  "name, read",
  [
    ("lock", lambda folder: run_folder.lock(folder).__enter__()),
    ("privacy.json", audit.audit_folder),
    ("flags.txt", audit.audit_folder),
  ],
)
def test_nothing_waits_for_a_pipe(tmp_path, name, read):
  folder = pathlib.Path(shutil.copytree(_KEPT / _TREE / "seed_0", tmp_path / "seed_0"))
  (folder / name).unlink(missing_ok=True)
  os.mkfifo(folder / name)
  with pytest.raises(ValueError, match=f"{name}, which is no file"):
    read(folder)


def test_a_table_that_is_none_is_named(tmp_path):
  path = tmp_path / "test_clients.csv"
  path.write_bytes(b"client_id,error\n1,0.5\rx\xff\n")
  with pytest.raises(ValueError, match=f"Found that {path} is damaged .*bring the file back"):
    run_files.read_columns(path, is_whole=True)


def test_command_repeats_the_run_s_numbers(lab):
  for place in ("results/synthetic/fed_avg", "private/synthetic/fed_avg"):
    shutil.copytree(_KEPT / "fed_avg", lab.folder / place)
  shutil.copytree(_KEPT / _TREE, lab.folder / "private/synthetic" / _TREE)
  run = pathlib.Path("results/synthetic/fed_avg/seed_0")

  def command(*arguments):
    return lab.bare("evaluate", *map(str, arguments), f"--cache_dir={lab.cache_dir}")

  # A process of its own: what ends with it says nothing.
  arguments = (str(run), "--out=new/clients.csv", f"--cache_dir={lab.cache_dir}")
  result = lab.fork("-m", "tff_superquantile.experiments.evaluate", *arguments).wait()
  assert (result.code, result.err) == (0, "")
  assert result.out.startswith(f"{run}: 20 test clients with 2000 examples.\n")
  assert "worst 10 %" in result.out and "have not trained the model" in result.out
  written, own = (
    run_files.read_columns(path, is_whole=True)
    for path in (lab.folder / "new/clients.csv", lab.folder / run / "test_clients.csv")
  )
  of_classes = ["balanced_error", "ranking_error", "calibration_error"]
  assert list(written) == [*own, *of_classes, "place"]
  assert list(written["client_id"]) == list(own["client_id"])
  for name in ("num_examples", "loss", "error"):
    np.testing.assert_allclose(written[name], own[name], rtol=1e-4)
  command(run, "--out=new/clients.csv").assert_refused("new/clients.csv", "another --out")
  result = command(run, "--num_test_clients=3", "--split=train", "--out=new/train.csv")
  assert result.code == 0 and "60 train clients" in result.out
  private = pathlib.Path("private/synthetic") / _TREE / "seed_0"
  # Another run protects these clients, who are generated.
  assert command("private/synthetic/fed_avg/seed_0", "--split=train").code == 0
  for split in ("train", "all"):
    command(private, f"--split={split}").assert_refused("private_evaluation", f"--split={split}")
  command("nowhere").assert_refused("Found no finished run in nowhere")
  result = command(run, "--split=all")
  # The run has 60 training and 20 test clients.
  assert result.code == 0 and f"{run}: 3500 clients with 350000 examples.\n" in result.out
  assert "have not trained the model, by their ids, 3440:" in result.out
  assert "have trained the model, and whose errors are no forecast for others, 60:" in result.out
  command(run, "--split=everyone").assert_refused("--split", "everyone")
  command(run, "--data_dir=/x").assert_refused("--data_dir=/x")
  command(run, "--num_test_clients=600").assert_refused("500 test clients but 600")
  command(run, "--num_test_clients=1.5").assert_refused("expected a whole number")
  (lab.folder / run / "weights.npz").write_bytes(b"PK")
  command(run).assert_refused("weights.npz is damaged")


def test_a_command_opens_the_data_once(tmp_path, data, monkeypatch):
  opened, get_task = [], finished_run.get_task
  monkeypatch.setattr(finished_run, "get_task", lambda *a, **b: opened.append(a) or get_task(*a))
  assert cli.run(evaluate, [str(_write(tmp_path))]) == 0
  assert len(opened) == 1
