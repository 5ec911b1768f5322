"""What reports say of the clients by their sizes, against plain Python."""

import statistics

from helpers import finished_runs
from matplotlib import text as mpl_text
import numpy as np
import pytest

from tff_superquantile import atomic_files
from tff_superquantile.experiments.evidence import decision
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import style
from tff_superquantile.experiments.report import comparison
from tff_superquantile.experiments.report import sizes
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder

_METHODS = ("fed_avg", "superquantile_theta_0.5")
_NUM_CLIENTS = 43
_THIRDS = ("smallest", "middle", "largest")


def _fabricate(root, method, seed, *, task="synthetic", same_size=False, error="misclassification"):
  """Writes the folder of a run; returns its clients' (id, size, error)."""
  folder = root / task / method / f"seed_{seed}"
  folder.mkdir(parents=True)
  rng = np.random.default_rng([seed, *method.encode()])
  client_sizes = np.random.default_rng(seed).integers(5, 60, _NUM_CLIENTS)
  client_sizes = client_sizes * (1 - same_size) + 30 * same_size
  ids = [f"={seed} client {i}" for i in range(_NUM_CLIENTS)]
  errors = np.round(rng.random(_NUM_CLIENTS), 2)
  losses = rng.random(_NUM_CLIENTS)
  columns = dict(client_id=ids, num_examples=client_sizes, loss=losses, error=errors)
  for split in ("test", "train"):
    run_files.write_clients(folder / f"{split}_clients.csv", columns)
  flags = dict(finished_runs.flags_of(method), task=task, seed=seed)
  (folder / "flags.txt").write_text("".join(f"--{n}={v}\n" for n, v in flags.items()))
  names = ("round", "test_error_mean", "test_error_p90", "threshold", "train_loss")
  lines = [f"{number}{',0.5' * (len(names) - 1)}" for number in (0, 10, 20, 25)]
  (folder / "rounds.csv").write_text("\n".join([",".join(names), *lines, ""]))
  atomic_files.write_json(folder / "manifest.json", {"error": error})
  described = {"mean": errors.mean(), "p90": np.percentile(errors, 90)}
  metrics = {"test": {"error": described}, "train": {"loss": {"mean": 0.5}}}
  atomic_files.write_json(folder / "metrics.json", metrics)
  return list(zip(ids, client_sizes.tolist(), errors))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """(root, clients by method and seed) of two methods and two seeds."""
  root = tmp_path_factory.mktemp("runs")
  return root, {
    (method, seed): _fabricate(root, method, seed) for method in _METHODS for seed in (0, 1)
  }


@pytest.fixture(scope="module")
def groups(runs):
  return grouped.by_method(run_folder.find_runs(runs[0]))


def _values(results, method, metric):
  chosen = results[(results["method"] == method) & (results["metric"] == metric)]
  return dict(zip(chosen["seed"], chosen["value"]))


def test_thirds_are_those_of_a_plain_count(runs, groups):
  results = sizes.error_by_size(groups)
  titles = [column.title for column in sizes.columns(results, groups.leading)][::2]
  everybody = [
    (seed, *one) for (m, seed), rows in runs[1].items() if m == "fed_avg" for one in rows
  ]
  ordered = sorted(size for _, _, size, _ in everybody)
  bounds = [np.quantile(ordered, one) for one in (1 / 3, 2 / 3)]
  total = 0
  for index, third in enumerate(_THIRDS):
    members = {
      (seed, client_id)
      for seed, client_id, size, _ in everybody
      if sum(size > bound for bound in bounds) == index
    }
    its_sizes = [size for seed, client_id, size, _ in everybody if (seed, client_id) in members]
    assert abs(len(members) - len(everybody) / 3) < 5
    assert titles[index] == f"{third} ({min(its_sizes)} to {max(its_sizes)})"
    for method in _METHODS:
      for seed in (0, 1):
        error, other = (
          {i: error for i, _, error in runs[1][m, seed] if (seed, i) in members}
          for m in (method, "fed_avg")
        )
        values = list(error.values())
        total += len(values)
        expected = {
          "num_clients": len(values),
          "error.mean": statistics.fmean(values),
          "error.std": statistics.pstdev(values),
          "error.p90": np.percentile(values, 90),
        }
        if method != "fed_avg":
          expected["error.change"] = statistics.fmean(error[i] - other[i] for i in error)
        for metric, value in expected.items():
          one = _values(results, method, f"test.{third}_third.{metric}")
          assert one[seed] == pytest.approx(value), (third, method, metric)
  assert total == 4 * _NUM_CLIENTS
  changes = results["metric"].str.endswith(".change")
  assert set(results[changes]["method"]) == {_METHODS[1]}


