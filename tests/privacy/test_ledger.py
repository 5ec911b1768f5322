"""Ledgers: written, read again, and audited against the folders that they are found in."""

import copy
import dataclasses
import functools
import itertools
import json
import math

from helpers import flat
from helpers import run_folders
import pytest

from privacy import accounting
from privacy import audit
from privacy import ledger

_DELTA = 1e-5
_PLANNED = 50
_GEOMETRIC = flat.release(600, 60, 8.0, 1.0, threshold_kind="geometric")
_ADAPTIVE = flat.changed(_GEOMETRIC, clip_count_noise_multiplier=10.0)


@functools.cache  # Only where a test asks for it: calibration takes a second.
def _release():
  return flat.calibrate(
    3,
    _DELTA,
    population=600,
    clients_per_round=60,
    num_rounds=_PLANNED,
    rho_ratio=0.5,
    num_bins=64,
  )


def _ledger(release=None, rounds_done=_PLANNED, claim=3.0, **kwargs):
  release = _release() if release is None else release
  return run_folders.ledger_of(
    release, _PLANNED, done=rounds_done, claim=claim, delta=_DELTA, **kwargs
  )


def _folder(path, entry=None, rounds=_PLANNED, flags=None, of=None, **kwargs):
  """A run's folder, with the flags of a ledger, `of`, which need not be the one in the folder."""
  entry, of = (_ledger() if one is None else one for one in (entry, of))
  numbers = rounds + 1 if isinstance(rounds, int) else len(rounds)
  kwargs = {"is_finished": numbers > _PLANNED, **kwargs, **(flags or {})}
  return run_folders.write(path, entry, rounds, of=of, **kwargs)


@pytest.mark.parametrize(
  "given",
  [
    dict(),
    dict(rounds_done=0),
    dict(release=_GEOMETRIC, claim=None),
    dict(release=_ADAPTIVE, claim=None),
    dict(accountant="pld", rounds_done=3),
  ],
)
def test_round_trip(given):
  entry = _ledger(**given)
  found = ledger.Ledger.from_json(entry.to_json())
  assert found == entry
  assert flat.of(found.release).tree == flat.of(entry.release).tree
  assert json.loads(entry.to_json())["release"]["population"] == 600


def test_quick_enough_for_every_round(monkeypatch):
  """What takes time is done once for a tenth of the run, as the ledger's bound is the tenth's."""
  release = _release()
  calls = flat.costs_computed(monkeypatch)
  for rounds in range(20):
    _ledger(release, rounds_done=rounds)
  rounds = [sum(number for _, number in runs) for runs, *_ in calls]
  assert sorted(rounds) == [5, 10, 15, 20]


def test_an_unknown_accountant():
  with pytest.raises(ValueError, match="tightest, pld, rdp"):
    _ledger(accountant="zcdp")


@pytest.mark.parametrize(
  "change,message",
  [
    (lambda e: "{", "not JSON"),
    (lambda e: "[]", "no JSON object"),
    (lambda e: e.update(spare=1), "differ.*spare"),
    (lambda e: e.update(accounting="magic"), "magic"),
    (lambda e: e.update(accounting="paper"), "'paper'; expected one of tightest"),
    (lambda e: e.update(claim=3), "claim"),
    (lambda e: e["claim"].update(delta=2), "delta = 2"),
    (lambda e: e["claim"].update(delta="x"), "delta = 'x'"),
    (lambda e: e["release"].update(tree=7), "tree that is no JSON object"),
    (lambda e: e["release"].update(coefficients=[1.0]), "fields differ.*: coefficients"),
    (lambda e: e["release"]["tree"].update(local_stddev="x"), "local_stddev = 'x' in the ledger"),
  ],
)
def test_bad_ledgers(tmp_path, change, message):
  entry = json.loads(_ledger().to_json())
  text = change(entry)
  text = text if isinstance(text, str) and text in ("{", "[]") else json.dumps(entry)
  with pytest.raises(ValueError, match=message):
    ledger.Ledger.from_json(text)
  with pytest.raises(ValueError, match=message):
    audit.audit_folder(_folder(tmp_path / "run", text))


def test_a_running_run(tmp_path):
  folder = _folder(tmp_path, _ledger(rounds_done=20), rounds=18)
  with open(folder / "rounds.csv", "a") as stream:
    stream.write("19,0")  # Not written to its end yet.
  found = audit.audit_folder(folder)
  assert found.holds
  assert (found.num_rounds, found.rounds.done) == (20, 18)
  assert found.spent.epsilon == accounting.epsilon(_release(), 20, _DELTA).epsilon


