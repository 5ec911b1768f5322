"""Personal models of runs: when they are made, what is written, and what a report says of them."""

import json
import shutil

from helpers import commands
from helpers import finished_runs
import numpy as np
import pandas as pd
import pytest
import tensorflow_federated as tff

from tff_superquantile import distribution
from tff_superquantile import evaluation
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.evidence import decision
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.evidence import personal
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.plan import stages
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.report import comparison
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import personalizing
from tff_superquantile.simulation import client_files

_THETA = "superquantile_theta_0.5"
_FILES = [f"{part}_clients.csv" for part in ("shared", "personal", "chosen")]


def test_a_run_that_has_finished_gets_its_personal_models(lab, base, tmp_path):
  path = lab.folder / "base" / commands.METHOD / "seed_0"
  shutil.copytree(base.path, path)
  flags = (*base.flags, "--output_dir=base", "--personalize=3")
  before = commands.contents(path)
  result = lab.train(*flags, "--personal_proximal_weight=0.5")
  assert result.code == 0, result.err
  assert "Finished before" in result.out and "Personal models: " in result.out
  changed = {name for name, text in commands.contents(path).items() if text != before.get(name)}
  assert changed - {"lock"} == {"metrics.json", *_FILES}
  # As the library has them, at the rate of the last round.
  run = run_folder.Run(path, 0)
  assert run.config is not None
  config = run_config.with_values(run.config, cache_dir=str(lab.cache_dir))
  model, splits = build.load_task(build.get_task(config), config)
  found = evaluation.Personalizer(
    model,
    personalizing.split_clients(config, splits),
    tff.learning.optimizers.build_sgdm(config.final_learning_rate),
    seed=0,
    batch_size=config.local.batch_size,
    l2=config.local.l2,
    proximal_strength=0.5,
  )(run.weights, 3, None, (3, 10, 30, 100))
  for part in ("shared", "personal", "chosen"):
    errors = getattr(found, part).of_clients.error
    np.testing.assert_allclose(run.clients(part)["error"], errors)
    assert run.numbers[f"{part}.error.p90"] == pytest.approx(np.percentile(errors, 90))
  assert run.clients("chosen")["is_personal"].tolist() == found.is_personal.tolist()
  assert run.clients("chosen")["epochs"].tolist() == found.epochs.tolist()
  assert run.numbers["personal.share_kept"] == pytest.approx(found.is_personal.mean())
  # Once, unless something else is asked for.
  results = commands.contents(path)
  assert "Personal models" not in lab.train(*flags, "--personal_proximal_weight=0.5").out
  assert commands.contents(path) == results
  asked = run_config.with_values(config, output_dir=str(lab.folder / "base"), personalize=3)
  assert stages.is_left(asked)
  assert not stages.is_left(run_config.with_values(asked, personal_proximal_weight=0.5))
  assert lab.train(*flags).code == 0
  changed = {n for n, text in commands.contents(path).items() if text != results[n]}
  assert changed - {"lock"} == {"metrics.json", "personal_clients.csv", "chosen_clients.csv"}


def test_a_private_run_tells_of_tested_clients_alone(lab):
  flags = ("--num_rounds=2", "--epsilon=5", "--clip_norm=0.1", "--output_dir=private")
  result = lab.train(*flags, "--personalize")
  assert result.code == 0, result.err
  (run,) = run_folder.find_runs(lab.folder / "private")
  assert run.config.personalization.epochs == "chosen"
  assert {*run.clients("chosen")["epochs"]} <= {0, 3, 10, 30, 100}
  others = {*run.clients("test")["client_id"]}
  for part in ("shared", "personal", "chosen"):
    assert {*run.clients(part)["client_id"]} <= others
  # All that the personal models leave: three tables of tested clients, and their statistics.
  names = {name for name in commands.contents(run.path) if "personal" in name or "chosen" in name}
  assert names == {"personal_clients.csv", "chosen_clients.csv"}
  assert set(run.metrics["personal"]) - set(run.metrics["test"]) == {
    *("asked", "share_kept", "num_diverged"),
  }


def test_held_out_examples_are_measured_and_those_of_training_tuned_on(tmp_path):
  rng = np.random.default_rng(0)

  def files(name, sizes):
    def make():
      for client, size in sizes.items():
        yield client, rng.normal(size=[size, 2]).astype(np.float32), np.zeros(size, np.int32)

    return client_files.open_or_write_client_files(tmp_path / name, make)

  splits = {"train": files("a", {"c": 4, "b": 7, "a": 2}), "test": files("b", {"b": 3, "c": 1})}
  config = run_config.from_values(task="own", label_column="y", held_out_examples=0.3)
  found = personalizing.split_clients(config, splits)
  assert list(found.held_in.client_ids) == list(found.held_out.client_ids)
  for i, client in enumerate(found.held_in.client_ids):
    for part, split in ((found.held_in, "train"), (found.held_out, "test")):
      x, _, offsets = splits[split].load()
      place = list(splits[split].client_ids).index(client)
      np.testing.assert_array_equal(part.of_client(i)[0], x[slice(*offsets[place : place + 2])])


