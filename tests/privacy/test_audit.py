"""Audits of folders in which somebody has changed one file, or cut one off."""

import dataclasses
import functools
import hashlib
import json
import shutil

from helpers import flat
from helpers import run_folders
import pytest

from privacy import accounting
from privacy import audit
from privacy import ledger
from privacy import statements
from privacy.evaluation import entries
from privacy.evaluation import query as query_lib
from privacy.noise import banded

_ROUNDS = 6
_START = statements.StartingModel("synthetic/fed_avg/seed_0", "synthetic", True, "0123", 8.0, 1e-3)
_GEOMETRIC = flat.release(40, 8, 8.0, 2.0, threshold_kind="geometric")
_RELEASES = {
  "geometric": _GEOMETRIC,
  "primal_dual": flat.changed(_GEOMETRIC, threshold_kind="primal_dual"),
  "tree": flat.changed(_GEOMETRIC, threshold_kind="tree"),
  "none": flat.changed(_GEOMETRIC, threshold_noise_multiplier=None),
  "adaptive": flat.changed(_GEOMETRIC, clip_count_noise_multiplier=20.0),
  "weighted": flat.changed(_GEOMETRIC, threshold_noise_multiplier=None, weighted_updates=True),
}


@functools.cache
def _ledger(name="geometric", claim=9.0, starts=(_START,)):
  clip_norm = None if name == "adaptive" else 0.5
  return run_folders.ledger_of(
    _RELEASES[name], _ROUNDS, claim=claim, clip_norm=clip_norm, starts=starts
  )


def _evaluation(split="test", num_clients=9):
  query = query_lib.Query(num_clients, 4.0, 1e-2, num_bins=4)
  z = flat.of(query.release).threshold_noise_multiplier
  estimates = {"p90": (0.5, 0.1), "mean": (None, None)}
  return entries.Evaluation("now", "m", split, "error", query, z, (1.0, 0.0, 2.5, 3.0), estimates)


def _write_evaluations(folder, content):
  (folder / entries.FILE_NAME).write_text(entries.to_json(content))
  _change(folder / "manifest.json", lambda found: found.update(evaluations=entries.head(content)))


def _change(path, change):
  found = json.loads(path.read_text())
  change(found)
  path.write_text(json.dumps(found))


def _folder(path, entry, columns=None):
  flags = dict(initial_weights_fingerprint="0123") if entry.starts else {}
  return run_folders.write(path, entry, _ROUNDS, columns=columns, **flags)


@pytest.fixture
def run(tmp_path):
  """A finished run that starts from another one, with three evaluations."""
  folder = _folder(tmp_path / "run", _ledger())
  starts = [dataclasses.asdict(_START)]
  _change(folder / "manifest.json", lambda found: found.update(starts=starts))
  content = []
  for split, number in (("test", 9), ("train", 40), ("test", 9)):
    content = entries.append(content, _evaluation(split, number))
  _write_evaluations(folder, content)
  return folder


def _failures(folder):
  """What an audit says against a folder; one that cannot be read says it by a sentence."""
  try:
    return audit.audit_folder(folder).failures
  except ValueError as error:
    assert str(error).startswith("Found ")
    return (str(error),)


def test_an_honest_run_holds(run):
  found = audit.audit_folder(run)
  assert found.failures == () and found.num_rounds == _ROUNDS
  # The costs are the only remarks.
  assert found.notes[0].startswith("2 releases, each of which counts, over the 9 test clients")


def _lines_of(found):
  return (found / "flags.txt").read_text().splitlines()


_NUM_LINES = len(run_folders.flags_of(_ledger(), initial_weights_fingerprint="0123"))


