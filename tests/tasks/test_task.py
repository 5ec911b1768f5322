"""Tasks: complete defaults, found by name, added by a file."""

import sys

from helpers import pools
import pytest

import tasks
from tasks import own_flags
from tasks import task
from tff_superquantile.experiments.config import run_config

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
    open_clients=lambda request: [],
    defaults={key: value for key, value in defaults.items() if value is not None},
  )


@pytest.mark.parametrize("changes", [dict(num_rounds=None), dict(lerning_rate=1.0)])
def test_other_defaults_are_named(changes):
  with pytest.raises(ValueError, match=next(iter(changes))):
    make_task(**changes)


_WRONG = [("num_rounds", 0), ("num_rounds", 1.5), ("num_rounds", True), ("batch_size", -1)]
_WRONG += [("l2", "0"), ("l2", float("nan")), ("client_weighting", "examples")]


@pytest.mark.parametrize("name,value", _WRONG)
def test_a_run_checks_the_values_of_defaults(name, value):
  shown = repr(value) if name == "l2" and isinstance(value, str) else value
  with pytest.raises((TypeError, ValueError), match=f"Found --{name}={shown}[,;]"):
    run_config.with_defaults(run_config.from_values(task="synthetic"), {**_GOOD, name: value})


def test_an_unknown_task_names_the_known_and_the_closest():
  with pytest.raises(ValueError, match="did you mean 'emnist_linear'") as error:
    tasks.get_task("emnist_liner")
  for name in tasks.task_names():
    assert name in str(error.value)


_NEW_TASK = """
from tasks import task

TASKS = (
  task.Task(name={name!r}, build_model=None, open_clients=None, defaults={defaults!r}),
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


def _task_of(*clients, **fields):
  return task.Task("t", None, lambda request: clients, _GOOD, **fields)


def _load(one, **request):
  own = {name: request.pop(name) for name in ("data_dir", "glove") if name in request}
  flags = own_flags.WordFlags(**own) if own else None
  loaded = one.load_clients(task.Request("cache", own=flags, **request))
  return {split: files.client_ids for split, files in loaded.items()}


def _keep(pools, seed):
  del seed
  return pools


def test_what_a_task_has_no_use_for_is_refused():
  one = _task_of(pools.pool(dict(a=1, b=1)))
  assert set(_load(one, seed=3)) == {"train", "test"}
  for request in (dict(data_dir="d"), dict(glove="g"), dict(min_examples_per_client=2)):
    [(name, value)] = request.items()
    with pytest.raises(ValueError, match=f"Found --{name}={value} for t, which has no use for it"):
      _load(one, **request)
  with pytest.raises(ValueError, match="Found --data=standin for t"):
    _load(one, data="standin")
  reading = _task_of(
    pools.pool(dict(a=1, b=1)),
    flags=own_flags.FileFlags,
    min_examples=1,
    open_standin=one.open_clients,
  )
  assert _load(reading, data_dir="d", min_examples_per_client=1)
  assert _load(reading, data="standin")
  for name, value in (("data_dir", "d"), ("min_examples_per_client", 1)):
    with pytest.raises(ValueError, match="for t with --data=standin, which has no use"):
      _load(reading, data="standin", **{name: value})


def test_first_clients_are_taken_and_some_of_them_held_out():
  clients = pools.pool(dict(d=1, c=1, b=1, a=1)), pools.pool(dict(f=2, e=2, a=2))
  one = _task_of(*clients, split=_keep, clients_per_split=2)
  expected = {"train": ("d", "c"), "validation": ("b",), "test": ("f", "e")}
  asked = dict(num_train_clients=3, validation_fraction=0.3)
  assert _load(one, **asked, client_split="shuffled") == expected
  # The place of d is 0.117.
  assert _load(one, **asked) == {"train": ("c", "b"), "validation": ("d",), "test": ("f", "e")}
  assert _load(one) == {"train": ("d", "c"), "test": ("f", "e")}
  assert _load(_task_of(*clients, split=_keep))["train"] == ("d", "c", "b", "a")
  loaded = one.load_clients(task.Request("cache"))
  assert loaded["test"].num_examples.tolist() == [2, 2]


def test_validation_clients_of_a_tasks_own():
  clients = pools.pool(dict(a=1)), pools.pool(dict(b=1)), pools.pool(dict(c=1, d=1))
  one = _task_of(*clients, split=_keep, clients_per_split=1)
  assert _load(one) == {"train": ("a",), "test": ("b",), "validation": ("c", "d")}
  with pytest.raises(ValueError, match="the task has 2 validation clients of its own"):
    _load(one, validation_fraction=0.5)


def test_small_clients_are_dropped_and_every_error_says_how_many():
  asked = []

  def open_clients(request):
    asked.append(request.min_examples_per_client)
    return [pools.pool(dict(b=5, a=4, d=3, c=6))]

  one = task.Task("t", None, open_clients, _GOOD, min_examples=4)
  assert sorted(sum(_load(one).values(), ())) == ["a", "b", "c"]
  assert sorted(sum(_load(one, min_examples_per_client=5).values(), ())) == ["b", "c"]
  assert asked == [4, 5]
  without = "without the 2 of 4 clients that have fewer than 5 examples .--min_examples_per_client"
  with pytest.raises(ValueError, match=f"1 test clients, {without}. but 9 were"):
    _load(one, num_test_clients=9, min_examples_per_client=5)
  with pytest.raises(ValueError, match="0 clients to train on and 1 to test on, without the 3"):
    _load(one, min_examples_per_client=6)


def test_without_clients_to_test_on_the_error_says_where_the_data_is():
  with pytest.raises(ValueError, match="1 clients .* in cache; .* either: .* get more data"):
    _load(_task_of(pools.pool(dict(a=1))))
  with pytest.raises(ValueError, match="^Found 1 clients .* in d;"):
    _load(_task_of(pools.pool(dict(a=1)), flags=own_flags.FileFlags), data_dir="d")