# What a report says.


def _fabricate(folder, methods, own=None, seed=0):
  """Writes runs with (shared, chosen) errors of clients by method, and clients' own models'."""
  parts = {
    method: {"test": shared, "shared": shared, "chosen": chosen, "personal": chosen}
    for method, (shared, chosen) in methods.items()
  }
  constant = {kept.CONSTANT: np.full(len(next(iter(methods.values()))[0]), 0.9)}
  references = constant if own is None else {kept.LOCAL: own, **constant}
  return finished_runs.fabricate(folder, parts, references, place="tiny", seed=seed)


_SHARED = np.linspace(0.2, 0.6, 41)
_NOISE = 0.01 * np.random.default_rng(0).normal(size=41)


@pytest.mark.parametrize(
  "is_far, changes, own, starts",
  [
    (True, -0.1, None, "Personalise: clients differ, and what each keeps of the shared"),
    (False, -0.01, None, "Keep FedAvg"),
    (False, 0.0, None, "Keep FedAvg"),
    (False, np.where(_SHARED > 0.5, 0.2, -0.2), None, "Keep FedAvg"),  # The worst tenth pays.
    (False, 0.0, -0.15, "Do not federate: clients’ own models"),
  ],
)
def test_the_decision_is_to_personalise_where_all_gain_far_by_it(
  tmp_path, is_far, changes, own, starts
):
  methods = {"fed_avg": (_SHARED, _SHARED + changes)}
  methods[_THETA] = (_SHARED + _NOISE, _SHARED + _NOISE + changes)
  groups = _fabricate(tmp_path, methods, None if own is None else _SHARED + own)
  found = decision.decide(groups)
  assert found.text.startswith(starts) and (found.key == "personalise") == is_far
  assert ("Personal models: after FedAvg" in found.text) != is_far
  # The numbers of the sentence, by hand.
  change = 100 * (np.percentile(_SHARED + changes, 90) - np.percentile(_SHARED, 90))
  shown = f"{abs(change):.1f} points" if abs(change) >= 0.05 else "as it is"
  assert shown in found.text
  assert "; against that, Superquantile θ = 0.5 before it" in found.text
  assert ("a client’s own model alone" in found.text) == (own is not None)


def test_the_report_has_the_models_side_by_side(tmp_path):
  methods = {"fed_avg": (_SHARED, _SHARED - 0.1), _THETA: (_SHARED, _SHARED - 0.2)}
  _fabricate(tmp_path, methods, _SHARED - 0.05)
  content = comparison.report(tmp_path, "tiny")
  tables = finished_runs.markdown_tables(page.render(content, "md"))
  levels, changes = (t for t in tables if any("kept" in heading for heading in t[0]))
  by_name = {row[0]: dict(zip(levels[0], row)) for row in levels[1:]}
  for method, gain in (("FedAvg", 0.1), ("Superquantile θ = 0.5", 0.2)):
    for heading, shift in (("shared", 0.0), ("kept", gain), ("own", 0.05)):
      errors = 100 * (_SHARED - shift)
      assert by_name[method][f"mean, {heading}"] == f"{errors.mean():.1f}"
      assert by_name[method][f"p90, {heading}"] == f"{np.percentile(errors, 90):.1f}"
  cells = {row[0]: row for row in changes[1:]}
  assert cells["FedAvg"][1].startswith("**−10.0") and cells["FedAvg"][2] == "–"
  assert cells["Superquantile θ = 0.5"][2].startswith("**−10.0")
  assert cells["Superquantile θ = 0.5"][3].startswith("**+15.0")
  assert "chosen.error.p90" in set(pd.read_csv(page.write(content, tmp_path)["csv"])["metric"])
  # Without personal models there is nothing of them.
  for path in tmp_path.rglob("chosen_clients.csv"):
    path.unlink()
  groups = grouped.by_method(run_folder.find_runs(tmp_path))
  its = evidence.Evidence(groups, decision.decide(groups).evidence.references)
  assert list(personal.tables_of(its)) == []


def test_a_cross_validation_pools_personal_models(tmp_path):
  parts = (_SHARED[::2], _SHARED[1::2])
  for seed, errors in enumerate(parts):
    _fabricate(tmp_path, {"fed_avg": (errors, errors - 0.1)}, seed=seed)
    path = tmp_path / "tiny/fed_avg" / f"seed_{seed}/flags.txt"
    path.write_text(path.read_text() + "--folds=2\n--client_split=by_id\n")
  (run,) = cross_validation.pool(run_folder.find_runs(tmp_path))
  expected = distribution.describe(np.concatenate(parts) - 0.1)
  assert run.metrics["chosen"]["error"] == pytest.approx(expected)
  assert json.loads((run.path / "metrics.json").read_text())["chosen"]["error"] != expected
