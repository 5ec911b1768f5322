"""What a report decides: of fabricated runs, and of tables whose truth is known."""

import dataclasses
import itertools
import re

from helpers import finished_runs
from helpers import true_tables
import numpy as np
import pytest
from scipy import stats

from tff_superquantile import atomic_files
from tff_superquantile.experiments.config import personal as parts
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.evidence import boxes
from tff_superquantile.experiments.evidence import decision
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.evidence import who_loses
from tff_superquantile.experiments.pages import answer
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.references import making
from tff_superquantile.experiments.report import comparison
from tff_superquantile.experiments.run import cross_validation
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run import runner

_THETA = "superquantile_theta_0.5"
_SPREAD = np.linspace(0.2, 0.4, 41)


def _decide(folder, methods, references=None, seeds=(0,), **kwargs):
  """Decides of runs that have the same results with each seed."""
  for seed in seeds:
    groups = finished_runs.fabricate(folder, methods, references, seed=seed, **kwargs)
  return decision.decide(groups)


_NOISE = 0.01 * np.random.default_rng(0).normal(size=41)
_FAR = np.append(_SPREAD, 30.0)
_FALLING = 1 / np.arange(1, 31)
_FLAT = np.full(90, 0.3)


@pytest.mark.parametrize(
  "key, theta, references, rounds, part",
  [
    ("keep", _SPREAD + _NOISE, dict(constant=0.5), (), "Keep FedAvg: no detectable difference"),
    ("take", _SPREAD - 0.05, dict(constant=0.5), (), "it lowers p90 by 5.0 points"),
    (
      "keep",
      _SPREAD + 0.05,
      dict(constant=0.5),
      (),
      "raises p90 and the worst tenth",
    ),
    ("trade-off", 0.23 + 0.3 * _SPREAD, dict(constant=0.5), (), "and raises the mean, beyond"),
    ("nothing learned", _SPREAD, dict(constant=0.29), (), "The features do not tell"),
    ("nothing learned", _SPREAD, dict(constant=0.301), (), "cannot be told from the constant"),
    (
      "own models",
      _SPREAD - 0.05,
      dict(pooled=0.3, local=0.1),
      (),
      "own models are far ahead of the best",
    ),
    ("own models", _SPREAD, dict(local=0.29), (), "far ahead of the best shared one.\nOne rule"),
    ("take", _SPREAD - 0.05, dict(pooled=0.24, local=0.239), (), "Take Superquantile"),
    (
      "train longer",
      _SPREAD - 0.05,
      dict(pooled=0.1, local=0.095),
      (),
      "is far behind a fit of all examples",
    ),
    ("train longer", _SPREAD - 0.05, {}, _FALLING, "still improved.\nLeave out --num_rounds"),
    ("take", _SPREAD - 0.05, {}, _FLAT, "Take Superquantile"),
    ("train longer", _SPREAD - 0.05, dict(pooled=0.24), _FALLING, "after 30 rounds FedAvg and"),
    ("keep", _SPREAD + _NOISE, dict(pooled=0.29), _FALLING, "Not converged yet: FedAvg after 30"),
    ("far client", _FAR, {}, (), "Look at client client 41 first"),
  ],
)
def test_the_first_verdict_that_holds_is_the_decision(
  tmp_path, key, theta, references, rounds, part
):
  fed_avg = _FAR if theta is _FAR else _SPREAD
  level = {name: mean + 0.1 * (fed_avg - fed_avg.mean()) for name, mean in references.items()}
  level.setdefault(kept.CONSTANT, np.full(len(fed_avg), 0.5))
  methods = {"fed_avg": fed_avg, _THETA: theta}
  found = _decide(tmp_path, methods, level, (0, 1), rounds=rounds, task="own")
  assert found.key == key, found.text
  assert part in found.text
  (said,) = found.answers
  assert len(said.words.split()) <= answer.MOST_WORDS
  # Each number of the first sentence is in the box, but those of flags, names and counts.
  there = "" if said.box is None else page.markdown_table(said.box)
  for number in re.findall(r"\d+\.\d(?= points)", said.words):
    assert number in there


