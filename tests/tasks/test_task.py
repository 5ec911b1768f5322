"""Tasks: complete defaults, found by name, added by a file."""

import sys

import numpy as np
import pytest

import tasks
from tasks import task
from tff_superquantile.simulation import client_files

_GOOD = dict(
  num_rounds=10,
  clients_per_round=2,
  client_learning_rate=0.1,
  batch_size=0,
  local_epochs=1,
  l2=0.0,
  client_weighting="uniform",
  learning_rate_decay=1.0,
  rounds_per_decay=1,
  rounds_per_evaluation=5,
  max_loss=2.0,
)


def make_task(**changes):
  defaults = {**_GOOD, **changes}
  return task.Task(
    name="t",
    build_model=lambda seed: None,
    load_clients=lambda **kwargs: {},
    defaults={key: value for key, value in defaults.items() if value is not None},
  )


def test_defaults_are_kept_and_read_only():
  assert dict(make_task().defaults) == _GOOD
  with pytest.raises(TypeError):
    make_task().defaults["num_rounds"] = 1


def test_an_integer_is_a_rate_too():
  assert make_task(client_learning_rate=1).defaults["client_learning_rate"] == 1


@pytest.mark.parametrize(
  "changes,message",
  [
    (dict(num_rounds=None), "num_rounds"),
    (dict(lerning_rate=1.0), "lerning_rate"),
    (dict(num_rounds=0), "num_rounds = 0"),
    (dict(num_rounds=1.5), "num_rounds = 1.5"),
    (dict(num_rounds=True), "num_rounds = True"),
    (dict(batch_size=-1), "batch_size = -1"),
    (dict(l2="0"), "l2 = '0'"),
    (dict(l2=float("nan")), "l2 = nan"),
    (dict(client_weighting="examples"), "client_weighting = 'examples'"),
  ],
)
def test_wrong_defaults_are_named(changes, message):
  with pytest.raises(ValueError, match=message):
    make_task(**changes)


def test_the_tasks_of_the_package():
  expected = {"emnist_convnet", "emnist_linear", "sent140_linear", "sent140_lstm", "synthetic"}
  assert expected <= set(tasks.task_names())
  assert tasks.task_names() == tuple(sorted(tasks.task_names()))
  for name in tasks.task_names():
    assert tasks.get_task(name).name == name


def test_an_unknown_task_names_the_known_and_the_closest():
  with pytest.raises(ValueError, match="did you mean 'emnist_linear'") as error:
    tasks.get_task("emnist_liner")
  for name in tasks.task_names():
    assert name in str(error.value)


_NEW_TASK = """
from tasks import task

TASKS = (
  task.Task(name={name!r}, build_model=None, load_clients=None, defaults={defaults!r}),
)
"""


@pytest.fixture
def extra_directory(tmp_path, monkeypatch):
  monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path)])
  yield tmp_path
  for path in tmp_path.glob("*.py"):
    sys.modules.pop(f"tasks.{path.stem}", None)
    if hasattr(tasks, path.stem):
      delattr(tasks, path.stem)


def test_one_file_adds_a_task(extra_directory):
  text = _NEW_TASK.format(name="weather", defaults=_GOOD)
  (extra_directory / "weather_for_test.py").write_text(text)
  assert "weather" in tasks.task_names()
  assert tasks.get_task("weather").defaults["num_rounds"] == 10


def test_two_tasks_of_one_name_are_refused(extra_directory):
  text = _NEW_TASK.format(name="synthetic", defaults=_GOOD)
  (extra_directory / "zz_for_test.py").write_text(text)
  with pytest.raises(ValueError, match="two tasks named 'synthetic'"):
    tasks.task_names()


def test_the_model_is_built_for_the_files_only_if_it_takes_their_spec():
  calls = []

  def build_model(seed, **keywords):
    calls.append((seed, keywords))

  files = client_files.ClientFiles("/nowhere", ("a",), np.array([1]), (7,), "float32", 1.0, 2)
  for takes in (False, True):
    task.Task(
      name="t",
      build_model=build_model,
      load_clients=None,
      defaults=_GOOD,
      model_takes_input_spec=takes,
    ).build_model_for(files, seed=3)
  assert calls == [(3, {}), (3, {"input_spec": files.input_spec})]
  assert make_task().load_standin is None


