"""The rows and scalars of rounds, against TFF's own managers."""

import asyncio
import csv
import pathlib
import resource

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile.simulation import release_managers

_ROW = {"loss": 0.1, "cohort_size": 3}


def _release(manager, *released):
  async def release_all():
    for key, value in released:
      await manager.release(value, key)

  asyncio.run(release_all())


def _manager(tmp_path):
  return release_managers.RowReleaseManager(tmp_path / "rounds.csv")


def _rows(tmp_path):
  with open(tmp_path / "rounds.csv", newline="") as stream:
    return list(csv.DictReader(stream))


@pytest.mark.parametrize("seed", range(30))
def test_the_file_is_that_of_tff(tmp_path, seed):
  # Rounds that come again, columns that come and go, processes that end and begin.
  rng = np.random.default_rng(seed)
  paths = [tmp_path / name for name in ("ours.csv", "tffs.csv")]
  managers = []
  key = 0
  for step in range(25):
    if step == 0 or rng.random() < 0.2:
      managers = [
        release_managers.RowReleaseManager(paths[0]),
        tff.program.CSVFileReleaseManager(paths[1], key_fieldname="round"),
      ]
    names = ["a", *rng.permutation(["b", "c", "d, e", 'f"'])[: rng.integers(0, 4)]]
    value = {str(name): rng.choice([3, -1e-9, 1e300, np.nan, 0.1]).item() for name in names}
    for manager in managers:
      _release(manager, (key, value))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    key = max(0, key + rng.choice([1, 1, 1, 1, 2, 0, -3]).item())


def test_rows_are_appended(tmp_path):
  manager = _manager(tmp_path)
  _release(manager, (1, _ROW))
  written = (tmp_path / "rounds.csv").stat().st_ino
  before = (tmp_path / "rounds.csv").read_bytes()
  for key in range(2, 9):
    _release(manager, (key, {"loss": float(key)}))
    after = (tmp_path / "rounds.csv").read_bytes()
    assert after == before + f"{key},,{float(key)}\r\n".encode()
    before = after
  # Never written anew, which would take the longer the more rounds there are.
  assert (tmp_path / "rounds.csv").stat().st_ino == written


def test_nothing_is_written_before_a_release(tmp_path):
  _manager(tmp_path)
  assert not list(tmp_path.iterdir())
  text = b"round,loss\r\n0,0.2\r\n1,0.1\r\n2,0."
  (tmp_path / "rounds.csv").write_bytes(text)
  for final_until in (None, 1, 2):
    release_managers.RowReleaseManager(tmp_path / "rounds.csv", final_until=final_until)
  with pytest.raises(ValueError, match="Found no row of round 2, which was released"):
    release_managers.RowReleaseManager(tmp_path / "rounds.csv", final_until=3)
  assert (tmp_path / "rounds.csv").read_bytes() == text


@pytest.mark.parametrize("torn", ["2", "2,0.", "2,0.2,4", "2,0.2,4\r"])
def test_a_torn_last_line_goes(tmp_path, torn):
  _release(_manager(tmp_path), (1, _ROW))
  with open(tmp_path / "rounds.csv", "a", newline="") as stream:
    stream.write(torn)
  _release(_manager(tmp_path), (2, _ROW))
  assert [row["round"] for row in _rows(tmp_path)] == ["1", "2"]
  assert all(row["loss"] == "0.1" and row["cohort_size"] == "3" for row in _rows(tmp_path))


def test_a_torn_number_is_not_taken_for_an_earlier_round(tmp_path):
  _release(_manager(tmp_path), *((key, _ROW) for key in range(13)))
  with open(tmp_path / "rounds.csv", "a", newline="") as stream:
    stream.write("1")  # Of 13.
  _release(_manager(tmp_path), (11, _ROW))
  assert [row["round"] for row in _rows(tmp_path)] == list(map(str, range(12)))


def test_rows_past_the_checkpoint_go_when_their_round_comes_again(tmp_path):
  _release(_manager(tmp_path), *((key, _ROW) for key in range(9)))
  _release(_manager(tmp_path), (5, {"loss": 0.5}))
  assert [(row["round"], row["loss"]) for row in _rows(tmp_path)] == [
    *((str(key), "0.1") for key in range(5)),
    ("5", "0.5"),
  ]


@pytest.mark.parametrize(
  "text", [b"loss,round\r\n0.1,1\r\n", b"round,loss\r\nfirst,0.1\r\n", b"round\r\n1,2\r\n"]
)
def test_other_files_are_refused_in_a_sentence(tmp_path, text):
  (tmp_path / "rounds.csv").write_bytes(text)
  with pytest.raises(ValueError, match="^Found a (file|row of) .*rounds.csv"):
    _manager(tmp_path)
  assert (tmp_path / "rounds.csv").read_bytes() == text


def _scalars(folder: pathlib.Path):
  (path,) = folder.iterdir()
  return [
    (event.step, value.tag, value.metadata.plugin_data.plugin_name, tf.make_ndarray(value.tensor))
    for event in tf.compat.v1.train.summary_iterator(str(path))
    for value in event.summary.value
  ]


def test_scalars_are_those_of_tff(tmp_path):
  managers = [
    release_managers.ScalarReleaseManager(tmp_path / "ours"),
    tff.program.TensorBoardReleaseManager(tmp_path / "tffs"),
  ]
  for manager in managers:
    _release(manager, *((key, {"b": 0.1 * key, "a": key, "nan": np.nan}) for key in range(3)))
  del manager, managers  # Which flushes what they wrote.
  scalars, expected = (_scalars(tmp_path / name) for name in ("ours", "tffs"))
  assert len(scalars) == 9
  np.testing.assert_equal(scalars, expected)


def test_events_that_cannot_be_written_are_an_error_of_the_round(tmp_path, capsys):
  manager = release_managers.ScalarReleaseManager(tmp_path / "events")
  (path,) = (tmp_path / "events").iterdir()
  old = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 9, old[1]))
  try:
    with pytest.raises(OSError, match="File too large") as caught:
      _release(manager, (0, {"a": 1.0}))
    manager.close()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
  assert caught.value.filename == str(path)
  assert not any(capsys.readouterr())
