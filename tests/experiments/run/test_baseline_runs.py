"""Runs of the methods that superquantile aggregation is compared with: results and refusals."""

import dataclasses

from helpers import commands
import numpy as np
import pytest
import tensorflow as tf

from privacy import cohorts
from privacy.settings import command_line
import tasks
from tasks import models
from tff_superquantile import evaluation
from tff_superquantile.experiments import train
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run import runner
from tff_superquantile.experiments.run import selection
from tff_superquantile.simulation import client_files

_COHORT = 8
# Folder: the flags that make it.
_METHODS = {
  "fed_avg": dict(algorithm="fed_avg"),
  "fed_avg_sub_theta_0.3": dict(algorithm="fed_avg_sub", theta=0.3),
  "fed_prox_mu_0.5": dict(algorithm="fed_prox", proximal_weight=0.5),
  "q_fed_avg_q_1": dict(algorithm="q_fed_avg", q=1.0),
  "q_fed_avg_q_10": dict(algorithm="q_fed_avg", q=10.0),
  "tilted_erm_t_2": dict(algorithm="tilted_erm", temperature=2.0),
  "tilted_erm_t_2_average_0.5": dict(
    algorithm="tilted_erm", temperature=2.0, moving_average_rate=0.5
  ),
  "agnostic_fed_avg_rate_0.1": dict(algorithm="agnostic_fed_avg", ascent_rate=0.1),
  "prop_fair_M_5": dict(algorithm="prop_fair", utility_bound=5.0),
  "semi_vred_beta_2": dict(algorithm="semi_vred", beta=2.0),
  "gifair_lambda_0.9": dict(algorithm="gifair", fairness_strength=0.9),
  "aaggff_step_5": dict(algorithm="aaggff", decision_step=5.0),
}
_WEIGHTED = tuple(
  name
  for name in _METHODS
  if name.startswith(("q_", "tilted", "agnostic", "semi", "gifair", "aaggff"))
)
_COLUMNS = {
  *("round", "cohort_size", "tail_size", "num_excluded", "train_loss"),
  *(f"test_{q}_{name}" for q in ("error", "loss") for name in ("mean", "p90", "superquantile_90")),
}
_COLUMNS_OF_WEIGHTED = {"cohort_loss_mean", "loss_max", "effective_clients"}


def _config(**values):
  """A small run with `values`."""
  small = dict(num_train_clients=30, num_test_clients=15, clients_per_round=_COHORT)
  return run_config.from_values(**{**small, "num_rounds": 3, "rounds_per_evaluation": 2, **values})


@pytest.fixture(scope="module")
def run_here(lab):
  """Runs the train command's function in this process, which has started TensorFlow before."""
  return lambda out, **values: runner.train(_config(**lab.places(out), **values)).path


@pytest.fixture(scope="module")
def runs(lab, run_here):
  """{folder of the method: its run}, carried out when it is asked for."""

  class Runs(dict):
    def __missing__(self, method):
      path = run_here("runs", **_METHODS[method])
      assert path == lab.folder / "runs" / "synthetic" / method / "seed_0"
      self[method] = run_folder.Run(path, 0)
      return self[method]

  return Runs()


@pytest.fixture(scope="module")
def clients(lab):
  """The model and the clients of the small task."""
  return build.load_task(tasks.get_task("synthetic"), _config(cache_dir=str(lab.cache_dir)))


@pytest.mark.parametrize("binary, label", [(False, 10), (True, 2)])
def test_labels_that_the_model_does_not_know_are_refused(tmp_path, binary, label):
  def open_clients(request):
    pool = client_files.open_or_write_client_files(
      request.cache_dir, lambda: [("a", np.zeros((3, 20), np.float32), np.int32([0, label, 1]))]
    )
    return [pool, pool]

  task = tasks.get_task("synthetic")
  if binary:
    spec = (tf.TensorSpec([None, 20], tf.float32), tf.TensorSpec([None], tf.int32))
    model = models.build_logistic_regression(spec, intercept=True)
    task = dataclasses.replace(task, build_model=lambda seed: model)
  task = dataclasses.replace(task, open_clients=open_clients)
  with pytest.raises(ValueError, match=f"label {label} in .*at most {label - 1}"):
    build.load_task(
      task, _config(cache_dir=str(tmp_path / "c"), num_train_clients=1, num_test_clients=1)
    )