def test_a_box_has_the_levels_of_numpy_on_the_same_clients(tmp_path):
  own, some = 0.1 + 0.21 * _SPREAD, np.arange(41) < 30
  references = {kept.CONSTANT: _SPREAD + 0.3, kept.LOCAL: np.where(some, own, np.nan)}
  found = _decide(tmp_path, {"fed_avg": _SPREAD, _THETA: _SPREAD + 0.01}, references)
  assert found.key == "own models"
  box = found.answers[0].box
  rows = {row.name: [cell.text for cell in row.cells] for row in box.rows}
  for name, values in (("own model of each client", own[some]), ("FedAvg", _SPREAD[some])):
    tail = np.sort(values)[-3:].mean()
    levels = values.mean(), np.percentile(values, 90), tail
    assert rows[name] == [tables.number(100 * level) for level in levels]
  assert "30 test clients of 41" in box.note
  # Also where the first model has more clients than the second.
  models = {"FedAvg": found.evidence.best, "own": kept.LOCAL}
  for row in boxes.of_models(found.evidence, models, ["error"]).rows:
    values = {"FedAvg": _SPREAD, "own": own}[row.name][some]
    assert row.cells[0].text == tables.number(100 * values.mean())


def test_a_box_of_several_measures_is_of_the_clients_that_have_each(tmp_path):
  further = {"balanced_error": 0.0, "ranking_error": np.where(np.arange(41) < 13, -0.1, np.nan)}
  methods, constant = {"fed_avg": _SPREAD}, {kept.CONSTANT: _SPREAD + 0.2}
  e = _decide(tmp_path, methods, constant, further=further, metric="balanced_error").evidence
  box = boxes.of_constant(e, "ranking_error", "balanced_error")
  means = [_SPREAD[:13].mean() - 0.1, _SPREAD[:13].mean()]
  assert [cell.text for cell in box.rows[1].cells] == [tables.number(100 * m) for m in means]
  note = "Ranking error (1 − AUC) and balanced error in %, 1 seed, 13 test clients of 41."
  assert box.note == note


def test_a_box_of_methods_has_changes_and_intervals(tmp_path):
  found = _decide(tmp_path, {"fed_avg": _SPREAD, _THETA: _SPREAD - 0.05})
  box = found.answers[0].box
  assert [cell.text for cell in box.rows[0].cells] == ["30.0", "38.0", "39.2"]
  change = found.evidence.chosen[2]["test.error.p90"]
  expected = f"(−5.0; {100 * change.low:+.1f} to {100 * change.high:+.1f})".replace("-", "−")
  assert box.rows[1].cells[1] == ("33.0", expected, True)


@pytest.mark.parametrize(
  "changes, key, part",
  [
    # Of seeds, the relative changes of all clients.
    ([-0.1], "more seeds", "Keep FedAvg, but run more seeds: Superquantile θ"),
    ([-0.1, -0.1], "take", "beyond chance, and no rise of 2 % or more is."),
    ([-0.018, -0.018], "keep", "by too little, or not in each seed"),
    ([-0.022, -0.022], "take", "Take Superquantile"),
    ([0.018, 0.018], "keep", "by too little"),
    ([0.022, 0.022], "keep", "and raises p90"),
    ([-0.05, -0.05, -0.05, -0.03], "take", "Take Superquantile"),
    ([0.0], "keep", "no detectable difference"),
  ],
)
def test_a_change_counts_from_a_fiftieth_of_the_level_on_and_with_a_second_seed(
  tmp_path, changes, key, part
):
  for seed, change in enumerate(changes):
    methods = {"fed_avg": _SPREAD, _THETA: _SPREAD * (1 + change) + 0.01 * _NOISE}
    found = _decide(tmp_path, methods, {kept.CONSTANT: _SPREAD + 0.2}, (seed,))
  assert found.key == key and part in found.text, found.text


def test_what_is_taken_is_not_said_to_raise_nothing(tmp_path):
  """The mean is higher by a twentieth, which is not beyond chance."""
  rng = np.random.default_rng(2)
  fed_avg = np.where(np.arange(60) < 12, 0.9, 0.2) + 0.01 * rng.normal(size=60)
  theta = np.where(fed_avg > 0.5, fed_avg - 0.15, 0.25 + rng.normal(0, 0.15, 60).clip(-0.2, 0.2))
  theta += 1.05 * fed_avg.mean() - theta.mean()
  found = _decide(tmp_path, {"fed_avg": fed_avg, _THETA: theta}, None, (0, 1))
  mean = found.evidence.chosen[2]["test.error.mean"]
  assert mean.value == pytest.approx(0.05 * mean.before) and not mean.is_detected
  assert found.key == "take" and "raises no" not in found.answers[0].words


