"""The register of an experiment: who is refused, whatever files are called, whenever runs start."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import threading
import time
import types

from helpers import client_tables
import pyarrow as pa
from pyarrow import parquet
import pytest

from tff_superquantile import atomic_files
from tff_superquantile.experiments import run
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import noise_key
from tff_superquantile.experiments.run import register
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.register import entries

_OWN = run_config.from_values(task="own", data_dir="t.csv", client_column="c", label_column="y")
_PRIVATE = run_config.with_values(
  dataclasses.replace(_OWN, privacy=run.Budget(epsilon=3.0)), split_seed=0
)
_ALLOWED = run_config.with_values(_PRIVATE, exact_siblings="allowed")
_MEASURED = "are to be protected, and are measured exactly in"
_REFUSED = "(are|may be) (protected|measured exactly) in .*/own/a/seed_0;"
_IS_PROTECTED = "are to be measured exactly, and are protected in"


def _coverage(protected, measured):
  return register.Coverage(frozenset(protected), frozenset(measured))


def _begin(folder, config, token="", finished=True, tables=()):
  """Writes what a folder has from the beginning of its run, and at its end."""
  folder.mkdir(parents=True, exist_ok=True)
  flags = config.to_flags().items()
  atomic_files.write_json(folder / "manifest.json", {register.TOKEN: token} if token else {})
  (folder / "flags.txt").write_text("".join(f"--{name}={value}\n" for name, value in flags))
  for client_id in tables:
    with open(folder / "test_clients.csv", "a") as stream:
      stream.write(("client_id,error\n" if not stream.tell() else "") + f"{client_id},0.5\n")
  if finished:
    atomic_files.write_json(folder / "metrics.json", {"test": {"error": {"mean": 0.5}}})
  return folder


def _enter(folder, protected="", measured="", config=None, begins=True, token=""):
  """Enters a run, which begins as its runner does."""
  folder.mkdir(parents=True, exist_ok=True)
  config = config or (_PRIVATE if protected else _OWN)
  token = register.enter(folder, _coverage(protected, measured), config, token)
  if begins:
    _begin(folder, config, token)
  return token


def _entered(folder, **of_run):
  _enter(folder, **of_run)
  return folder


def _contents(folder):
  return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}


@pytest.mark.parametrize("other", ["own/fed_avg", "tuning/own/fed_avg", "hosp:DEEP/fed_avg"])
@pytest.mark.parametrize(
  "first, second, words",
  [
    (("ab", "c"), ("", "c"), None),
    (("ab", "c"), ("", "bc"), f"Found 1 client who {_IS_PROTECTED}"),
    (("ab", "c"), ("", "xy"), None),
    (("ab", "c"), ("b", ""), None),
    (("ab", "c"), ("ab", "c"), None),
    (("ab", "c"), ("bc", ""), f"Found 1 client who {_MEASURED}"),
    (("", "ab"), ("ab", ""), f"Found 2 clients who {_MEASURED}"),
    (("", "ab"), ("c", "ab"), None),
  ],
)
def test_nobody_is_protected_in_one_run_and_measured_in_another(
  tmp_path, other, first, second, words
):
  """Whatever the other's task is called."""
  _enter(tmp_path / other / "seed_0", *first)
  own, before = tmp_path / "own/superquantile/seed_0", _contents(tmp_path)
  if words is None:
    _enter(own, *second)
    return
  with pytest.raises(ValueError, match=words) as refused:
    _enter(own, *second)
  assert f"{tmp_path / other / 'seed_0'};" in str(refused.value)
  assert "--exact_siblings=allowed" in str(refused.value)
  assert _contents(tmp_path) == before  # A refusal takes nothing along.
  # The run that protects says that others may, as its ledger does.
  allowed = run_config.with_values(_OWN, exact_siblings="allowed")
  if not second[0]:
    with pytest.raises(ValueError, match="in the run that protects them and from its beginning"):
      _enter(own, *second, config=allowed)
    shutil.rmtree(tmp_path / other / "seed_0")
    _enter(tmp_path / other / "seed_0", *first, config=_ALLOWED)
    allowed = _OWN
  _enter(own, *second, config=allowed)


@pytest.mark.parametrize(
  "spelled, is_same",
  [("7", True), ("007", True), ("7.0", True), (" 7", True), ("8", False), ("7a", False)],
)
def test_a_client_is_the_same_in_other_formats(tmp_path, spelled, is_same):
  _enter(tmp_path / "own/a/seed_0", protected=["7"])
  with pytest.raises(ValueError, match=_IS_PROTECTED) if is_same else contextlib.nullcontext():
    _enter(tmp_path / "own/b/seed_0", measured=[spelled])


