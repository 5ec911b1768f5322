"""What the README and the pages show must work as it stands there."""

import pathlib
import random
import re
import runpy
import sys

from helpers import problems
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_superquantile.experiments.run import evaluation_files

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _page(name):
  return (_ROOT / name).read_text(encoding="utf-8")


def _block(name, number=0):
  """A block of Python of a page."""
  return re.findall(r"```python\n(.*?)```", _page(name), flags=re.DOTALL)[number]


def test_library_example(capsys):
  exec(_block("README.md"), {})
  fed_avg, half = capsys.readouterr().out.splitlines()
  assert fed_avg.startswith("theta 1.0: mean ") and half.startswith("theta 0.5: mean ")
  assert float(half.split()[-1]) < float(fed_avg.split()[-1])  # The worst tenth's mean.
  assert len([line for line in _block("README.md").splitlines() if line]) <= 22


@pytest.mark.parametrize(
  "name, printed",
  [
    ("which_clients_gain", r"superquantile_90 +(0\.\d+) +(?!\1)0\.\d+"),
    ("private_training", r"(?s)p90 .*: 0\.\d+\n.*: The claim holds\."),
    ("faster_tff", r"largest difference of the weights: \d(\.\d+)?e-0[6-9]|: 0\.0$"),
  ],
)
def test_programs(name, printed, tmp_path, monkeypatch, capsys):
  path = _ROOT / f"examples/{name}.py"
  assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
  monkeypatch.setattr(sys, "argv", [str(path), str(tmp_path / "results")])
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  try:
    runpy.run_path(str(path), run_name="__main__")
  except SystemExit as end:
    assert not end.code
  assert re.search(printed, capsys.readouterr().out)
  assert str(path.relative_to(_ROOT)) in path.read_text(encoding="utf-8")  # Its command.


def test_scripts_with_fast_rounds(tmp_path, simulation_context):
  page = "docs/how_to/fast_rounds.md"
  names = dict(model_fn=problems.linear_model_fn, examples=problems.client_arrays())
  names["folder"] = tmp_path / "clients"
  cohort = problems.datasets(names["examples"])
  own = dict(names, model_fn=problems.keras_model_fn, cohorts=[cohort, cohort])
  exec(_block(page), own)  # TFF's own code, one line more.
  assert own["metrics"]["client_work"]["train"]["num_examples"] > 0
  random.seed(0)  # In some cohorts a client of half the weight has the lowest loss: all are a tail.
  for number in (1, 2):  # The second begins where the first ends, in process.
    exec(_block(page, number), names)
    cohort = names["metrics"]["client_work"]["cohort"]
    assert cohort["cohort_size"] == 4 and 2 <= cohort["tail_size"] < 4
    assert names.pop("state") and len(_block(page, number).splitlines()) <= 14


def test_readme_is_under_two_screens():
  assert len(_page("README.md").splitlines()) < 100


def test_private_threshold_example(simulation_context, capsys):
  names = dict(model_fn=problems.linear_model())
  exec(_block("docs/reference/threshold.md"), names)
  mechanism, result, *_ = capsys.readouterr().out.splitlines()
  assert "bits a client" in mechanism
  # The median of 0, 1, 2, 3, 4, each twenty times, in bins of 1/16.
  assert float(result.split()[0]) == pytest.approx(2.0, abs=1.1)


def test_private_report_example(simulation_context, capsys):
  values = [i / 400 for i in range(400)]
  names = dict(values=values)
  exec(_block("docs/how_to/private_report.md"), names)
  assert "(1, 1e-05)-differentially private" in capsys.readouterr().out
  value, standard_error = names["report"].quantile(0.9)
  assert abs(value - 0.9) < 6 * standard_error < 0.3