@pytest.mark.parametrize("index", range(_NUM_LINES))
def test_no_line_of_the_flags_can_be_dropped_or_changed(run, index):
  lines = _lines_of(run)
  assert len(lines) == _NUM_LINES
  for changed in ([], [lines[index] + "0"]):
    run_folders.write_flags(run, [*lines[:index], *changed, *lines[index + 1 :]])
    said = "SHA-256" if changed or "exact_siblings" not in lines[index] else "version before 0.4"
    assert any(said in failure for failure in _failures(run))


def test_a_run_of_an_earlier_version_is_refused(run):
  """By its flags, and by its ledger where these are missing, as in `compose`."""
  for version in (None, 1, 2):
    _change(run / "privacy.json", lambda found, version=version: found.update(version=version))
    if version is None:
      _change(run / "privacy.json", lambda found: found.pop("version"))
    (failure,) = _failures(run)
    assert failure.startswith("Found a run of a version before 0.4; expected 0.4 or later")
  run_folders.write_flags(run, [line for line in _lines_of(run) if "exact_siblings" not in line])
  (failure,) = _failures(run)
  assert failure.startswith(f"Found a run of a version before 0.4 in {run}; expected")


@pytest.mark.parametrize("flag", ["folds=3", "held_out_examples=0.2", "client_split=shuffled"])
def test_flags_with_which_no_private_run_begins(run, flag):
  run_folders.write_flags(run, [*_lines_of(run), f"--{flag}"])
  digest = hashlib.sha256((run / "flags.txt").read_bytes()).hexdigest()
  _change(run / "manifest.json", lambda found: found.update(flags=digest))
  (failure,) = _failures(run)
  assert failure.startswith(f"flags.txt has --{flag}, with which no private run begins")


@pytest.mark.parametrize("bands", [6, 40])
def test_coefficients_may_not_be_a_little_less(tmp_path, bands):
  """As those of the flags they are compared within what another SciPy finds, their cost is not."""
  release = flat.release(40 * bands, 40, None, 4.0, sampling="cyclic")
  participation = banded.Participation(3 * bands, bands)
  optimal = banded.optimal(bands, participation)

  def write(coefficients):
    of_run = dataclasses.replace(release, coefficients=tuple(coefficients))
    entry = run_folders.ledger_of(of_run, 3 * bands, done=_ROUNDS)
    return run_folders.write(tmp_path / "run", entry, _ROUNDS)

  def differ(coefficients):
    found = _failures(write(coefficients))
    return any("coefficients" in failure for failure in found)

  assert not differ(optimal)
  assert differ([1.0, *(optimal[1:] - 0.000999)])
  assert differ([1.0, *(optimal[1:] - 0.0001)])
  # Another search ends a little elsewhere.
  assert not differ([1.0, *optimal[1:] * (1 - 1e-6)])