@pytest.mark.parametrize("signs, key", [((-1, -1, -1, 1), "take"), ((-1, -1, 1, 1), "keep")])
def test_most_seeds_or_folds_have_the_sign_of_what_is_taken(tmp_path, monkeypatch, signs, key):
  methods = {"fed_avg": _SPREAD, _THETA: _SPREAD - 0.05}
  found = _decide(tmp_path, methods, {kept.CONSTANT: _SPREAD + 0.2}, (0, 1))
  monkeypatch.setattr(evidence.Evidence, "_parts", lambda self, metric: list(signs))
  assert decision.decide(found.evidence.groups).key == key


def test_parts_of_a_change_are_those_of_seeds(tmp_path):
  for seed, change in ((0, -0.1), (1, 0.02)):
    errors = np.random.default_rng(seed).uniform(0.2, 0.6, 30)
    methods = {"fed_avg": errors, _THETA: errors + change}
    found = _decide(tmp_path, methods, {kept.CONSTANT: errors + 0.2}, (seed,))
  e = found.evidence
  np.testing.assert_allclose(e._parts("test.error.p90"), [-0.1, 0.02])


def _decide_on_facts(folder, facts, methods=None, constant=0.0, references=None):
  """Decides of FedAvg alone, whose clients' rows say this without models."""
  references = references or {kept.CONSTANT: _SPREAD + constant}
  finished_runs.fabricate(folder, methods or {"fed_avg": _SPREAD}, references)
  references = dataclasses.replace(kept.read(folder / "own", 0), facts=facts)
  kept.write(folder / "own", 0, references)
  return decision.decide(grouped.by_method(run_folder.find_runs(folder)))


def test_what_ranks_tell_is_not_denied(tmp_path):
  facts = {"ranks": [dict(name="age", correlation=-0.612, where="within")], "gross": []}
  for constant, key, said in (
    (0.0, "not learned", "but no method has learned it."),
    (-0.05, "not learned", "but no method has learned it."),
    (
      0.001 + _NOISE - _NOISE.mean(),
      "not learned",
      "it is not shown that a method has learned it.",
    ),
    (0.2, "no comparison", ""),
  ):
    found = _decide_on_facts(tmp_path / f"{np.mean(constant):.3f}", facts, constant=constant)
    assert found.key == key and said in found.text
    assert ("age has a rank correlation of −0.61 with it within" in found.text) == bool(said)
  assert _decide_on_facts(tmp_path / "silent", {}).key == "nothing learned"


@pytest.mark.parametrize("decides, key", [(True, "gross errors"), (False, "nothing learned")])
def test_gross_errors_are_named_and_decide_where_they_have_most_of_the_squares(
  tmp_path, decides, key
):
  facts = {"ranks": [], "gross": [dict(text="3 of 90 labels y are far", decides=decides)]}
  found = _decide_on_facts(tmp_path, facts)
  assert found.key == key and found.text.count("3 of 90 labels y are far") == 1


def test_clients_that_have_other_labels_need_no_other_rule(tmp_path):
  methods, own = {"fed_avg": _SPREAD + 0.2}, _SPREAD - 0.1
  for constant, labels, said in (
    (0.02, [{"differ": True}], "They differ in which labels they have: their own most frequent"),
    (0.02, [], "class has 22.0 %; it is not shown that they differ in which labels they have."),
    (0.2, [{"differ": True}], "One rule does not fit these clients."),
  ):
    references = {kept.LOCAL: own, kept.OWN_CONSTANT: own + constant, kept.CONSTANT: _SPREAD + 0.4}
    found = _decide_on_facts(tmp_path / said, {"labels": labels}, methods, references=references)
    assert found.key == "own models" and said in found.text


@pytest.mark.parametrize("lacking, key", [(0, "own models"), (20, "own models"), (21, "keep")])
@pytest.mark.parametrize("part", ["local", "chosen"])
def test_models_of_halves_decide_by_the_measure_that_leads_where_most_halves_bear_it(
  tmp_path, lacking, key, part
):
  """A half that lacks a class has no ranks, or another constant answer's balanced error."""
  errors = {
    kept.LOCAL: _SPREAD / 2,
    kept.CONSTANT: np.full(41, 0.5),
  }
  errors[kept.OWN_CONSTANT] = np.where(np.arange(41) < lacking, 0.0, 0.5)
  shared = {"test": _SPREAD, "shared": _SPREAD, "chosen": _SPREAD / 2}
  methods = {"fed_avg": _SPREAD, _THETA: _SPREAD}
  if part == "chosen":
    methods, key = dict.fromkeys(methods, shared), key.replace("own models", "personalise")
    del errors[kept.LOCAL]
  further = {"balanced_error": 0.0, "ranking_error": np.zeros(41)}
  further["ranking_error"][:lacking] = 0.0 if part == "local" else np.nan
  found = _decide(tmp_path, methods, errors, further=further, metric="balanced_error")
  assert found.key == key and found.evidence.groups.leading.name == "balanced_error"
  if key != "keep":
    assert f"Balanced error in %, 1 seed, {41 - lacking} test clients" in found.answers[0].box.note