def test_a_run_before_its_first_round(tmp_path):
  folder = _folder(tmp_path, _ledger(rounds_done=0), rounds=0)
  (folder / "rounds.csv").unlink()
  found = audit.audit_folder(folder)
  assert found.holds
  assert found.spent.epsilon == 0.0


# A run whose clients make all noise; so small that no cohort is larger than there are shares, for
# which much would have to be computed.
_SMALL = dict(population=40, clients_per_round=24, num_rounds=8)
_NUM_PARAMETERS = 24


@functools.cache
def _private_release(**changes):
  arguments = dict(
    **_SMALL,
    rho_ratio=0.5,
    num_bins=8,
    distributed_updates=True,
    clip_norm=0.5,
    num_parameters=_NUM_PARAMETERS,
  )
  return flat.calibrate(3, _DELTA, **{**arguments, **changes})


def _private_ledger(release, **changes):
  return run_folders.ledger_of(release, 8, claim=3.0, delta=_DELTA, **changes)


def _private_run(path, release=None, entry=None, **flags):
  """The folder of such a run, with all that an audit reads, and perhaps another ledger."""
  of = _private_ledger(_private_release() if release is None else release)
  return _folder(path, of if entry is None else entry, 8, flags, of, is_finished=True)


def _paths(value, path=()):
  """The paths of all that a ledger holds: its objects, lists, words and numbers."""
  if path:
    yield path
  if isinstance(value, (dict, list)):
    for name in value if isinstance(value, dict) else range(len(value)):
      yield from _paths(value[name], (*path, name))


_GONE = object()  # In place of a value: no value at all.
_WORDS = ("none", "geometric", "replace_one", "helpers", "rdp")
_NO_VALUES = (_GONE, None, True, "x", [], {}, math.nan, math.inf, -1, 0, 1e300, 10**400)


def _others(value):
  """What else might stand in its place."""
  yield from _NO_VALUES
  if isinstance(value, str):
    yield from _WORDS
  elif isinstance(value, int):
    yield from (value - 1, value + 1, 2 * value)
  elif isinstance(value, float):
    yield from (value * (1 - 1e-3), value * (1 + 1e-3), 3 * value)
  elif value is None:
    yield from (24, 32, 40)
  elif isinstance(value, list):
    yield from ([*value, "All is well."], value[::-1], value[:-1])


def _changed(entry, path, new):
  found = copy.deepcopy(entry)
  holder = found
  for name in path[:-1]:
    holder = holder[name]
  if new is _GONE:
    del holder[path[-1]]
  else:
    holder[path[-1]] = new
  return found


# All that may be written otherwise in a ledger that is audited with success, and what then:
_HARMLESS = {
  # That more was spent than was. The claim is held against what really was.
  ("epsilon_spent",): lambda new, old: new > old,
  # That the server learns more than it does.
  ("epsilon_server",): lambda new, old: new is not None and new > old,
  # Rounds that are planned but not done have released nothing; a note says what they would cost.
  ("num_rounds_planned",): lambda new, old: new > old,
  # The same number.
  ("claim", "delta"): lambda new, old: new == str(old),
}


def _unchecked(folder, changes):
  """Which changes of the folder's ledger an audit takes for the truth, but for harmless ones."""
  assert audit.audit_folder(folder).failures == ()
  entry = json.loads((folder / "privacy.json").read_text())
  found, refused, failed = [], 0, 0
  for path in _paths(entry):
    old = functools.reduce(lambda holder, name: holder[name], path, entry)
    for new in changes(old):
      if new == old and type(new) is type(old):
        continue
      (folder / "privacy.json").write_text(json.dumps(_changed(entry, path, new)))
      try:
        holds = audit.audit_folder(folder).holds
      except ValueError as error:  # And no other error: it must be a sentence.
        assert str(error).startswith("Found "), (path, new, error)
        refused += 1
        continue
      if not holds:
        failed += 1
      elif not _HARMLESS.get(path, lambda new, old: False)(new, old):
        found.append((path, new))
  return found, refused, failed


def test_every_field_of_a_ledger_is_checked(tmp_path):
  # With each value left out, of another kind, absurd, and a little or much larger or smaller.
  folder = _private_run(tmp_path / "run", _private_release(relation="replace_one"))
  found, refused, failed = _unchecked(folder, _others)
  assert found == []
  # Some are no ledgers, others are, and do not hold.
  assert refused > 300 and failed > 100


def test_every_field_of_a_ledger_with_a_private_coin_is_checked(tmp_path):
  release = _private_release(protocol="private_coin", contacted=32)
  folder = _private_run(tmp_path / "run", release)
  found, refused, failed = _unchecked(folder, lambda old: itertools.islice(_others(old), 12, None))
  assert found == []
  assert refused > 30 and failed > 50