def test_the_epsilons_of_rounds_are_compared(run):
  rows = [line.split(",") for line in (run / "rounds.csv").read_text().splitlines()]
  column = rows[0].index("epsilon")
  meter = accounting.Accountant(_ledger().release, 1e-3)

  def written(change):
    for number, row in enumerate(rows[1:]):
      row[column] = change(meter.epsilon_at_most(number, _ROUNDS))
    (run / "rounds.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    return _failures(run)

  assert written(repr) == ()
  for change in (
    lambda e: repr(e / 2),
    lambda e: repr(e * (1 - 1e-5)),
    lambda e: "",
    lambda e: "x",
  ):
    (failure,) = written(change)
    assert failure.startswith("rounds.csv has epsilon = ") and "in round 1; it is" in failure


@pytest.mark.parametrize(
  "change, said",
  [
    (lambda found: found.pop("num_clients"), "does not say how many training clients"),
    (lambda found: found.update(num_clients=40), "does not say how many training clients"),
    (lambda found: found["num_clients"].pop("train"), "does not say how many training clients"),
    (lambda found: found["num_clients"].update(train=80), "has 80 training clients"),
    (lambda found: found["num_clients"].pop("test"), "9 test clients and manifest.json has no"),
    (lambda found: found["num_clients"].update(test=10), "9 test clients and manifest.json has 10"),
    (lambda found: found.update(seed=1), "the same seed"),
    (lambda found: found.pop("seed"), "the same seed"),
    (lambda found: found.update(flags="0" * 64), "SHA-256"),
    (lambda found: found.update(flags=None), "SHA-256"),
    (lambda found: found.pop("flags"), "has no SHA-256 of flags.txt"),
    (lambda found: found.pop("commitments"), "has no commitments to key and clients"),
    (lambda found: found.pop("starts"), "the same starts"),
    (lambda found: found["starts"][0].update(epsilon=0.1), "the same starts"),
    (lambda found: found.pop("rounds_done"), "None rounds by manifest.json"),
    (lambda found: found.update(rounds_done=5), "5 rounds by manifest.json"),
    (lambda found: found.update(rounds_done=7), "manifest.json has 7 rounds and the ledger 6"),
    (lambda found: found.pop("kept_round"), "the model of round None"),
    (lambda found: found.update(kept_round=5), "the model of round 5"),
    (lambda found: found.pop("finished"), "left no the time of its end"),
    (lambda found: found.pop("evaluations"), "not the one that manifest.json has"),
    (lambda found: found.update(evaluations="0" * 64), "not the one that manifest.json has"),
    (lambda found: found.update(data="digest"), "manifest.json has data"),
    (lambda found: found.update(seconds_per_round=0.1), "manifest.json has seconds_per_round"),
  ],
)
def test_every_entry_of_the_manifest_is_compared(run, change, said):
  _change(run / "manifest.json", change)
  failures = _failures(run)
  assert any(said in failure for failure in failures), failures


@pytest.mark.parametrize(
  "change",
  [
    lambda found: found["starts"][0].update(epsilon=0.1),
    lambda found: found["starts"][0].update(delta=1e-9),
    lambda found: found["starts"][0].update(same_population=False),
    lambda found: found["starts"][0].update(run="another"),
    lambda found: found["starts"].clear(),
    lambda found: found["starts"].append(found["starts"][0]),
  ],
)
def test_the_starts_of_a_ledger_are_compared(run, change):
  _change(run / "privacy.json", change)
  # With the sentences that follow.
  entry = ledger.Ledger.from_json((run / "privacy.json").read_text())
  entry = dataclasses.replace(
    entry, not_covered=statements.not_covered(entry.release, entry.starts)
  )
  (run / "privacy.json").write_text(entry.to_json())
  assert "manifest.json and the ledger do not have the same starts." in _failures(run)


@pytest.mark.parametrize(
  "task, start, same, is_exposed",
  [
    ("own", "own_schools_linear", True, True),
    ("own", "own_schools_linear", False, True),  # Whatever the ledger says.
    ("clinic", "hosp.DEEP", False, True),
    ("synthetic", "synthetic_folds_5", True, True),
    ("emnist_linear", "emnist_convnet", False, True),
    ("emnist_linear", "sent140_linear", False, False),
    ("emnist_linear", "emnist_mine", False, True),  # No task of the project.
    ("emnist_mine", "own_schools_linear", False, True),
    ("own", "emnist_linear", False, False),
  ],
)
def test_a_start_without_privacy_on_the_same_clients_fails(tmp_path, task, start, same, is_exposed):
  start = statements.StartingModel(f"{start}/m/seed_0", start, same, "0123", None, None)
  for number, starts in enumerate([(start,), (_START, start)]):
    entry = _ledger(starts=starts)
    limits = statements.not_covered(entry.release, starts, {"task": task})
    entry = dataclasses.replace(entry, not_covered=limits)
    folder = run_folders.write(
      tmp_path / str(number), entry, _ROUNDS, initial_weights_fingerprint="0123", task=task
    )
    content = [dataclasses.asdict(one) for one in starts]
    manifest = json.loads((folder / "manifest.json").read_text())
    run_folders.write_json(folder / "manifest.json", {**manifest, "starts": content})
    failures = _failures(folder)
    assert len(failures) == is_exposed
    assert all("trained without privacy on what may be the same clients" in f for f in failures)


def test_sentences_of_an_earlier_wording_are_compared_by_name(tmp_path, monkeypatch):
  entry = _ledger(starts=())
  today = statements.WORDING + 1
  monkeypatch.setattr(statements, "WORDING", today)
  texts = {name: f"Once: {text}" for name, text in entry.guarantee.items()}
  for number, (wording, guarantee, holds) in enumerate(
    [
      (today, entry.guarantee, True),
      (today, texts, False),
      (1, texts, True),
      (1, {**texts, "more": "A client may leave."}, False),
      (1, dict(list(texts.items())[1:]), False),
    ]
  ):
    changed = dataclasses.replace(entry, wording=wording, guarantee=guarantee)
    folder = run_folders.write(tmp_path / str(number), changed, _ROUNDS)
    found = audit.audit_folder(folder)
    assert found.holds == holds, number
    noted = f"have wording 1, not today's {today}"
    assert any(noted in note for note in found.notes) == (wording == 1)
  _change(folder / "privacy.json", lambda content: content.update(wording=today + 1))
  message = f"Found wording = {today + 1} in the ledger; expected 1 to {today}"
  with pytest.raises(ValueError, match=message):
    audit.audit_folder(folder)


_NAMED = {"algorithm": "plug:Peek", "task": "hosp:LINEAR", "exact_siblings": "allowed"}


@pytest.mark.parametrize("flag, value", [*_NAMED.items(), ("threshold", "plug:Quiet")])
def test_parts_from_outside_and_siblings_are_in_the_ledgers_sentences(tmp_path, flag, value):
  flags = {"algorithm": "superquantile", "task": "own", flag: value}
  ((name, sentence),) = statements.of_flags(flags).items()
  assert f"--{flag}={value}" in sentence
  entry = _ledger(starts=())
  said = dataclasses.replace(
    entry,
    guarantee=statements.guarantee(entry.release, flags),
    not_covered=statements.not_covered(entry.release, flags=flags),
  )
  assert said.not_covered[name] == sentence and name not in entry.not_covered
  found = audit.audit_folder(run_folders.write(tmp_path / "said", said, _ROUNDS, **flags))
  assert found.holds and found.not_covered[name] == sentence
  # A ledger that keeps it to itself, or that says it of a run that has nothing of it.
  wrong = "The ledger's sentences are not those that follow"
  (failure,) = _failures(run_folders.write(tmp_path / "kept", entry, _ROUNDS, **flags))
  assert failure.startswith(wrong)
  (failure,) = _failures(run_folders.write(tmp_path / "spare", said, _ROUNDS, task="own"))
  assert failure.startswith(wrong)
  assert audit.audit_folder(run_folders.write(tmp_path / "none", entry, _ROUNDS, task="own")).holds


@pytest.mark.parametrize("name", ["tree", "geometric", "primal_dual"])
@pytest.mark.parametrize(
  "flags, judged",
  [
    ({"algorithm": "gifair"}, "losses"),
    ({"algorithm": "superquantile", "tail_by": "loss"}, "losses"),
    ({"algorithm": "eagle"}, "loss gaps"),
    ({"algorithm": "superquantile", "tail_by": "gap"}, "loss gaps"),
    ({"algorithm": "plug:Peek"}, "losses or loss gaps"),
  ],
)
def test_a_ledger_says_by_what_clients_are_judged(tmp_path, name, flags, judged):
  entry = _ledger(name, starts=())
  texts = {}
  for noun in ("losses", "loss gaps", "losses or loss gaps"):
    said = dataclasses.replace(
      entry,
      guarantee={
        key: text.replace(" of losses with", f" of {noun} with")
        for key, text in entry.guarantee.items()
      },
      not_covered=statements.not_covered(entry.release, flags=flags),
    )
    found = audit.audit_folder(run_folders.write(tmp_path / noun, said, _ROUNDS, **flags))
    is_said = not any(text.startswith("The ledger's sentences") for text in found.failures)
    assert is_said == (noun == judged)
    texts[noun] = said.guarantee["mechanism"]
    assert found.guarantee["mechanism"] == texts.get(judged, found.guarantee["mechanism"])
    assert f" of {judged} with noise" in found.guarantee["mechanism"]
  assert len(set(texts.values())) == 3


def test_an_epsilon_against_the_server_is_there_where_it_should_be(run):
  _change(run / "privacy.json", lambda found: found.update(epsilon_server=3.0))
  (failure,) = _failures(run)
  assert "epsilon = 3 against the server; it is without any" in failure


_FILES = ("privacy.json", "flags.txt", "manifest.json", "rounds.csv", "metrics.json", "weights.npz")


@pytest.mark.parametrize("name", [*_FILES, entries.FILE_NAME])
def test_no_file_can_be_cut_or_removed(run, name):
  content = (run / name).read_bytes()
  for length in (0, len(content) // 3, len(content) - 2):
    (run / name).write_bytes(content[:length])
    assert _failures(run), length
  (run / name).unlink()
  assert _failures(run)


def test_rounds_that_ledger_and_rows_forget(run, tmp_path):
  entry = dataclasses.replace(_ledger(), rounds_done=2, epsilon_spent=_ledger().epsilon_spent)
  forged = _folder(tmp_path / "forged", entry)
  for name in ("privacy.json", "rounds.csv"):
    text = (forged / name).read_text()
    (run / name).write_text("".join(text.splitlines(True)[:4]) if name == "rounds.csv" else text)
  found = audit.audit_folder(run)
  assert found.num_rounds == _ROUNDS and found.rounds.done == 2
  for name in ("manifest.json", "clients/"):
    assert any(text.startswith(f"{name} has 6 rounds and the ledger 2") for text in found.failures)
  # Also of a run that has not finished.
  for name in ("metrics.json", "weights.npz", entries.FILE_NAME):
    (run / name).unlink()
  for name in ("finished", "rounds_done", "kept_round", "evaluations"):
    _change(run / "manifest.json", lambda found, name=name: found.pop(name))
  (failure,) = _failures(run)
  assert failure.startswith("clients/ has 6 rounds and the ledger 2")


def test_rows_that_are_missing_are_mentioned(run):
  lines = (run / "rounds.csv").read_text().splitlines(True)
  (run / "rounds.csv").write_text("".join([*lines[:3], *lines[5:]]))
  found = audit.audit_folder(run)
  assert found.holds
  assert found.notes[0].startswith("2 of the 6 rounds have no row in rounds.csv")


@pytest.mark.parametrize("name", _RELEASES)
def test_columns_follow_from_the_releases(tmp_path, name):
  entry = _ledger(name, None, ())
  columns = run_folders.columns_of(entry.release)
  assert _failures(_folder(tmp_path / "run", entry)) == ()
  exact = ("cohort_size", "tail_size", "num_excluded", "seconds", "train_loss", "train_error_p90")
  exact += ("test_cohort_mean", "test_mae_mean", "validation_tail_size_mean")
  others = {c for one in _RELEASES.values() for c in run_folders.columns_of(one)} - set(columns)
  if name == "tree":
    others -= {"estimated_share_sum"}  # Which then stands in the threshold's place.
  for added in (*exact, *sorted(others)):
    folder = _folder(tmp_path / "run", entry, [*columns, added])
    assert any(f"the column {added}," in failure for failure in _failures(folder)), added
  for dropped in columns[2:]:
    folder = _folder(tmp_path / "run", entry, [one for one in columns if one != dropped])
    assert any(f"no column {dropped}," in failure for failure in _failures(folder)), dropped


def test_the_measure_by_which_a_run_is_judged_has_columns(tmp_path):
  entry = _ledger("none", None, ())
  for flag in ("metric=mae", "best_by=validation.mae.p90"):
    name, _, value = flag.partition("=")
    columns = [*run_folders.columns_of(entry.release), "test_mae_mean", "validation_mae_p90"]
    folder = run_folders.write(tmp_path / name, entry, _ROUNDS, columns=columns, **{name: value})
    assert _failures(folder) == ()


def test_columns_of_an_average_by_a_histogram(tmp_path):
  entry = _ledger("tree", None, ())
  columns = ["round", "epsilon", "estimated_cohort_size", "estimated_share_sum", "aborted"]
  assert _failures(_folder(tmp_path / "run", entry, columns)) == ()
  for added in ("threshold", "theta"):
    assert _failures(_folder(tmp_path / "run", entry, [*columns, added]))


@pytest.mark.parametrize("name", ["train_clients.csv", "tensorboard"])
def test_what_no_private_run_writes(run, name):
  (run / name).mkdir()
  (failure,) = _failures(run)
  assert failure.startswith(f"{name} is in the folder")
  shutil.rmtree(run / name)
  (run / "metrics.json").write_text('{"train": {"error": {"mean": 0.1}}}')
  (failure,) = _failures(run)
  assert failure.startswith("metrics.json has the training clients")


# Evaluations.

_FIELDS = [*(field.name for field in dataclasses.fields(entries.Evaluation)), "guarantee"]
_FIELDS += ["previous"]


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("name", _FIELDS)
def test_no_field_of_an_evaluation_can_be_changed(run, index, name):
  path = run / entries.FILE_NAME
  whole = path.read_text()
  old = json.loads(whole)[index][name]
  for new in ("x", "train", "test", [], {}, None, 3.5, True):
    if new != old:
      _change(path, lambda found, new=new: found[index].update({name: new}))
      assert _failures(run), new
    path.write_text(whole)
  _change(path, lambda found: found[index].pop(name))
  assert _failures(run)


@pytest.mark.parametrize("name", [field for field in entries._QUERY_FIELDS])
def test_no_field_of_a_query_can_be_changed(run, name):
  def change(found):
    query = found[2]["query"]
    query[name] = 2 * query[name] + 1 if isinstance(query[name], (int, float)) else 0.5

  _change(run / entries.FILE_NAME, change)
  assert _failures(run)


@pytest.mark.parametrize("kept", [[], [0], [0, 1], [1, 2], [2], [0, 2], [1, 0, 2], [0, 1, 2, 2]])
def test_no_evaluation_can_be_removed_or_moved(run, kept):
  content = json.loads((run / entries.FILE_NAME).read_text())
  (run / entries.FILE_NAME).write_text(entries.to_json([content[index] for index in kept]))
  assert any("valuation" in failure for failure in _failures(run))


def test_a_crash_between_the_two_files_is_no_contradiction(run):
  content = entries.load(run)
  for length in range(1, len(content) + 1):
    _write_evaluations(run, content[: length - 1])
    (run / entries.FILE_NAME).write_text(entries.to_json(content[:length]))
    assert _failures(run) == ()
  # But the head is never two entries behind.
  _write_evaluations(run, content[:1])
  (run / entries.FILE_NAME).write_text(entries.to_json(content))
  assert _failures(run)


def test_every_evaluation_follows_one(run):
  old = [_evaluation().to_dict()]
  (run / entries.FILE_NAME).write_text(entries.to_json(old))
  _change(run / "manifest.json", lambda found: found.pop("evaluations"))
  assert _failures(run)
  _write_evaluations(run, entries.append(old, _evaluation()))
  assert _failures(run)
  # What the manifest says nothing of was not written by this version.
  assert "1 evaluations is not the one" in entries.broken_chain(
    entries.append([], _evaluation()), None
  )