def test_own_models_that_the_constant_answer_beats_are_not_advised(tmp_path):
  references = {kept.CONSTANT: _SPREAD / 4, kept.LOCAL: _SPREAD / 2}
  assert _decide(tmp_path, {"fed_avg": _SPREAD}, references).key == "nothing learned"


def test_what_was_not_tried_is_said(tmp_path):
  references = {kept.CONSTANT: _SPREAD + 0.3}
  found = _decide(tmp_path, {"fed_avg": _SPREAD, _THETA: _SPREAD + _NOISE}, references)
  assert "Own models were not tried, as small: --personalize tells." in found.text
  references[kept.LOCAL] = _SPREAD + 0.3
  found = _decide(tmp_path / "tried", {"fed_avg": _SPREAD}, references)
  assert "were not tried" not in found.text


def test_a_method_that_is_worse_than_the_constant_answer_is_called_worse(tmp_path):
  methods = {"fed_avg": _SPREAD, _THETA: _SPREAD + 0.3}
  found = _decide(tmp_path, methods, {kept.CONSTANT: _SPREAD + 0.1})
  said = "Worse than the constant answer (40.0 %), beyond chance: Superquantile θ = 0.5 (60.0 %)."
  assert said in found.text and "Not told from" not in found.text


def test_a_run_that_ended_as_soon_as_it_might_is_named(tmp_path):
  flags = dict(stop="converged", rounds_per_evaluation=10)
  for number, is_named in ((60, True), (90, False)):
    rounds = np.full(number, 0.3)
    found = _decide(tmp_path / f"{number}", {"fed_avg": _SPREAD}, rounds=rounds, **flags)
    assert ("Stopped at the first allowed round, as level: FedAvg" in found.text) == is_named


def test_own_models_that_lose_the_worst_tenth_are_not_advised(tmp_path):
  own = np.where(_SPREAD > 0.35, 0.6, 0.1)
  for errors, key in ((own, "no comparison"), (own / 2, "own models")):
    references = {kept.CONSTANT: _SPREAD + 0.3, kept.LOCAL: errors}
    found = _decide(tmp_path / key, {"fed_avg": _SPREAD}, references)
    assert found.key == key


def test_a_lead_that_is_sure_and_small_is_called_little(tmp_path):
  methods = {"fed_avg": _SPREAD, _THETA: _SPREAD - 0.05}
  little = "The features tell little: the constant answer is hardly worse (mean error of Superq"
  assert little in _decide(tmp_path / "little", methods, {kept.CONSTANT: _SPREAD - 0.04}).text
  assert little not in _decide(tmp_path / "much", methods, {kept.CONSTANT: _SPREAD}).text


def test_what_is_not_detected_is_not_called_equal(tmp_path):
  """House prices: half of the constant answer's error, of three test clients."""
  found = _decide(tmp_path, {"fed_avg": [0.3, 0.6, 0.876]}, {kept.CONSTANT: [0.9, 1.2, 1.554]})
  assert found.key == "few clients"
  assert found.text.startswith("Test on more clients: 3 test clients cannot tell")
  rows = {row.name: row.cells[0].text for row in found.answers[0].box.rows}
  assert rows == {"constant answer": "121.8", "FedAvg": "59.2"}
  assert "no better" not in found.text


@pytest.mark.parametrize("number, key", [(5, "few clients"), (6, "take")])
def test_five_clients_tell_nothing_even_if_they_agree(tmp_path, number, key):
  errors = 0.3 + 0.001 * np.arange(number)
  methods = {"fed_avg": errors, _THETA: errors - 0.1 - 0.001 * np.arange(number)}
  assert _decide(tmp_path, methods, {kept.CONSTANT: errors + 0.2}, (0, 1)).key == key