# What the runs leave.


@pytest.mark.parametrize("method", _METHODS)
def test_every_method_leaves_its_columns_and_the_flags_that_repeat_it(runs, method):
  config = run_config.from_flags(runs[method].flags)
  assert _METHODS[method].items() <= config.values().items()
  assert isinstance(config.cohort, cohorts.FixedSize) and config.local.learning_rate == 0.1
  rows = commands.rows(runs[method].path)
  columns = _COLUMNS | (_COLUMNS_OF_WEIGHTED if method in _WEIGHTED else set())
  if method.startswith("tilted_erm"):
    columns = columns | {"update_scale"}
  assert rows[0].keys() == columns
  assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
  assert [row["round"] for row in rows if row["test_error_mean"]] == ["0", "2", "3"]
  size = 3 if method.startswith("fed_avg_sub") else _COHORT  # ceil(0.3 * 8)
  for row in rows[1:]:
    assert (row["cohort_size"], row["num_excluded"]) == (str(size), "0")
    assert all(np.isfinite(float(row[name])) for name in columns if not name.startswith("test_"))
  if method in _WEIGHTED:  # Weights of clients are equal while their losses are.
    effective = runs[method].rounds["effective_clients"]
    np.testing.assert_allclose(effective[1], _COHORT, rtol=1e-6)
    assert np.all((1 <= effective[2:]) & (effective[2:] < _COHORT - 0.01))
  # From a model that guesses to one that has learned something.
  assert float(rows[-1]["train_loss"]) < 0.98 * float(rows[1]["train_loss"])


@pytest.mark.parametrize("method", _METHODS)
def test_weights_are_those_of_the_model_that_was_evaluated(runs, clients, method):
  weights, non_trainable = runs[method].weights
  assert [array.shape for array in weights] == [(20, 10), (10,)] and non_trainable == ()
  model, splits = clients
  for split, files in splits.items():
    x, y, offsets = files.load()
    examples = evaluation.ClientExamples(files.client_ids, x, y, offsets, files.decode)
    expected = evaluation.build_evaluator(model, examples)(runs[method].weights)
    found = runs[method].clients(split)
    assert list(found["client_id"]) == list(expected.client_ids)
    np.testing.assert_array_equal(found["error"], expected.error)
    np.testing.assert_allclose(found["loss"], expected.loss, rtol=1e-12)
    # And without our evaluation: a linear model takes the largest of x W + b.
    wrong = np.argmax(x @ weights[0] + weights[1], axis=-1) != y
    by_hand = [wrong[a:b].mean() for a, b in zip(offsets[:-1], offsets[1:])]
    np.testing.assert_allclose(found["error"], by_hand, atol=1e-12)


def test_methods_differ(runs):
  # One full-batch step from where the proximal term pulls to: it has no effect on this task.
  np.testing.assert_array_equal(
    runs["fed_prox_mu_0.5"].weights.trainable[0], runs["fed_avg"].weights.trainable[0]
  )
  others = [method for method in _METHODS if method != "fed_prox_mu_0.5"]
  arrays = {runs[method].weights.trainable[0].tobytes() for method in others}
  assert len(arrays) == len(others)


def test_method_with_a_memory_continues_where_it_stopped(runs, run_here):
  method = "agnostic_fed_avg_rate_0.1"
  run_here("continued", **{**_METHODS[method], "num_rounds": 2})
  path = run_here("continued", **_METHODS[method])
  commands.assert_same_results(path, runs[method].path)
  for array, other in zip(
    run_folder.Run(path, 0).weights.trainable,
    runs[method].weights.trainable,
  ):
    np.testing.assert_array_equal(array, other)


# Cohorts.


def _handles(files, values, rounds=range(1, 6)):
  """[[(file, seed, index) of a client] of a round]"""
  values = {"sampling": "fixed_size", **values}
  config = run_config.with_defaults(_config(**values), tasks.get_task("synthetic").defaults)
  select = selection.build_selection(files, config)
  return [
    [
      (str(handle["path"]), tuple(handle["seed"].tolist()), int(handle["index"]))
      for handle in select(round_num)
    ]
    for round_num in rounds
  ]


