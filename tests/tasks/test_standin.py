"""Generated stand-ins: the shapes of the real data, always the same, and worth learning from."""

from helpers import pools
import numpy as np
import pytest

import tasks
from tasks.emnist import standin as emnist_standin
from tasks.sent140 import standin as sent140_standin
from tasks.shakespeare import standin as shakespeare_standin

_MAKERS = {
  "emnist": emnist_standin.make_writers,
  "sent140": lambda: sent140_standin.make_users(50),
  "shakespeare": shakespeare_standin.make_roles,
}
# The sent140_lstm task has those of sent140_linear, in another form, and 115 MB of them.
_NAMES = ("emnist_linear", "sent140_linear")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
  return str(tmp_path_factory.mktemp("standin"))


@pytest.fixture(scope="module", params=_NAMES)
def name_and_splits(request, cache_dir):
  return request.param, pools.load(request.param, "", cache_dir, data="standin")


def test_shapes_and_sizes(name_and_splits):
  name, splits = name_and_splits
  model = tasks.get_task(name).build_model(0)
  assert set(splits) == {"train", "test"}
  least, most = {"emnist_linear": (100, 400), "sent140_linear": (50, 150)}[name]
  for files in splits.values():
    assert 170 <= len(files.client_ids) <= 230
    assert least <= files.num_examples.min() and files.num_examples.max() <= most
    assert files.num_examples.std() > 0.1 * files.num_examples.mean()
    assert files.input_spec == model.input_spec
    if name == "emnist_linear":  # Paper is white.
      assert (files.x_dtype, files.x_scale) == ("uint8", 1 / 255)
      assert np.median(files.load()[0]) == 255
  assert sum(len(files.client_ids) for files in splits.values()) == 400
  assert not set(splits["train"].client_ids) & set(splits["test"].client_ids)


def test_a_linear_model_learns_and_some_clients_are_left_behind(name_and_splits):
  """Least squares on half of the clients; its errors on the others are what the tasks need."""
  name, splits = name_and_splits
  data = {}
  for split, files in splits.items():
    x, y, offsets = files.load()
    x = files.decode(x).numpy().reshape(len(y), -1)
    data[split] = np.pad(1.0 - x if "emnist" in name else x, ((0, 0), (0, 1))), y, offsets
  x, y, _ = data["train"]
  targets = np.eye(62)[y] if name == "emnist_linear" else np.eye(2)[y] - 0.5
  w = np.linalg.solve(x.T @ x + 10.0 * np.eye(x.shape[1]), x.T @ targets)
  x, y, offsets = data["test"]
  wrong = (x @ w).argmax(axis=1) != y
  errors = np.array([wrong[a:b].mean() for a, b in zip(offsets[:-1], offsets[1:])])
  assert 0.15 < errors.mean() < 0.5
  assert np.percentile(errors, 90) > errors.mean() + 0.08
  # More than the chance of which examples a client has.
  chance = np.sqrt(np.mean(errors * (1 - errors) / np.diff(offsets)))
  assert errors.std() > 1.3 * chance


@pytest.mark.parametrize("kind", _MAKERS)
def test_clients_are_always_the_same(kind, monkeypatch):
  monkeypatch.setattr(emnist_standin, "NUM_WRITERS", 2)
  monkeypatch.setattr(sent140_standin, "NUM_USERS", 2)
  monkeypatch.setattr(shakespeare_standin, "NUM_ROLES", 2)
  first, again = list(_MAKERS[kind]()), list(_MAKERS[kind]())
  assert len(first) == 2 and first[0][0] != first[1][0]
  for (client, x, y), (same_client, same_x, same_y) in zip(first, again):
    assert client == same_client
    np.testing.assert_array_equal(np.concatenate(x), np.concatenate(same_x))
    np.testing.assert_array_equal(y, same_y)
  assert not np.array_equal(first[0][2][:50], first[1][2][:50])