def test_a_run_that_protects_whom_it_measures_is_refused(tmp_path):
  with pytest.raises(ValueError, match="Found 1 client who are to be measured"):
    _enter(tmp_path / "own/a/seed_0", "ab", "b")


def test_of_two_at_once_one_is_refused(tmp_path, monkeypatch):
  """Each compares, and takes its time; the other has to wait for what it enters."""
  conflicts, outcomes = entries.Register.conflicts, []

  def slow(*args, **kwargs):
    found = conflicts(*args, **kwargs)
    time.sleep(0.1)
    return found

  monkeypatch.setattr(entries.Register, "conflicts", slow)
  barrier = threading.Barrier(2)

  def start(name, protected, measured):
    barrier.wait()
    try:
      _enter(tmp_path / f"own/{name}/seed_0", protected, measured, begins=False)
      outcomes.append("entered")
    except ValueError:
      outcomes.append("refused")

  with contextlib.ExitStack() as stack:
    # Both are at work: what a run that is no more has entered counts for nothing.
    for name in "ab":
      stack.enter_context(run_folder.lock(tmp_path / f"own/{name}/seed_0"))
    threads = [threading.Thread(target=start, args=a) for a in (("a", "x", ""), ("b", "", "x"))]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  assert sorted(outcomes) == ["entered", "refused"]


def test_what_a_run_has_entered_that_never_began_counts_while_it_is_at_work(tmp_path):
  first, second = tmp_path / "own/a/seed_0", tmp_path / "own/b/seed_0"
  with run_folder.lock(first):
    (first / "log.txt").write_text("Its sweep writes that.")
    _enter(second, measured="x", begins=False)  # The first has entered nothing yet.
    register.withdraw(second)
    _enter(first, protected="x", begins=False)
    with pytest.raises(ValueError, match=_IS_PROTECTED):
      _enter(second, measured="x")
  _enter(second, measured="x")  # It was killed.
  with pytest.raises(ValueError, match=_MEASURED):
    _enter(first, protected="x")


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_refused_run_is_withdrawn(tmp_path, is_linked):
  folder = tmp_path / "out/own/a/seed_0"
  if is_linked:
    (tmp_path / "disk").mkdir()
    folder.parents[1].mkdir(parents=True)
    folder.parent.symlink_to(tmp_path / "disk")
  _enter(folder, protected="x", begins=False)
  assert _contents(tmp_path)
  register.withdraw(folder)
  assert _contents(tmp_path) == {}


@pytest.mark.parametrize("linked", ["own", "own/fed_avg", "own/fed_avg/seed_0"])
def test_links_hide_nobody(tmp_path, linked):
  """Disks fill up, and folders move to others."""
  out, disk = tmp_path / "out", tmp_path / "disk"
  (out / linked).parent.mkdir(parents=True)
  disk.mkdir()
  (out / linked).symlink_to(disk)
  token = _enter(out / "own/fed_avg/seed_0", protected="x")
  with pytest.raises(ValueError, match=_IS_PROTECTED):
    _enter(out / "own/b/seed_0", measured="x")
  # The other way round, and by its other name.
  _enter(out / "own/fed_avg/seed_0", protected="x", token=token)
  other = (out / "own/fed_avg/seed_0").resolve()
  assert [path for path in entries.Register(out)._entries] == [str(other)]
  disk.rename(tmp_path / "unmounted")
  with pytest.raises(ValueError, match=_IS_PROTECTED):
    _enter(out / "c/b/seed_0", measured="x")


def test_what_is_gone_counts_no_more(tmp_path):
  out = tmp_path / "out"
  private, public = out / "own/a/seed_0", out / "own/b/seed_0"
  (out / "own").mkdir(parents=True)
  (out / "own/report.html").touch()
  _enter(private, protected="x")
  private.rename(out / "old")
  with pytest.raises(ValueError, match="may be protected in .*/old;"):
    _enter(public, measured="x")
  (out / "old").rename(tmp_path / "elsewhere")
  _enter(public, measured="x")
  public.rename(tmp_path / "elsewhere_too")
  with pytest.raises(ValueError, match=_MEASURED):  # The report may tell of it.
    _enter(private, protected="x")
  (out / "own").rename(tmp_path / "gone")
  _enter(private, protected="x")