def test_results_of_clients_example(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  folder = tmp_path / "results/synthetic/fed_avg/seed_0/clients"
  folder.parent.mkdir(parents=True)
  ids, rng = [f"client {i}" for i in range(20)], np.random.default_rng(0)
  for number in (0, 50, 100):
    error = rng.permutation(18).tolist() + [20, 30]  # The same two are worst, but before training.
    if number == 0:
      error.reverse()
    columns = dict(client_id=ids, num_examples=[9] * 20, loss=[1.0] * 20, error=error)
    evaluation_files.write(folder, number, {"test": columns, "validation": columns})
  exec(_block("docs/how_to/read_results.md", 1), names := {})
  assert names["times_worst"].to_dict() == {i: 2 * (i in ids[-2:]) for i in ids}
  assert capsys.readouterr().out.count("client") == 6  # The index' name, too.


def test_family_example(simulation_context, capsys):
  clients = problems.datasets(problems.client_arrays())
  names = dict(model_fn=problems.linear_model_fn, cohorts=[clients[:4], clients], clients=clients)
  exec(_block("docs/reference/algorithms.md", 4), names)
  tails = eval(capsys.readouterr().out)
  assert tails[0] == 6 and tails[0] > tails[1] >= tails[2] > 0
  assert names["choice"].shape == (6,) and set(names["choice"]) <= {0, 1, 2}


def test_private_mean_example(simulation_context):
  names = dict(model_fn=problems.linear_model_fn)
  weights = problems.linear_model().initial_weights[0]
  names["num_parameters"] = sum(w.size for w in weights)
  names["weights_type"] = tff.types.to_type(tuple((w.dtype.type, w.shape) for w in weights))
  exec(_block("docs/reference/algorithms.md", 1), names)
  assert 1 < names["release"].effective_noise_multiplier < 3
  (made,) = names["release"].parts
  assert made.mechanism.num_shares == 140  # Those of 100 expected clients, as the factory takes.
  state = names["process"].initialize()
  names["process"].next(state, problems.datasets(problems.client_arrays()))


def test_comparison_example(tmp_path, monkeypatch, simulation_context, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("MPLBACKEND", "agg")
  clients = problems.datasets(problems.client_arrays(), 8)
  names = dict(model_fn=problems.linear_model_fn, train=clients, test=clients)
  names["ids"] = [f"client {i}" for i in range(len(clients))]
  exec(_block("docs/how_to/compare_in_python.md"), names)
  table = names["table"]
  assert set(table.index) == set(names["ids"]) and table["FedAvg"].is_monotonic_increasing
  assert (table["FedAvg"] != table["theta 0.5"]).any()
  assert capsys.readouterr().out.count("client ") >= len(clients)
  assert (tmp_path / "clients.png").stat().st_size > 1000
  assert len(_block("docs/how_to/compare_in_python.md").splitlines()) <= 30


def test_secure_example():
  exec(_block("docs/reference/algorithms.md"), dict(model_fn=problems.linear_model_fn))


_OF_FOLDER = """
import importlib, runpy, tasks
importlib.reload(tasks)  # That of this folder, as if none had been imported before.
assert tasks.__path__ == [{folder!r}]
runpy.run_module("tff_superquantile.experiments.train", run_name="__main__", alter_sys=True)
"""


def test_keras_task_in_the_folder_of_tasks_is_found_and_trains(lab):
  page = _page("docs/how_to/add_a_part.md")
  (source,) = re.findall(r"```python\n# weather.py\n(.*?)```", page, re.DOTALL)
  (keras,) = re.findall(r"```python\n(def _keras_model.*?)```", page, re.DOTALL)
  source = re.sub("build_model=.*", "build_model=_keras_model,", source)
  imports = "import tensorflow_federated as tff\n"
  tasks = lab.folder / "tasks"
  tasks.mkdir()
  for path in (_ROOT / "tasks").iterdir():
    if path.name != "__pycache__":
      (tasks / path.name).symlink_to(path)
  (tasks / "weather.py").write_text(f"{imports}{keras}\n{source}\nTASKS = (WEATHER,)\n")
  flags = ("--task=weather", "--num_rounds=3", f"--cache_dir={lab.cache_dir}", "--output_dir=out")
  result = lab.fork("-c", _OF_FOLDER.format(folder=str(tasks)), *flags).wait()
  assert result.code == 0, result.err
  assert (lab.folder / "out/weather/superquantile_theta_0.5/seed_0/metrics.json").exists()


def _links():
  for page in [*sorted(_ROOT.glob("*.md")), *sorted((_ROOT / "docs").rglob("*.md"))]:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"""\]\((?!http)([^)#]+)\)|src(?:set)?="(?!http)([^"]+)""", text):
      yield page.parent, "".join(link)


@pytest.mark.parametrize("folder,link", _links())
def test_links(folder, link):
  assert (folder / link).exists()
