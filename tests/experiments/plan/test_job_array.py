"""Many runs on a cluster without Dask: the job array of docs/how_to/cluster.md."""

import re
import subprocess

from helpers import commands
from helpers import forks
import pytest

from privacy.settings import command_line
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import job
from tff_superquantile.experiments.plan import stages
from tff_superquantile.experiments.run import run_folder

_PAGE = (commands.ROOT / "docs/how_to/cluster.md").read_text(encoding="utf-8")
(_ARRAY,) = re.findall(r"```bash\n(.*?)```", _PAGE, re.DOTALL)
_FLAGS = ("--experiment=synthetic", "--tune=none", "--num_rounds=3")


def _bash(folder, *arguments, **more):
  environment = {**forks.environment(), **more}
  return subprocess.run(
    ["bash", *arguments], cwd=folder, env=environment, capture_output=True, text=True
  )


def test_the_job_array_of_the_page(lab):
  (lab.folder / "array.sbatch").write_text(_ARRAY)
  flags = (*_FLAGS, "--seeds=0,1")
  folder = lab.folder / "array"
  printed = lab.sweep(*flags, f"--output_dir={folder}", "--print_commands")
  (lab.folder / "jobs").write_text(printed.out)
  result = _bash(lab.folder, "array.sbatch", "jobs", SLURM_ARRAY_TASK_ID="2")
  assert result.returncode == 0, result.stderr
  (finished,) = folder.rglob("metrics.json")
  seed = f"seed_{re.search('--seed=([0-9]+)', printed.out.splitlines()[1])[1]}"
  assert finished.parent.name == seed
  again = lab.sweep(*flags, f"--output_dir={folder}", "--print_commands")
  first, _, *rest = printed.out.splitlines()
  assert again.out.splitlines() == [first, *rest]


def _config(folder, **values):
  return run_config.from_values(task="synthetic", num_rounds=3, output_dir=str(folder), **values)


def _printed(capsys, *configs, **settings):
  """The folders that are printed, what is said, and the failed ones where none is printed."""
  failed = []
  try:
    failed = stages.Stages(None, True, **settings).carry_out("some runs", configs)
  except SystemExit as end:
    assert end.code == 0
  said = capsys.readouterr()
  lines = said.out.splitlines()
  assert all(" -m tff_superquantile.experiments.plan.job " in line for line in lines)
  return [re.search("--seed=([0-9]+)", line)[1] for line in lines], said.err, failed


def test_failed_runs_are_told_from_those_that_are_left(tmp_path, capsys):
  left, broken = (_config(tmp_path, seed=seed) for seed in (0, 1))
  path = run_folder.of_config(broken).path
  assert _printed(capsys, left, broken)[0] == ["0", "1"] and not list(tmp_path.iterdir())
  run_folder.leave_failure(broken, "Found a reason.")
  assert (path / "failed.txt").read_text() == "Found a reason.\n"
  seeds, said, _ = _printed(capsys, left, broken)
  assert seeds == ["0"] and f"Failed: {path}: Found a reason.\n" in said
  assert "1 of 2 runs are left: some runs\n" in said
  assert _printed(capsys, left, broken, retry_failed=True)[0] == ["0", "1"]
  # Nothing is left: the caller is told.
  assert _printed(capsys, broken) == ([], f"Failed: {path}: Found a reason.\n", [str(path)])


def test_a_failure_is_left_where_the_run_is_and_nobody_else_is_at_work(tmp_path):
  config, other = _config(tmp_path), _config(tmp_path, client_learning_rate=0.7)
  run = run_folder.of_config(config)
  with run_folder.lock(run.path):
    run_folder.leave_failure(config, "it")
  assert not run.failed
  (run.path / "flags.txt").write_text("\n".join(config.to_arguments()))
  run_folder.leave_failure(other, "it")  # With other flags than the folder's run.
  assert not run.failed
  run_folder.leave_failure(config, "it")
  assert run.failed == "it"


def test_a_job_leaves_why_it_was_refused_and_takes_it_back_when_it_begins(lab):
  flags = lab.small([*_FLAGS[2:], "--output_dir=refused"])
  config = _config(lab.folder / "refused")
  result = lab.bare("plan.job", *flags, "--clients_per_round=10000")
  result.assert_fails_with_a_sentence(2, "10000", "30 training clients")
  run = run_folder.of_config(config)
  assert result.err == f"Error: {run.failed}\n"
  assert lab.bare("plan.job", *flags).code == 0
  assert not run.failed and run.finished


@pytest.mark.parametrize("end", [SystemExit(143), KeyboardInterrupt(), OSError("full"), None])
def test_a_job_that_a_signal_ends_has_not_failed(tmp_path, monkeypatch, end):
  def train(config):
    if end is None:  # The run is at work elsewhere, and ends while this job is refused.
      with run_folder.lock(path), run_folder.lock(path):
        pass
    raise end

  config = _config(tmp_path)
  path = run_folder.of_config(config).path
  monkeypatch.setattr(job.training, "train", train)
  parser = command_line.Parser()
  job.define(parser)
  with pytest.raises((SystemExit, KeyboardInterrupt, OSError, ValueError)):
    job.main(parser.parse_args(config.to_arguments()))
  assert bool(run_folder.of_config(config).failed) == isinstance(end, OSError)


def test_a_private_run_leaves_no_word_of_the_reason(tmp_path):
  config = _config(tmp_path, epsilon=5.0)
  run_folder.leave_failure(config, "Found that patient 7 has no age.")
  reason = run_folder.of_config(config).failed
  assert reason.startswith("The run failed") and "7" not in reason and "age" not in reason
