"""What keeps many machines apart and together, each part by itself: no process, no network."""

import asyncio
import json
import sys

import pytest

from tff_superquantile.engine.processes import cpu
from tff_superquantile.experiments.cluster import child
from tff_superquantile.experiments.cluster import door
from tff_superquantile.experiments.cluster import driver
from tff_superquantile.experiments.cluster import facts
from tff_superquantile.experiments.cluster import hands
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.plan import pool
from tff_superquantile.experiments.plan import stages
from tff_superquantile.experiments.run import attempts
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run import runner
from tff_superquantile.experiments.run.hooks import superseded

_NOTHING = facts.Needs("/", "/", ())
_SMALL = dict(task="synthetic", num_train_clients=30, num_test_clients=15, clients_per_round=8)


def _door(**changes):
  return door.Door("tls://127.0.0.1:1", "a" * 16, 60.0, "certificate", "key")._replace(**changes)


def test_the_file_of_a_scheduler_is_its_owners_alone(tmp_path):
  path = tmp_path / "s.json"
  with pytest.raises(ValueError, match="No such file.*superquantile scheduler --scheduler"):
    door.read(path)
  door.write(path, _door())
  assert path.stat().st_mode & 0o777 == 0o600 and door.read(path) == _door()
  assert door.scheduler_of(path) == "a" * 16 != door.scheduler_of(tmp_path / "other")
  for mode in (0o604, 0o640, 0o622, 0o644):
    path.chmod(mode)
    with pytest.raises(ValueError, match=f"mode {mode:04o}.*chmod 600"):
      door.read(path)
  path.chmod(0o400)
  assert door.read(path) == _door()
  for text in ("", "[]", '{"address": "tls://x:1"}'):
    path.chmod(0o600)
    path.write_text(text)
    with pytest.raises(ValueError, match="Found no file of a scheduler"):
      door.read(path)


def test_both_sides_have_to_show_the_certificate():
  distributed = pytest.importorskip("distributed", reason="needs the extra `cluster`")
  made = door.make("a" * 16, 60.0)
  assert made.key != door.make("a" * 16, 60.0).key
  security = made.security()
  assert security.require_encryption and security.tls_ca_file == made.certificate
  for role in ("client", "scheduler", "worker"):
    config = security.get_tls_config_for_role(role)
    assert config["ca_file"] == config["cert"] == made.certificate and config["key"] == made.key
  assert isinstance(security, distributed.Security)


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "distributed", None)
  with pytest.raises(ValueError, match=r"Found no package .*'tff-superquantile\[cluster\]'"):
    door.distributed()


def test_the_last_attempt_that_began_may_write(tmp_path):
  with run_folder.lock(tmp_path):
    mine, other = attempts.owner("a run at a scheduler"), attempts.owner("another")
    attempts.act_for(mine)
    attempts.begin(tmp_path)
    attempts.check(tmp_path)
    assert attempts.is_of(tmp_path, mine) and not attempts.is_of(tmp_path, other)
    attempts.check(tmp_path)
    # A process that is refused leaves the mark.
    with pytest.raises(run_folder.OccupiedError), run_folder.lock(tmp_path):
      pass
    attempts.check(tmp_path)
    attempts.supersede(tmp_path, mine)
    with pytest.raises(run_folder.OccupiedError, match="another attempt at the run"):
      attempts.check(tmp_path)
    attempts.begin(tmp_path)
    attempts.check(tmp_path)
  attempts.act_for("-" * 16)


def test_a_superseded_run_writes_nothing_more(tmp_path, cache_dir, monkeypatch, restored_context):
  look = superseded.Superseded.on_round

  def on_round(self, round_num, values):
    if round_num == 3:  # Another machine has been given the run.
      (self.job.folder / "lock").write_text("another's")
    look(self, round_num, values)

  monkeypatch.setattr(superseded.Superseded, "on_round", on_round)
  places = dict(output_dir=str(tmp_path), cache_dir=str(cache_dir))
  config = run_config.from_values(**_SMALL, **places, num_rounds=5)
  with pytest.raises(run_folder.OccupiedError, match="another attempt"):
    runner.train(config)
  run = run_folder.of_config(config)
  assert run.last_round == 2
  # Nor is the state saved of the rounds that it had done.
  assert not list((run.path / "checkpoints").glob("program_state_*"))


