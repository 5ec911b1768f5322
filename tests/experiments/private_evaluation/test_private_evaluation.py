"""Private evaluations of finished runs: what they release, what they write, and what is refused."""

import dataclasses
import json
import pathlib
import re
import shutil

from helpers import finished_runs
import numpy as np
import pytest

from privacy import audit
from privacy.evaluation import entries
from tff_superquantile import atomic_files
from tff_superquantile import evaluation
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.private_evaluation import release
from tff_superquantile.experiments.run import run_folder

_KEPT = finished_runs.KEPT
_PRIVATE = "synthetic/superquantile_theta_0.5_tree_epsilon_20/seed_0"
pytestmark = pytest.mark.usefixtures("restored_context")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  return finished_runs.clients(tmp_path_factory.mktemp("clients"), 0)


@pytest.fixture
def run_dir(tmp_path, monkeypatch, files):
  """The folder of a finished run of the tiny task, whose model and clients are found."""

  found = finished_runs.model(), {"test": files}
  monkeypatch.setattr(finished_run, "get_task", lambda run, config, is_own: None)
  monkeypatch.setattr(finished_run, "load_task", lambda task, config: found)
  return finished_runs.write_run(tmp_path / "out", "fed_avg", 0)


def _evaluate(folder, **request):
  request = {"epsilon": 20.0, "delta": 1e-3, "num_bins": 16, **request}
  return release.evaluate(release.Inquiry(folder, **request))[0]


def _exact(run_dir, files):
  evaluate = evaluation.build_evaluators(finished_runs.model(), {"test": files})["test"]
  return evaluate(run_folder.Run(run_dir, 0).weights)


def test_releases_the_distribution_of_the_error(run_dir, files):
  (found,) = _evaluate(run_dir)
  exact = _exact(run_dir, files)
  assert found.query.num_clients == len(finished_runs.SIZES)
  count, stddev = found.estimates["clients"]
  assert abs(count - len(finished_runs.SIZES)) < 6 * stddev < 6
  assert list(found.estimates) == ["clients", "mean", "p10", "p50", "p90", "p95", "worst 10 %"]
  for name, truth in (("mean", exact.error.mean()), ("p50", np.median(exact.error))):
    estimate, stddev = found.estimates[name]
    assert abs(estimate - truth) < 6 * stddev + 1 / 16
  # The file is what is returned, and has nothing exact.
  assert entries.read(run_dir) == [found]
  text = (run_dir / entries.FILE_NAME).read_text()
  written = np.array(re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text), float)
  secret = [*exact.error, *exact.loss, exact.error.mean(), np.quantile(exact.error, 0.9)]
  # Edges of bins are public, and a client's error may be one of them.
  secret = np.array([number for number in secret if 16 * number % 1])
  assert len(written) > 10 and len(secret) > 10
  assert not np.isclose(written[:, None], secret, rtol=1e-6, atol=0).any()


def test_each_release_has_noise_of_its_own_and_counts(run_dir):
  first = _evaluate(run_dir)
  second = _evaluate(run_dir)
  assert second[0] == first[0] and second[1].counts != first[0].counts
  epsilon, delta = entries.cost(second)
  assert 20.0 < epsilon < 40.0 and delta == 1e-3
  (sentence, *_) = entries.describe_costs(second, None)
  assert sentence.startswith("2 releases, each of which counts, over the 11 test clients")


@pytest.mark.parametrize("name", [entries.FILE_NAME, "manifest.json"])
def test_nothing_is_released_on_top_of_a_broken_chain(run_dir, name):
  _evaluate(run_dir)
  first = (run_dir / name).read_bytes()
  _evaluate(run_dir)
  whole = {path.name: path.read_bytes() for path in run_dir.iterdir()}
  for content in (b"[]\n" if name == entries.FILE_NAME else b"{}\n", None):
    if content is None:
      (run_dir / name).unlink()
    else:
      (run_dir / name).write_bytes(content)
    with pytest.raises(ValueError, match="were changed or removed"):
      _evaluate(run_dir)
    (run_dir / name).write_bytes(whole[name])
  # One step back is what a crash between the two files leaves of the manifest, and of it alone.
  (run_dir / name).write_bytes(first)
  if name == entries.FILE_NAME:
    with pytest.raises(ValueError, match="were changed or removed"):
      _evaluate(run_dir)
  else:
    assert len(_evaluate(run_dir)) == 3
    assert entries.broken_chain(entries.load(run_dir), _head(run_dir)) is None


def _head(run_dir):
  return json.loads((run_dir / "manifest.json").read_text())[entries.HEAD]


class _Killed(BaseException):
  """As if a process ended here."""