def test_a_ledger_of_weighted_updates(tmp_path):
  # A model of 24 numbers, and a sum of 25.
  release = _private_release(rho_ratio=None, num_bins=None, weighted_updates=True)
  assert flat.of(release).update_sum.num_entries == 25
  entry = _private_ledger(release)
  said = entry.guarantee["mechanism"]
  assert "each weighted by its client's own loss, and of these weights" in said
  flags = dict(threshold="", threshold_noise_multiplier="", rho_ratio="")
  folder = _private_run(tmp_path / "run", release, **flags)
  found, refused, failed = _unchecked(folder, lambda old: itertools.islice(_others(old), 12))
  assert found == [] and refused > 100 and failed > 30
  # Without its weight, the sum is another one's.
  plain = flat.changed(release, weighted_updates=False)
  folder = _private_run(tmp_path / "plain", entry=_private_ledger(plain), release=plain, **flags)
  (failure,) = audit.audit_folder(folder).failures
  assert failure == "weights.npz has 24 numbers and the ledger noise on 25."


@pytest.mark.parametrize(
  "changes,said",
  [
    (dict(num_parameters=6), "weights.npz has 24 numbers and the ledger noise on 6"),
    (dict(num_parameters=25), "weights.npz has 24 numbers and the ledger noise on 25"),
    (
      dict(population=80),
      "manifest.json has 40 training clients and the ledger a population of 80",
    ),
    (
      dict(population=30),
      "manifest.json has 40 training clients and the ledger a population of 30",
    ),
    (dict(clients_per_round=12), "--clients_per_round=24 and the ledger 12"),
    (dict(clip_norm=0.1), "--clip_norm=0.5 and the ledger 0.1"),
    (dict(num_bins=16), "--num_bins=8 and the ledger 16"),
    (dict(num_bins=None), "--num_bins=8 and the ledger none"),
    (dict(distributed_updates=False), "--update_sum=distributed and the ledger central"),
    (dict(protocol="helpers"), "--noise_shares=complement and the ledger helpers"),
    (dict(sampling="none"), "--sampling=poisson and the ledger none"),
    (
      dict(sampling="fixed_size", relation="replace_one"),
      "--sampling=poisson and the ledger fixed_size",
    ),
    (dict(relation="replace_one"), "--relation=zero_out and the ledger replace_one"),
    (dict(rho_ratio=0.4), "--rho_ratio=0.5 and the ledger 0.4"),
    (dict(threshold_kind="geometric", num_bins=None), "--threshold=tree and the ledger geometric"),
    (dict(rho_ratio=None, num_bins=None), "--threshold=tree and the ledger none"),
  ],
)
def test_a_ledger_of_another_run_that_is_right_in_itself(tmp_path, changes, said):
  # All its numbers fit together, but not the folder.
  release = _private_release(**changes)
  entry = _private_ledger(release, clip_norm=changes.get("clip_norm", 0.5))
  alone = _folder(tmp_path / "alone", entry, rounds=8, of=entry, is_finished=True)
  run_folders.write_weights(alone, changes.get("num_parameters", _NUM_PARAMETERS))
  assert audit.audit_folder(alone).failures == ()
  failures = audit.audit_folder(_private_run(tmp_path / "run", entry=entry)).failures
  assert any(said in failure for failure in failures), failures


def test_ledgers_of_other_versions_are_refused(tmp_path):
  found = json.loads(_ledger().to_json())
  del found["version"]
  with pytest.raises(ValueError, match="of a version before 0.4"):
    audit.audit_folder(_folder(tmp_path / "run", json.dumps(found)))
  found["version"] = 4
  with pytest.raises(ValueError, match="version = 4"):
    audit.audit_folder(_folder(tmp_path / "run", json.dumps(found)))


def test_repeated_and_aborted_rounds(tmp_path):
  rounds = [*range(30), *range(20, _PLANNED + 1)]
  found = audit.audit_folder(_folder(tmp_path, rounds=rounds, aborted={7, 25}))
  assert found.holds
  assert (found.rounds.done, found.rounds.repeated, found.rounds.aborted) == (_PLANNED, 10, 2)
  assert "10 rows" in found.notes[0] and "2 rounds were aborted" in found.notes[1]


def test_plans_that_go_too_far(tmp_path):
  entry = run_folders.ledger_of(_release(), 100, done=40, claim=3.0, delta=_DELTA)
  found = audit.audit_folder(_folder(tmp_path, entry, rounds=40))
  assert found.holds
  assert "All 100 planned rounds would cost" in found.notes[0]