@pytest.mark.parametrize("depth", ["a", "a/b/c"])
def test_runs_and_tables_count_at_any_depth(tmp_path, depth):
  out, inner = tmp_path / "out", tmp_path / "out" / depth
  _begin(_entered(inner / "own/m/seed_0", measured="t"), _OWN, tables="t")
  with pytest.raises(ValueError, match=f"{_MEASURED} {inner}/own/m/seed_0;"):
    _enter(out / "own/p/seed_0", protected="t")
  shutil.rmtree(inner)
  inner.mkdir(parents=True)
  (inner / "notes").write_text("client_id\nt\n")
  with pytest.raises(ValueError, match=f"{_MEASURED} {inner}/notes;"):
    _enter(out / "own/p/seed_0", protected="t")
  # Whatever the run itself reads or keeps may be there.
  cached = run_config.with_values(_PRIVATE, cache_dir=str(out / "a"))
  _enter(out / "own/p/seed_0", protected="t", config=cached)


@pytest.mark.parametrize(
  "config, is_finished", [(_PRIVATE, True), (_PRIVATE, False), (_OWN, True), (_OWN, False)]
)
@pytest.mark.parametrize("how", ["unknown", "copied", "in the place of another"])
def test_a_run_without_an_entry_is_read_on_the_safe_side(tmp_path, config, is_finished, how):
  folder, own = tmp_path / "tuning/own/a/seed_0", tmp_path / "own/b/seed_0"
  if how == "in the place of another":
    _enter(folder, config=config)
    shutil.rmtree(folder)
  token = "" if how == "unknown" else "1234"
  _begin(folder, config, token, is_finished, tables="t")
  for own_of in itertools.product(("", "p", "t"), ("", "m", "t")):
    protected, measured = own_of
    if config.is_private:
      is_refused = protected == "t" or measured == "m"
    else:
      is_refused = protected == "t" or protected and not is_finished
    if protected != measured or not protected:
      with pytest.raises(ValueError, match=_REFUSED) if is_refused else contextlib.nullcontext():
        _enter(own, protected, measured)
  # It is read once.
  kept = entries.Register(tmp_path)._entries
  assert kept["tuning/own/a/seed_0"].token == token or token == ""


def test_a_run_that_lost_its_flags_may_be_anything(tmp_path):
  run = _begin(tmp_path / "own/a/seed_0", _OWN)
  for name in ("flags.txt", "manifest.json"):
    (run / name).unlink()
  for own in (("x", ""), ("", "x")):
    with pytest.raises(ValueError, match="may be (protected|measured exactly) in"):
      _enter(tmp_path / "own/b/seed_0", *own)


@pytest.mark.parametrize(
  "name", ["own/x.csv", "x.csv", "x.txt", "x", "own/a/b/later.tsv", "own/link"]
)
def test_tables_beside_the_runs(tmp_path, name):
  _enter(tmp_path / "out/own/a/seed_0", measured="t")
  path = tmp_path / "out" / name
  path.parent.mkdir(parents=True, exist_ok=True)
  text = "\ufeffrow,client_id\n0,'=x\n"
  if path.name == "link":
    path.symlink_to(tmp_path / "elsewhere.csv")
  path.write_text(text, encoding="utf-8")
  own = tmp_path / "out/own/b/seed_0"
  with pytest.raises(ValueError, match=f"{_MEASURED} {path}"):
    _enter(own, protected=["=x"])
  _enter(own, protected=["'=x"])
  # The run's own data may be there, too.
  _enter(own, protected=["=x"], config=run_config.with_values(_PRIVATE, data_dir=str(path)))
  assert path.read_text("utf-8") == text


@pytest.mark.parametrize("kind", [*client_tables.KINDS, "parquet"])
def test_tables_of_all_kinds(tmp_path, kind):
  _enter(tmp_path / "own/a/seed_0", measured="t")
  if kind == "parquet":
    parquet.write_table(pa.table({"client_id": ["a", "z"]}), tmp_path / "later")
  else:
    (tmp_path / "later").write_text(client_tables.KINDS[kind], "utf-16")
  with pytest.raises(ValueError, match=f"Found 1 client who {_MEASURED} {tmp_path / 'later'}"):
    _enter(tmp_path / "own/b/seed_0", protected="yz")
  _enter(tmp_path / "own/b/seed_0", protected="y")