def test_facts_follow_content_and_say_what_is_missing(tmp_path):
  data, witness = tmp_path / "data", tmp_path / "witness"
  data.mkdir()
  (data / "a.csv").write_text("a,b\n1,2\n")
  witness.touch()

  def here(paths=("data",), folder=tmp_path):
    return facts.of_here(facts.Needs(str(folder), str(witness), paths))

  first = here()
  needs = facts.Needs(str(tmp_path), str(witness), ("data",), first)
  assert first == here() and facts.difference(here(), needs, "w") == ""
  (data / "a.csv").write_text("a,b\n1,3\n")
  said = facts.difference(here(), needs, "tls://w:1")
  assert said.startswith("Found data with the digest ") and " on tls://w:1; expected " in said
  # Another CPU may be allowed to carry out runs, and never a part of one.
  cpu_there = {**first, facts.CPU: "another"}
  said = facts.difference(cpu_there, needs, "w")
  assert said.startswith(f"Found {facts.CPU} another on w") and "--other_cpu=allowed" in said
  said = facts.difference(cpu_there, needs._replace(is_of_cohort=True), "w")
  assert said.endswith("as where the command was started: mend that, or leave it out.")
  (data / "a.csv").write_text("a,b\n1,2\n")
  assert facts.difference(here(), needs, "w") == ""
  (data / "b.csv").write_text("")
  assert "data with the digest" in facts.difference(here(), needs, "w")
  (data / "b.csv").unlink()
  assert "Found the folder none" in facts.difference(here(folder=tmp_path / "no"), needs, "w")
  witness.unlink()
  assert "the file of the driver" in facts.difference(here(), needs, "w")


@pytest.mark.parametrize("name", sorted(facts.of_here(_NOTHING)))
def test_each_fact_counts(name):
  needs = _NOTHING._replace(expected=(expected := facts.of_here(_NOTHING)))
  assert expected[facts.CPU] == "; ".join(cpu.kind().values())
  said = facts.difference({**expected, name: "other"}, needs, "w")
  assert said.startswith(f"Found {name} other on w; expected {expected[name]} on each worker")
  assert ("--other_cpu=allowed" in said) == (name == facts.CPU)
  del expected[name]
  assert not facts.difference({**expected, name: "other"}, needs, "w")


def test_a_run_is_the_same_by_its_flags_and_from_any_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  config = run_config.from_values(
    task="synthetic", output_dir="out", theta=0.25, num_rounds=7, seed=3
  )
  everywhere = driver._everywhere(config)
  assert everywhere.output_dir == str(tmp_path / "out")
  assert child.config_of(tuple(pool.arguments(everywhere))) == everywhere
  assert not run_config.differences(everywhere.to_flags(), config)


def test_stages_ask_the_workers_of_a_scheduler(tmp_path, monkeypatch):
  asked = []
  monkeypatch.setattr(driver, "run_all", lambda *given: asked.append(given) or ["a run"])
  config, path = run_config.from_values(task="synthetic"), tmp_path / "s.json"
  with pytest.raises(ValueError, match="cannot be read"):  # Before anything else is done.
    stages.Stages(None, False, scheduler=str(path))
  door.write(path, _door())
  assert stages.Stages(None, False, scheduler=str(path)).carry_out("x", [config, config]) == [
    "a run"
  ]
  assert asked == [([config], str(path))]


class _Process:
  """A process that does what it is asked to, at once."""

  returncode = None

  def __init__(self, worker):
    self._worker = worker

  def poll(self):
    return self.returncode

  def wait(self):
    self.returncode = 0
    return 0