def test_a_lead_that_one_method_of_many_has_by_chance_is_none(tmp_path):
  pattern = np.linspace(-1, 1, 12)
  pattern /= pattern.std(ddof=1) / np.sqrt(12)  # Its mean has a standard error of one.
  methods = {"fed_avg": np.full(12, 0.5), _THETA: 0.5 + 0.01 * (pattern - 2.6)}
  assert _decide(tmp_path / "one", methods, None, (0, 1)).key == "take"
  methods |= {f"superquantile_theta_0.{i}": 0.5 + 0.01 * pattern for i in (1, 2, 3, 4)}
  found = _decide(tmp_path / "many", methods, None, (0, 1))
  assert found.key == "keep" and found.evidence.chosen[0] == _THETA


def test_seeds_of_other_clients_count_together(tmp_path):
  finished_runs.fabricate(tmp_path, {"fed_avg": _SPREAD - 0.1}, {kept.CONSTANT: _SPREAD})
  found = _decide(tmp_path, {"fed_avg": _SPREAD - 0.3}, {kept.CONSTANT: _SPREAD}, (1,))
  (change,) = found.evidence.constant.values()
  assert change.value == pytest.approx(-0.2) and found.evidence.learned


@pytest.mark.parametrize(
  "metric, lead, key",
  [
    ("balanced_error", 0.01, "rare class"),
    ("error", 0.0, "rare class"),
    ("error", 0.01, "no comparison"),
  ],
)
@pytest.mark.parametrize("num_classes", [10, 11])
def test_classes_that_ranks_alone_tell_take_class_weights(tmp_path, metric, lead, key, num_classes):
  further = {"balanced_error": 0.0, "ranking_error": -0.15}
  methods, constant = {"fed_avg": _SPREAD}, {kept.CONSTANT: _SPREAD + lead}
  finished_runs.fabricate(tmp_path, methods, constant, further=further, metric=metric)
  columns = {"label": {"classes": list(map(str, range(num_classes)))}}
  atomic_files.write_json(tmp_path / "own" / "fed_avg" / "seed_0" / "columns.json", columns)
  references = kept.read(tmp_path / "own", 0)
  references.models[kept.CONSTANT].clients["ranking_error"][:] = 0.5
  kept.write(tmp_path / "own", 0, references)
  found = decision.decide(grouped.by_method(run_folder.find_runs(tmp_path)))
  assert (found.text.count("11 whole numbers, each a class") == 1) == (num_classes == 11)
  if num_classes == 11 and lead == 0:
    assert found.key == "quantity" and found.text.startswith("Say first what the labels are")
    return
  assert found.key == key
  is_said = "the ranking error shows that the features tell the rarer class" in found.text
  if is_said:
    ranks = [row.cells[0].text for row in found.answers[0].box.rows]
    assert ranks == ["50.0", "15.0"]
  assert is_said == (key == "rare class")
  assert ("--metric=balanced_error" in found.text) == (lead == 0)


def _in_csv(found):
  return ',"{}"\n'.format(found.text.replace("\n", " "))


def test_the_same_words_are_on_the_terminal_in_both_pages_and_in_the_file(tmp_path):
  methods = {"fed_avg": _SPREAD, _THETA: _SPREAD - 0.05}
  found = _decide(tmp_path, methods, {kept.CONSTANT: _SPREAD + 0.3}, (0, 1))
  content = comparison.report(tmp_path, "own")
  (said,) = content.answers
  assert said.words.startswith("Take Superquantile θ = 0.5: ") and said == found.answers[0]
  paths = page.write(content, tmp_path / "own")
  texts = [
    page.terminal_text(content, []),
    paths["html"].read_text().replace("\N{NO-BREAK SPACE}", " "),
    paths["md"].read_text().replace("\\", ""),
  ]
  for part in (said.words, *said.reasons, *said.caveats, said.box.note):
    assert all(part in text for text in texts)
  rows = np.genfromtxt(paths["csv"], delimiter=",", dtype=str, names=True, usecols=(0, 2))
  assert "decision" not in rows.dtype.names and _in_csv(found) in paths["csv"].read_text()