def test_changes_are_those_of_clients_that_both_runs_have(tmp_path):
  clients = {method: _fabricate(tmp_path, method, 0) for method in _METHODS}
  path = tmp_path / "synthetic" / _METHODS[1] / "seed_0" / "test_clients.csv"
  lines = path.read_text().splitlines()
  path.write_text("\n".join([*lines[:20], *lines[21:], ""]))
  results = sizes.error_by_size(grouped.by_method(run_folder.find_runs(tmp_path)))
  error, other = ({i: one for i, _, one in clients[m]} for m in _METHODS[::-1])
  kept = [i for index, i in enumerate(error) if index != 19]
  total = sum(
    _values(results, _METHODS[1], f"test.{third}_third.error.change")[0]
    * _values(results, _METHODS[1], f"test.{third}_third.num_clients")[0]
    for third in _THIRDS
  )
  assert total == pytest.approx(sum(error[i] - other[i] for i in kept))


def test_clients_of_one_size_are_in_one_group():
  found = sizes.terciles([1, 1, 1, 1, 5, 9], [1, 1, 1, 1, 5, 9])
  assert found.tolist() == [0, 0, 0, 0, 2, 2]


def test_the_report_has_the_table_and_the_figures(runs):
  content = comparison.report(runs[0], "synthetic")
  markdown = page.render(content, "md")
  results = sizes.error_by_size(grouped.by_method(run_folder.find_runs(runs[0])))
  changes = [
    100 * value
    for value in _values(results, _METHODS[1], "test.smallest_third.error.change").values()
  ]
  shown = f"{statistics.fmean(changes):+.1f} ± {statistics.stdev(changes):.1f}".replace("-", "−")
  assert shown in markdown
  names = [figure.name for figure in page.figures(content)]
  assert names[-1] == "clients-changes"
  assert "synthetic,fed_avg,test.largest_third.error.std," in content.csv


def test_clients_of_equal_sizes_have_no_thirds(tmp_path):
  _fabricate(tmp_path, "fed_avg", 0, same_size=True)
  markdown = page.render(comparison.report(tmp_path, "synthetic"), "md")
  assert "smallest" not in markdown


def test_tasks_with_numbers_have_their_own_units(tmp_path, monkeypatch):
  for method in _METHODS:
    _fabricate(tmp_path, method, 0, task="own_costs_linear", error="rmse")
  texts = []

  def collect(figure):
    texts.extend(one.get_text() for one in figure.findobj(mpl_text.Text))
    return b"<svg/>"

  monkeypatch.setattr(style, "to_svg", collect)
  content = comparison.report(tmp_path, "own_costs_linear")
  shares = {"Test clients (%)", "New clients, at least (%)"}
  assert {text for text in texts if "(%)" in text} == shares
  assert {text for text in texts if "label sd" in text} == {
    *("Mean error (label sd)", "Error of a test client (label sd)"),
    *("90th percentile of error (label sd)", "Change of error (label sd)"),
    "Error of at most (label sd)",
  }
  assert {text for text in texts if "label var." in text} == {"Threshold (loss, label var.)"}
  captions = [figure.caption for figure in page.figures(content)]
  markdown = page.render(content, "md")
  for text in (*texts, *captions, markdown):
    assert "nats" not in text and "points" not in text and "Misclassification" not in text
  # Errors are not multiplied by a hundred.
  groups = grouped.by_method(run_folder.find_runs(tmp_path))
  mean = groups["fed_avg"][0].metrics["test"]["error"]["mean"]
  assert f"{mean:.3f}" in markdown and decision.decide(groups).text.count("label") == 0