def test_files_that_are_no_tables_are_passed_over(tmp_path):
  (tmp_path / "own").mkdir()
  (tmp_path / "own/report.html").write_text("x\nclient_id\nx\n")
  (tmp_path / "own/bytes").write_bytes(bytes(range(256)) * 99)
  (tmp_path / "own/loop").symlink_to(tmp_path / "own")
  (tmp_path / "own/nowhere").symlink_to(tmp_path / "missing")
  os.mkfifo(tmp_path / "own/pipe")
  _enter(tmp_path / "own/a/seed_0", protected="x")


@pytest.mark.parametrize("task", ["synthetic", "emnist_linear"])
def test_generated_clients_are_nobody(task):
  clients = dict(train="ab", test="c")
  splits = {split: types.SimpleNamespace(client_ids=ids) for split, ids in clients.items()}
  generated = run.RunConfig(task=run.Request(name=task, data="standin" if "_" in task else "files"))
  assert register.of_run(generated, splits) == _coverage("", "")
  assert register.of_run(_PRIVATE, splits) == _coverage("ab", "c")
  assert register.of_run(_OWN, splits) == _coverage("", "abc")


def test_the_register_is_its_owner_s(tmp_path):
  _enter(tmp_path / "own/a/seed_0", protected=["somebody"], measured=["another"])
  folder = tmp_path / "checkpoints"
  kept = {path.name: path.read_text() for path in folder.iterdir()}
  assert set(kept) == {"clients.json", "clients_key", "lock"}
  assert not any(name in "".join(kept.values()) for name in ("somebody", "another"))
  assert folder.stat().st_mode & 0o777 == 0o700
  for name in ("clients.json", "clients_key"):
    assert (folder / name).stat().st_mode & 0o777 == 0o600
  # Each register has a key of its own: two say nothing of each other.
  _enter(tmp_path / "other/own/a/seed_0", protected=["somebody"], measured=["another"])
  sets = [json.loads(path.read_text())["sets"] for path in tmp_path.rglob("clients.json")]
  assert len(sets) == 2 and not set(map(tuple, sets[0].values())) & set(
    map(tuple, sets[1].values())
  )


@pytest.mark.parametrize(
  "name, content",
  [
    ("clients.json", "{"),
    ("clients.json", "[]"),
    ("clients.json", '{"sets": {}, "entries": {"a": {}}}'),
    ("clients_key", "xyz"),
    ("clients_key", "00"),
    ("clients_key", None),
  ],
)
def test_a_damaged_register_is_refused(tmp_path, name, content):
  _enter(tmp_path / "own/a/seed_0", protected="x")
  path = tmp_path / "checkpoints" / name
  path.unlink()
  if content is not None:
    path.write_text(content)
  with pytest.raises(ValueError, match=f"Found .*{name}.*bring the file back, or remove"):
    _enter(tmp_path / "own/b/seed_0", protected="x")


def test_folders_in_folders_are_of_both_experiments(tmp_path):
  _enter(tmp_path / "own/a/seed_0", protected="x")
  with pytest.raises(ValueError, match=_IS_PROTECTED):
    _enter(tmp_path / "more/results/own/b/seed_0", measured="x")


# Exact numbers of a finished run's clients.


def _measure(folder, clients, out=None, is_allowed=False, error=None):
  with register.measuring(folder, frozenset(clients), is_allowed, out):
    if error:
      raise error
    if out is not None:
      out.write_text("client_id,error\n" + "".join(f"{client},0.5\n" for client in clients))


@pytest.mark.parametrize("config", [_PRIVATE, _OWN, _ALLOWED])
def test_no_client_is_evaluated_whom_a_run_protects(tmp_path, config):
  own = _coverage("a", "t") if config.is_private else _coverage("", "t")
  folder = tmp_path / "own/x/seed_0"
  _enter(folder, own.protected, own.measured, config=config)
  _enter(tmp_path / "own/y/seed_0", "b", "t", config=_ALLOWED)
  _enter(tmp_path / "own/z/seed_0", "c", "t")
  _measure(folder, "tn")
  # What a run says of its siblings, it does not say of its own evaluations.
  for clients, is_refused in (("a", config.is_private), ("b", False), ("c", True)):
    with pytest.raises(ValueError, match=_IS_PROTECTED) if is_refused else contextlib.nullcontext():
      _measure(folder, clients)
    _measure(folder, clients, is_allowed=True)


