"""Runs of one experiment: which are, whom they may measure, and what noise their keys give."""

import dataclasses
import types

import pytest

from tff_superquantile.experiments import run
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.training import noise_key
from tff_superquantile.experiments.run.training import siblings

_PROTECTED = siblings.Coverage(frozenset({"a", "b"}), frozenset({"c"}))


def test_only_folders_are_runs(tmp_path):
  (tmp_path / "own/fed_avg/seed_0").mkdir(parents=True)
  (tmp_path / "own/references").mkdir()
  (tmp_path / "own/references/seed_0.json").touch()  # A reference's file has a seed's name, too.
  (tmp_path / "tuning/own/fed_avg/seed_1").mkdir(parents=True)
  own = tmp_path / "own/superquantile/seed_0"
  assert list(siblings.folders(own)) == [
    tmp_path / "own/fed_avg/seed_0",
    tmp_path / "tuning/own/fed_avg/seed_1",
  ]
  of_tuning = siblings.folders(tmp_path / "tuning/own/fed_avg/seed_1")
  assert list(of_tuning) == [tmp_path / "own/fed_avg/seed_0"]


_OWN = run_config.of(task="own", data_dir="t.csv", client_column="c", label_column="y")
_PRIVATE = dataclasses.replace(_OWN, privacy=run.Budget(epsilon=3.0))


class _Task:
  """Splits clients a, b and c: by seed 0 it trains on a and b."""

  min_examples = 1

  def all_clients(self, request):
    return [types.SimpleNamespace(client_ids=["a", "b", "c"])]

  def split_clients(self, pools, request):
    assert request.seed_of_split == 0
    ids = dict(train=["a", "b"], test=["c"])
    return {split: types.SimpleNamespace(client_ids=of_split) for split, of_split in ids.items()}


@pytest.mark.parametrize("place", ["", "tuning/"])
@pytest.mark.parametrize(
  "protected, measured, words",
  [
    ("", "c", None),
    ("", "bc", "Found 1 client who are to be measured exactly, and are protected in"),
    ("b", "", None),
    ("ab", "c", None),
    ("bc", "", "Found 1 client who are to be protected, and are measured exactly in"),
  ],
)
def test_nobody_is_protected_in_one_run_and_measured_in_another(
  tmp_path, place, protected, measured, words
):
  sibling = tmp_path / f"{place}own/fed_avg/seed_0"
  sibling.mkdir(parents=True)
  flags = run_config.replace(_PRIVATE, split_seed=0).to_flags()
  (sibling / "flags.txt").write_text("".join(f"--{name}={v}\n" for name, v in flags.items()))
  own = siblings.Coverage(frozenset(protected), frozenset(measured))
  path, config = tmp_path / "own/superquantile/seed_0", _PRIVATE if protected else _OWN
  if words is None:
    siblings.check(path, config, _Task, own)
    return
  with pytest.raises(ValueError, match=words):
    siblings.check(path, config, _Task, own)


def test_one_key_gives_other_noise_in_each_run_and_for_other_clients(tmp_path):
  key, new = bytes(16), run_folder.Run(tmp_path / "new", 0)

  def noise(clients="0a", **flags):
    commitments = {"clients": clients}
    found = noise_key.of_noise(key, commitments, run_config.replace(_PRIVATE, **flags), new)
    assert len(found) == 16 and set(commitments) == {"clients", "noise"}
    return found

  others = [noise(clients="0b"), noise(seed=1), noise(epsilon=4.0), noise(num_rounds=7)]
  assert len({key, noise(), *others}) == 2 + len(others)
  assert noise() == noise(output_dir="elsewhere", run_name="again", cache_dir="c")


@pytest.mark.parametrize(
  "config, is_refused",
  [
    (_OWN, True),
    (run.RunConfig(task=run.Request(name="emnist_linear", data="standin")), False),
    (run.RunConfig(), False),
  ],
  ids=["own", "standin", "synthetic"],
)
def test_clients_of_generated_data_are_nobody(tmp_path, config, is_refused):
  """A table beside the runs names whom the run is to protect."""
  folder = tmp_path / config.task.name / "superquantile/seed_0"
  folder.mkdir(parents=True)
  (folder.parents[1] / "clients.csv").write_text("client_id,error\na,0.5\n")
  config = dataclasses.replace(config, privacy=run.Budget(epsilon=3.0))

  def check(config):
    siblings.check(folder, config, lambda: None, _PROTECTED)

  if not is_refused:
    check(config)
    return
  with pytest.raises(ValueError, match="Found 1 client who are to be protected, and are measured"):
    check(config)
  check(run_config.replace(config, exact_siblings="allowed"))