@pytest.mark.parametrize(
  "theta, cohort, size",
  [
    *((1.0, 8, 8), (0.8, 8, 7), (0.375, 8, 3), (0.3, 8, 3), (0.1, 8, 1), (1e-6, 8, 1)),
    # Rounding adds no client: 0.1 * 30 is a little above 3.
    *((0.1, 30, 3), (0.7, 10, 7), (0.35, 20, 7)),
  ],
)
def test_fed_avg_sub_trains_a_part_of_the_cohort_of_fed_avg(clients, theta, cohort, size):
  files, asked = clients[1]["train"], dict(clients_per_round=cohort)
  whole = _handles(files, dict(algorithm="fed_avg", **asked))
  part = _handles(files, dict(algorithm="fed_avg_sub", theta=theta, **asked))
  assert [len(of_round) for of_round in whole] == [cohort] * 5
  assert part == [of_round[:size] for of_round in whole]


def test_all_methods_of_a_seed_have_the_same_cohorts(clients):
  files = clients[1]["train"]
  expected = _handles(files, dict(algorithm="fed_avg"))
  for method in _METHODS.values():
    if method["algorithm"] != "fed_avg_sub":
      assert _handles(files, method) == expected
  assert _handles(files, dict(algorithm="superquantile", theta=0.1)) == expected
  assert _handles(files, dict(algorithm="fed_avg", seed=1)) != expected


# What is refused.

_PRIVATE = "--epsilon=5 --clip_norm=1"
_REFUSED = {
  # The part of FedAvg-Sub.
  "--algorithm=fed_avg_sub --sampling=poisson": ("fed_avg_sub", "--sampling=poisson", "fixed"),
  # Not every method is private, nor all of one.
  f"--algorithm=fed_avg_sub --theta=0.5 --sampling=fixed_size {_PRIVATE}": (
    *("--algorithm=fed_avg_sub", "private run", "fed_avg, q_fed_avg, tilted_erm, prop_fair"),
  ),
  f"--algorithm=fed_prox --proximal_weight=1 {_PRIVATE}": ("--algorithm=fed_prox", "private run"),
  f"--algorithm=tilted_erm --temperature=1 --moving_average_rate=0.5 {_PRIVATE}": (
    *("--moving_average_rate=0.5", "private run"),
  ),
  f"--algorithm=q_fed_avg --q=1 {_PRIVATE} --rho_ratio=0.5": (
    *("--rho_ratio=0.5", "without a threshold"),
  ),
  f"--algorithm=agnostic_fed_avg --ascent_rate=1 {_PRIVATE}": ("agnostic_fed_avg", "private run"),
  f"--algorithm=aaggff {_PRIVATE}": ("--algorithm=aaggff", "private run; use one of fed_avg"),
  f"--algorithm=gifair --fairness_strength=1 {_PRIVATE} --threshold=geometric": (
    *("--threshold=geometric", "without it; use one of tree."),
  ),
  "--algorithm=semi_vred --beta=1 --threshold=tree": ("--threshold=tree", "not private"),
  "--algorithm=q_fed_avg --q=1 --share_weight=0.5": ("--share_weight=0.5", "not private"),
  f"--algorithm=gifair --fairness_strength=1 {_PRIVATE} --share_weight=0.5": (
    *("--share_weight=0.5", "belongs to --algorithm=q_fed_avg, tilted_erm, prop_fair"),
  ),
  # Data that is generated anyway.
  "--algorithm=fed_avg --data=standin": ("--data=standin", "synthetic", "leave it out"),
}


@pytest.mark.parametrize("arguments", _REFUSED)
def test_flags_that_do_not_belong_together_are_refused(lab, run_here, arguments):
  values = train_flags.values(command_line.parse(train, arguments.split()))
  output_dir = f"refused_{list(_REFUSED).index(arguments)}"
  with pytest.raises(ValueError) as error:
    run_here(output_dir, **values)
  sentence = str(error.value)
  assert sentence.startswith("Found ") and sentence.endswith(".") and "\n" not in sentence
  for part in _REFUSED[arguments]:
    assert part in sentence
  # Nothing was computed, and flags are seen before a folder is made.
  assert not list((lab.folder / output_dir).rglob("flags.txt"))
  assert "--data" in arguments or not (lab.folder / output_dir).exists()