@pytest.mark.parametrize(
  "changes,message",
  [
    (dict(seed=-1), "seed = -1"),
    (dict(min_examples_per_client=-1), "min_examples_per_client = -1"),
    (dict(num_train_clients=-2), "num_train_clients = -2"),
    (dict(num_test_clients=-3), "num_test_clients = -3"),
    (dict(validation_fraction=1.0), "validation_fraction = 1.0"),
    (dict(validation_fraction=-0.1), "validation_fraction = -0.1"),
    (dict(validation_fraction=float("nan")), "validation_fraction = nan"),
  ],
)
def test_check_arguments(changes, message):
  good = dict(seed=0, num_train_clients=0, num_test_clients=0, validation_fraction=0.0)
  task.check_arguments(**good)
  with pytest.raises(ValueError, match=message):
    task.check_arguments(**{**good, **changes})


def test_take_clients():
  ids = ["a", "b", "c"]
  assert task.take_clients(ids, 0, 2, "test") == ["a", "b"]
  assert task.take_clients(ids, 0, 5, "test") == ids
  assert task.take_clients(ids, 3, 2, "test") == ids
  with pytest.raises(ValueError, match="Found 3 test clients but 4"):
    task.take_clients(ids, 4, 2, "test")


def _files(counts):
  ids = tuple(counts)
  return client_files.ClientFiles(
    "/nowhere", ids, np.array(list(counts.values())), (7,), "float32", 1.0, 2
  )


def test_shuffled_clients():
  counts = {"b": 5, "a": 4, "d": 3, "c": 6}

  def shuffled(files):
    return task.shuffled_clients(np.random.default_rng(0), files)

  ids = shuffled(_files(counts))
  assert sorted(ids) == ["a", "b", "c", "d"]
  assert ids == shuffled(_files(dict(reversed(counts.items()))))
  orders = {
    tuple(task.shuffled_clients(np.random.default_rng(seed), _files(counts))) for seed in range(20)
  }
  assert len(orders) > 5 and {len(order) for order in orders} == {4}


def test_clients_with_enough_examples():
  files = _files({"b": 5, "a": 4, "d": 3, "c": 6})
  assert task.with_enough_examples(files, 3) is files
  found = task.with_enough_examples(files, 5)
  assert (found.client_ids, found.num_examples.tolist()) == (("b", "c"), [5, 6])
  # What was left out is said of every part, too.
  with pytest.raises(ValueError, match="1 test clients, without the 2 of 4 clients .* but 9 were"):
    task.take_clients(["b"], 9, 2, "test", found.subset(["b"]).remark)


def test_a_task_gets_the_arguments_that_it_takes():
  def load(*, seed, glove=""):
    return {"train": (seed, glove)}

  one = task.Task(name="t", build_model=None, load_clients=load, defaults=_GOOD)
  nothing = dict.fromkeys(task.LOAD_ARGUMENTS, 0)
  assert one.load({**nothing, "seed": 3, "glove": "g", "cache_dir": "c"}) == {"train": (3, "g")}
  with pytest.raises(ValueError, match="Found --data_dir=d for t, which has no use for it"):
    one.load({**nothing, "data_dir": "d"})
  with pytest.raises(ValueError, match="Found --data=standin for t"):
    one.load(nothing, standin=True)
  assert make_task().load(nothing) == {}  # It takes all.


def test_choose_clients():
  files = _files(dict(a=1, b=1, c=1, d=1)), _files(dict(a=2, e=2, f=2))
  choice = dict(num_train_clients=3, num_test_clients=0, own_number=2, validation_fraction=0.3)
  splits = task.choose_clients(files, [["d", "c", "b", "a"], ["f", "e", "a"]], **choice)
  assert {split: found.client_ids for split, found in splits.items()} == {
    "train": ("d", "c"),
    "validation": ("b",),
    "test": ("f", "e"),
  }
  assert splits["test"].num_examples.tolist() == [2, 2]
  choice["validation_fraction"] = 0.0
  assert set(task.choose_clients(files, [["d", "c", "b"], ["f"]], **choice)) == {"train", "test"}


def test_hold_out():
  ids = [str(i) for i in range(10)]
  assert task.hold_out(ids, 0.0) == (ids, [])
  assert task.hold_out(ids, 0.3) == (ids[:7], ids[7:])
  assert task.hold_out(ids, 1e-6) == (ids[:9], ids[9:])
  with pytest.raises(ValueError, match="holds out all 10"):
    task.hold_out(ids, 0.99)