def test_a_file_of_exact_numbers_keeps_its_place(tmp_path):
  folder, out = tmp_path / "own/x/seed_0", tmp_path / "deep/below/exact.txt"
  _enter(folder, measured="t")
  out.parent.mkdir(parents=True)
  with register.measuring(folder, frozenset("n"), False, out):
    assert out.read_bytes() == b""
    with pytest.raises(ValueError, match=f"{_MEASURED} {out}"):
      _enter(tmp_path / "own/y/seed_0", protected="n")
  out.unlink()
  _enter(tmp_path / "own/y/seed_0", protected="n")
  before = _contents(tmp_path)
  for error in (ValueError("no"), KeyboardInterrupt()):
    with pytest.raises(type(error)):
      _measure(folder, "m", out, error=error)
    assert _contents(tmp_path) == before
  with pytest.raises(ValueError, match=_IS_PROTECTED):
    _measure(folder, "n", out)
  assert _contents(tmp_path) == before


def test_a_file_in_another_experiment_is_entered_there(tmp_path):
  _enter(tmp_path / "one/own/x/seed_0", measured="t")
  _enter(tmp_path / "two/own/x/seed_0", protected="n")
  with pytest.raises(ValueError, match=_IS_PROTECTED):
    _measure(tmp_path / "one/own/x/seed_0", "n", tmp_path / "two/exact")
  _measure(tmp_path / "one/own/x/seed_0", "n", tmp_path / "exact")


def test_an_evaluation_leaves_nothing_where_it_writes_nothing(tmp_path):
  folder = _begin(tmp_path / "own/x/seed_0", _OWN, tables="t")
  before = _contents(tmp_path)
  _measure(folder, "tn")
  assert _contents(tmp_path) == before and not (tmp_path / "checkpoints").exists()


# Keys of private runs.


def test_a_key_is_of_one_run(tmp_path):
  first, second = tmp_path / "own/a/seed_0", tmp_path / "own/b/seed_0"
  for folder in (first, second):
    _enter(folder, protected="x")
  assert register.enter_key(first, "1234") is None
  assert register.enter_key(first, "1234") is None  # It goes on.
  assert register.enter_key(second, "1234") == first
  assert register.enter_key(second, "5678") is None
  # Of a run that the register does not know, by its manifest.
  old = _begin(tmp_path / "own/c/seed_0", _PRIVATE, tables="t")
  atomic_files.write_json(old / "manifest.json", {"commitments": {"noise_key": "9abc"}})
  _enter(second, protected="", config=_PRIVATE)
  assert register.enter_key(second, "9abc") == old


def test_a_run_with_another_s_key_is_refused(tmp_path):
  (tmp_path / "key").write_text("0" * 32)
  for name, is_refused in (("a", False), ("b", True)):
    folder = tmp_path / f"own/{name}/seed_0"
    _enter(folder, protected="x", begins=False)
    with (
      pytest.raises(ValueError, match="Found the noise key of the run in .*own/a/seed_0")
      if is_refused
      else contextlib.nullcontext()
    ):
      noise_key.load(run_folder.Run(folder, 0), str(tmp_path / "key"), {})
    if not is_refused:
      _begin(folder, _PRIVATE, entries.Register(tmp_path)._entries["own/a/seed_0"].token)


def test_one_key_gives_other_noise_in_each_run_and_for_other_clients(tmp_path):
  key, new = bytes(16), run_folder.Run(tmp_path / "new", 0)
  private = dataclasses.replace(_OWN, privacy=run.Budget(epsilon=3.0))

  def noise(clients="0a", **flags):
    commitments = {"clients": clients}
    found = noise_key.of_noise(key, commitments, run_config.with_values(private, **flags), new)
    assert len(found) == 16 and set(commitments) == {"clients", "noise"}
    return found

  others = [noise(clients="0b"), noise(seed=1), noise(epsilon=4.0), noise(num_rounds=7)]
  assert len({key, noise(), *others}) == 2 + len(others)
  assert noise() == noise(output_dir="elsewhere", run_name="again", cache_dir="c")


def test_a_private_start_has_measured_nobody_who_is_to_be_protected(tmp_path):
  start = _begin(tmp_path / "elsewhere/own/a/seed_0", _PRIVATE, tables=["a", "b", "7"])
  register.check_start(start, _coverage("xy", "ab"), _PRIVATE)
  with pytest.raises(ValueError, match=f"Found 1 client who {_MEASURED}"):
    register.check_start(start, _coverage(["007"], "ab"), _PRIVATE)  # As tables are read here.
  with pytest.raises(ValueError, match=f"Found 1 client who {_MEASURED} {pathlib.Path(start)};"):
    register.check_start(start, _coverage("bx", "a"), _PRIVATE)
  register.check_start(start, _coverage("bx", "a"), _ALLOWED)
