"""Many runs on a cluster: the job array of docs/how_to/cluster.md."""

import re
import subprocess

import commands
import forks


def test_the_job_array_of_the_page(lab):
  page = (commands.ROOT / "docs/how_to/cluster.md").read_text(encoding="utf-8")
  (lab.folder / "array.sbatch").write_text(re.search(r"```bash\n(#!.*?)```", page, re.DOTALL)[1])
  flags = ("--experiment=synthetic", "--tune=none", "--seeds=0,1", "--num_rounds=3")
  folder = lab.folder / "array"
  printed = lab.sweep(*flags, f"--output_dir={folder}", "--print_commands")
  (lab.folder / "jobs").write_text(printed.out)
  result = subprocess.run(
    ["bash", "array.sbatch", "jobs"],
    cwd=lab.folder,
    env={**forks.environment(), "SLURM_ARRAY_TASK_ID": "2"},
    capture_output=True,
    text=True,
  )
  assert result.returncode == 0, result.stderr
  (finished,) = folder.rglob("metrics.json")
  seed = f"seed_{re.search('--seed=([0-9]+)', printed.out.splitlines()[1])[1]}"
  assert finished.parent.name == seed
  again = lab.sweep(*flags, f"--output_dir={folder}", "--print_commands")
  first, _, *rest = printed.out.splitlines()
  assert again.out.splitlines() == [first, *rest]