@pytest.mark.parametrize(
  "number, metric", [(3, "ranking_error"), (41, "ranking_error"), (41, "error")]
)
def test_a_measure_that_nobody_has_is_a_sentence_in_every_part(tmp_path, number, metric):
  errors = np.full(number, np.nan) if metric == "error" else np.linspace(0.2, 0.4, number)
  methods = {m: dict.fromkeys(("test", *parts.PARTS), errors) for m in ("fed_avg", _THETA)}
  references = dict.fromkeys(kept.LABELS, errors)
  flags = dict(metric=metric, rounds=_FALLING, further={"ranking_error": np.nan})
  groups = finished_runs.fabricate(tmp_path, methods, references, **flags)
  references = kept.read(tmp_path / "own", 0)
  entries = {"age": np.random.default_rng(1).normal(size=number)}
  kept.write(tmp_path / "own", 0, dataclasses.replace(references, profiles=entries))
  content = comparison.report(tmp_path, "own")
  for path in page.write(content, tmp_path / "own").values():
    assert path.stat().st_size
  assert page.terminal_text(content, [])
  if metric == "error":
    assert groups.measure_of_nobody == "error"
    assert content.answers[0].text.startswith("No method reports the 90th percentile")
  else:
    sentence = "No test client has a ranking error; the report leads with the error."
    assert sentence in content.answers[0].text and "mean error" in content.answers[0].text


def _decide_table(name, seed, folder, cache_dir):
  """Trains on a table, and decides."""
  folder.mkdir()
  wanted, flags = true_tables.write(name, seed, folder / "table.csv")
  places = dict(output_dir=str(folder / "results"), cache_dir=str(cache_dir))
  table = dict(data_dir=str(folder / "table.csv"), client_column="client", label_column="y")
  methods = [dict(algorithm="fed_avg")]
  if wanted in ("keep", "take"):  # Other decisions are there before methods are compared.
    methods.append(dict(algorithm="superquantile", theta=0.5))
  folds = flags.get("folds", 1)
  for method, fold in itertools.product(methods, range(folds)):
    run = dict(task="own", seed=seed * folds + fold)
    runner.train(run_config.from_values(**run, **table, **places, **flags, **method))
  making.make(run_folder.find_runs(folder / "results"))
  runs = cross_validation.pool(run_folder.find_runs(folder / "results"))
  return wanted, decision.decide(grouped.by_method(runs))


# Their runs have many clients or rounds.
_LONG = {"tiny clients", "reversed fifth", "drifting"}


@pytest.mark.parametrize(
  "name",
  [pytest.param(n, marks=[pytest.mark.slow] if n in _LONG else []) for n in true_tables.TABLES],
)
@pytest.mark.parametrize(
  "seeds, most_wrong", [(range(1), 0), pytest.param(range(20), 1, marks=pytest.mark.slow)]
)
def test_decisions_are_true(tmp_path, lab, restored_context, name, seeds, most_wrong):
  wrong = {}
  for seed in seeds:
    wanted, found = _decide_table(name, seed, tmp_path / str(seed), lab.cache_dir)
    if found.key != wanted:
      wrong[seed] = found
  assert len(wrong) <= most_wrong, wrong


def test_what_the_worst_off_share_is_named(tmp_path):
  rng = np.random.default_rng(1)
  errors = rng.uniform(0.1, 0.5, 41)
  methods = {"fed_avg": errors, _THETA: np.sort(errors)}
  finished_runs.fabricate(tmp_path, methods, {kept.CONSTANT: errors + 0.3})
  without = decision.decide(grouped.by_method(run_folder.find_runs(tmp_path))).evidence
  assert who_loses.table(without) is None
  entries = {"age": 3 * errors + 0.1 * rng.normal(size=41), "dose": rng.normal(size=41)}
  profiles = {**entries, "same": np.ones(41)}
  references = dataclasses.replace(kept.read(tmp_path / "own", 0), profiles=profiles)
  kept.write(tmp_path / "own", 0, references)
  e = decision.decide(grouped.by_method(run_folder.find_runs(tmp_path))).evidence
  table = who_loses.table(e)
  worst = np.argsort(-errors)[:5]
  assert [row.name for row in table.rows] == [f"client {i}" for i in worst]
  correlation = stats.spearmanr(entries["age"], errors).statistic
  assert f"larger errors go with larger age (rank correlation +{correlation:.2f})." in table.note
  age = (entries["age"] - entries["age"].mean()) / entries["age"].std(ddof=1)
  assert f"age +{age[worst[0]]:.1f}" in table.rows[0].cells[1].text
  shuffled = dataclasses.replace(references, profiles={"dose": profiles["dose"]})
  kept.write(tmp_path / "own", 0, shuffled)
  e = decision.decide(grouped.by_method(run_folder.find_runs(tmp_path))).evidence
  assert "none of the 1 entries goes with larger errors" in who_loses.table(e).note
  drawn = who_loses.figure(e)
  assert "1 clients between the two ends are left out" in drawn.caption
  assert "95 % intervals over the client’s own examples" in drawn.caption