@pytest.mark.parametrize(
  "flags,holds",
  [
    (dict(clip_norm="five"), False),
    (dict(num_rounds=_PLANNED + 1), False),
    (dict(num_rounds=_PLANNED - 1), True),
    (dict(num_train_clients=300), False),
    (dict(num_train_clients=700), True),
    (dict(clip_norm=5, clip_unit="gradient", client_learning_rate=0.1), True),
    (dict(clip_norm=0.5, clip_unit="gradient", client_learning_rate=0.1), False),
    (dict(epsilon="None"), False),
    (dict(task="synthetic"), True),
  ],
)
def test_flags_against_the_ledger(tmp_path, flags, holds):
  found = audit.audit_folder(_folder(tmp_path, flags=flags, is_finished=False))
  assert found.holds is holds, found.failures
  assert all("flags.txt has " in failure for failure in found.failures)


def test_a_run_without_a_claim(tmp_path):
  entry = _ledger(claim=None)
  found = audit.audit_folder(_folder(tmp_path, entry, of=entry))
  assert found.holds
  assert "no limit" in found.notes[0]
  assert not audit.audit_folder(_folder(tmp_path, entry)).holds


def test_bad_folders(tmp_path):
  with pytest.raises(ValueError, match="no folder"):
    audit.audit_folder(tmp_path / "nowhere")
  for name in ("privacy.json", "rounds.csv", "flags.txt"):
    folder = _folder(tmp_path / name)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"no {name}"):
      audit.audit_folder(folder)
  folder = _folder(tmp_path / "run")
  for text, message in (
    ("", "column round"),
    ("number\n1\n", "column round"),
    ("round\nx\n", "round 'x'"),
    ("round\n-1\n", "round '-1'"),
    ("round\n1.5\n", "round '1.5'"),
  ):
    (folder / "rounds.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
      audit.audit_folder(folder)


def test_a_large_delta_is_mentioned(tmp_path):
  entry = run_folders.ledger_of(_GEOMETRIC, 5, delta=0.01)
  folder = _folder(tmp_path, entry, rounds=5, of=entry)
  assert "one client chosen at random" in audit.audit_folder(folder).notes[-1]


@functools.cache
def _adaptive_ledger():
  return dataclasses.replace(_ledger(_ADAPTIVE, claim=None), clip_norm=None)


@pytest.mark.parametrize(
  "change,flags,message",
  [
    (dict(), dict(clip_unit="update"), None),
    (dict(), dict(clip_unit="gradient", clip_count_noise_multiplier=10.0), None),
    (dict(), dict(clip_rho_ratio=0.01, rho_ratio=8.0**-2 / 1.01), None),
    (dict(), dict(clip_rho_ratio=0.02), "--clip_rho_ratio=0.02 and the ledger 0.01"),
    (dict(), dict(rho_ratio=8.0**-2), "--rho_ratio=0.015625 and the ledger 0.0154"),
    (dict(), dict(clip_norm=0.5), "--clip_norm=0.5 and the ledger adaptive"),
    (dict(clip_norm=0.5), dict(), "--clip_norm=adaptive and the ledger 0.5"),
    (dict(clip_norm=0.5), dict(clip_unit="gradient"), "--clip_norm=adaptive and the ledger 0.5"),
    (
      dict(release=flat.changed(_ADAPTIVE, clip_count_noise_multiplier=99.0)),
      dict(clip_count_noise_multiplier=10.0),
      "--clip_count_noise_multiplier=10.0 and the ledger 99",
    ),
    # A count that the ledger leaves out.
    (dict(release=_GEOMETRIC), dict(), "--clip_norm=adaptive and the ledger none"),
  ],
)
def test_an_adaptive_clip_norm_is_audited(tmp_path, change, flags, message):
  entry = dataclasses.replace(_adaptive_ledger(), **change)
  found = audit.audit_folder(_folder(tmp_path, entry, flags=flags, of=_adaptive_ledger()))
  assert found.spent == accounting.epsilon(change.get("release", _ADAPTIVE), _PLANNED, _DELTA)
  if message is None:
    assert found.holds, found.failures
    assert (
      "a one-bit count of the updates within the clip norm" in found.ledger.guarantee["mechanism"]
    )
  else:
    assert any(message in failure for failure in found.failures), found.failures


def test_a_ledger_that_leaves_out_the_count_of_an_adaptive_norm_says_too_little(tmp_path):
  # As if the count were free: the cost is that of the other releases alone.
  costly = flat.changed(_ADAPTIVE, clip_count_noise_multiplier=1.0)
  entry = dataclasses.replace(
    _ledger(costly, claim=None), clip_norm=None, epsilon_spent=_ledger(_GEOMETRIC).epsilon_spent
  )
  found = audit.audit_folder(_folder(tmp_path, entry, of=entry))
  assert any("spent epsilon" in failure for failure in found.failures)
