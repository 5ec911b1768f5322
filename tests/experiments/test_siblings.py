"""Runs of one experiment: which folders are runs, and whose clients are nobody."""

import dataclasses

import pytest

from tff_superquantile.experiments import run
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run.training import siblings

_PROTECTED = siblings.Clients(frozenset({"a", "b"}), frozenset({"c"}))


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


@pytest.mark.parametrize(
  "config, is_refused",
  [
    (run.RunConfig(task=run.Own(data_dir="t.csv", client_column="c", label_column="y")), True),
    (run.RunConfig(task=run.Emnist(name="emnist_linear", data="standin")), False),
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