def test_a_process_has_one_number_of_threads(tmp_path):
  begun = []

  class Worker(pool.Worker):
    def _begin(self, parent, output):
      begun.append(parent)
      return _Process(self)

  worker = Worker([], [0], 1)
  for seed, threads in enumerate((None, 2, 1, 1, None)):
    config = run_config.from_values(task="synthetic", output_dir=str(tmp_path), seed=seed)
    path = run_folder.of_config(config).path
    path.mkdir(parents=True)
    if threads:
      (path / "manifest.json").write_text(json.dumps({"cpus": [{}, {"threads": threads}]}))
    worker.run = None
    worker.start(seed, config)
    # What its process tells of the first run is in the manifest then.
    worker._threads = threads or 2 if seed < 2 else 1
  assert len(begun) == 2


class _Ended(pool.Worker):
  """A slot whose run has ended with a code."""

  code = 0

  def __init__(self, cores, silence):
    super().__init__((), cores, 1)

  def start(self, asked, config):
    self.run = pool._ActiveRun(config, 1)

  def poll(self):
    return self.code


async def _cancelled(one, needs):
  """A check of facts during which the driver goes."""
  one.transition("k", "executing", "cancelled")
  return True


@pytest.mark.parametrize("code", [0, 1, 2, -9, 129, 130, 143])
def test_what_a_signal_ends_has_not_failed_and_goes_elsewhere(code, tmp_path, monkeypatch):
  distributed = pytest.importorskip("distributed", reason="needs the extra `cluster`")
  monkeypatch.setattr(hands, "_Slot", _Ended)
  monkeypatch.setattr(_Ended, "code", code)
  config = run_config.from_values(task="synthetic", output_dir=str(tmp_path))
  one = hands.Hands([[0]], _door())
  needs = facts.Needs(str(tmp_path), str(tmp_path), ())
  order = hands.Order(tuple(pool.arguments(config)), needs)
  if code in (129, 130, 143):
    with pytest.raises(distributed.Reschedule):
      asyncio.run(one.carry_out("k", order))
  else:
    outcome = asyncio.run(one.carry_out("k", order))
    assert outcome.code == code and bool(outcome.why) == bool(code)
  # Neither is a run begun for which nobody waits any more, nor by a worker that ends.
  monkeypatch.setattr(_Ended, "start", lambda *_: pytest.fail("it has begun"))
  monkeypatch.setattr(hands.Hands, "fits", _cancelled)
  with pytest.raises(distributed.Reschedule):
    asyncio.run(one.carry_out("k", order))
  monkeypatch.undo()
  one.is_ending = True
  with pytest.raises(distributed.Reschedule):
    asyncio.run(one.carry_out("k", order))
  unfit = order._replace(needs=needs._replace(expected={"numpy": "0.1"}))
  outcome = asyncio.run(one.carry_out("k", unfit))
  assert outcome.code == hands.UNFIT and "expected 0.1" in outcome.why == one.unfit


def test_a_lost_attempt_of_the_same_run_is_superseded_and_no_other(tmp_path, monkeypatch):
  monkeypatch.setattr(hands, "_SECONDS_TO_SAVE", 0.0)
  monkeypatch.setattr(hands, "_SECONDS_TO_TAKE_OVER", 1.0)
  mine = attempts.owner("mine")
  for owner, is_superseded in ((mine, True), (attempts.owner("other"), False)):
    attempts.act_for(owner)
    with run_folder.lock(tmp_path):
      attempts.begin(tmp_path)
      with pytest.raises(run_folder.OccupiedError, match="another process is at work"):
        asyncio.run(hands._take_over(tmp_path, mine))
      if is_superseded:
        with pytest.raises(run_folder.OccupiedError, match="another attempt"):
          attempts.check(tmp_path)
      else:
        attempts.check(tmp_path)
  asyncio.run(hands._take_over(tmp_path, mine))  # It is free.
  attempts.act_for("-" * 16)