def test_crashes_between_the_two_files_leave_a_chain_that_goes_on(run_dir, monkeypatch):
  _evaluate(run_dir)
  for num_writes in (1, 2):  # The second time, the head is brought up first.
    with monkeypatch.context() as patch:
      write, left = atomic_files.write, [num_writes]

      def write_some(*args, write=write, left=left):
        if not left[0]:
          raise _Killed
        left[0] -= 1
        write(*args)

      patch.setattr(atomic_files, "write", write_some)
      with pytest.raises(_Killed):
        _evaluate(run_dir)
    assert _head(run_dir) == entries.head(entries.load(run_dir)[:-1])
  assert len(_evaluate(run_dir)) == 4
  assert _head(run_dir) == entries.head(entries.load(run_dir))


def test_loss_has_the_run_s_range(run_dir, files):
  flags = run_dir / "flags.txt"
  kept = [line for line in flags.read_text().splitlines() if not line.startswith("--max_loss=")]
  flags.write_text("\n".join(kept) + "\n")
  with pytest.raises(ValueError, match="expected --upper"):
    _evaluate(run_dir, metric="loss")
  flags.write_text("\n".join([*kept, "--max_loss=2.5"]) + "\n")
  (found,) = _evaluate(run_dir, metric="loss")
  assert found.query.upper == 2.5
  estimate, stddev = found.estimates["p50"]
  truth = np.median(_exact(run_dir, files).loss)
  assert abs(estimate - truth) < 6 * stddev + found.query.upper / 16


@pytest.mark.parametrize(
  "request_, message",
  [
    (dict(epsilon=0.0), "epsilon = 0"),
    (dict(num_bins=12), "power of two"),
    (dict(upper=-1.0), "lower < upper"),
  ],
)
def test_refuses_and_releases_nothing(run_dir, request_, message):
  with pytest.raises(ValueError, match=message):
    _evaluate(run_dir, **request_)
  assert not (run_dir / entries.FILE_NAME).exists()


@pytest.mark.parametrize("content", ["[", "{}", '[{"split": "test"}]'])
def test_a_ledger_that_cannot_be_read_is_kept(run_dir, content):
  (run_dir / entries.FILE_NAME).write_text(content)
  with pytest.raises(ValueError, match="[bB]ring"):
    _evaluate(run_dir)
  assert (run_dir / entries.FILE_NAME).read_text() == content


def test_other_clients_than_the_run_s_are_refused(run_dir):
  (run_dir / "test_clients.csv").write_text("client_id,num_examples,loss,error\nsomeone,1,0,0\n")
  with pytest.raises(ValueError, match="other test clients"):
    _evaluate(run_dir)


def _command(lab, *arguments):
  return lab.bare("private_evaluation", *map(str, arguments))


@pytest.fixture(scope="module")
def private_run(tmp_path_factory):
  output_dir = tmp_path_factory.mktemp("kept") / "results"
  return pathlib.Path(shutil.copytree(_KEPT, output_dir)) / _PRIVATE


def test_command_and_audit_of_a_private_run(private_run, lab):
  flags = ("--epsilon=8", f"--cache_dir={lab.cache_dir}")
  result = _command(lab, private_run, *flags)
  assert result.code == 0 and "Traceback" not in result.err, result.err
  for words in ("clients", "p90", "worst 10 %", "± standard error", "parallel composition", "(8, "):
    assert words in result.out
  assert max(map(len, result.out.splitlines()[1:])) <= 100
  result = _command(lab, private_run, *flags, "--split=elsewhere")
  result.assert_refused("Found --split=elsewhere; expected one of test, train, validation.")
  (found,) = entries.read(private_run)

  audited = audit.audit_folder(private_run)
  assert audited.holds
  assert any("over the 20 test clients cost them epsilon = 8" in note for note in audited.notes)
  training = dataclasses.replace(found, split="train")
  said = " ".join(entries.describe_costs([found, training], audited.ledger))
  assert f"by composition {audited.ledger.epsilon_spent + 8:.4g}" in said
  # Less noise than the entry's budget needs.
  content = json.loads((private_run / entries.FILE_NAME).read_text())
  content[0]["query"]["epsilon"] = 7.0
  (private_run / entries.FILE_NAME).write_text(json.dumps(content))
  changed, noise = audit.audit_folder(private_run).failures
  assert "not the one that manifest.json has" in changed
  assert "Evaluation 1 has noise multiplier" in noise


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["nowhere", "--epsilon=1"], "Found no finished run in nowhere"),
    (["run"], "Found no --epsilon"),
    (["run", "--epsilon=1", "--metric=size"], "Found --metric=size; expected one of error, loss"),
  ],
)
def test_command_ends_with_one_sentence(lab, arguments, message):
  _command(lab, *arguments).assert_refused(f"Error: {message}")
