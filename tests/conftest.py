"""What all tests share: quiet TensorFlow, the long ones on demand, the optional real data."""

import gc
import os
import pathlib
import signal
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Where every core is busy, NumPy's threads wait for one another in each small product, and spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from helpers import processes  # noqa: E402
import pytest  # noqa: E402  TensorFlow and NumPy read these when they are imported.

import tff_superquantile  # noqa: E402, F401  It lets TFF in, which tests import before ours.

_ROOT = pathlib.Path(__file__).resolve().parent.parent


def _prefer_memory(folder="/dev/shm"):
  """Has temporary files in memory: the tests write 70,000, and a disk removes 500 a second."""
  try:
    disk = os.statvfs(folder)
  except OSError:
    return
  room = disk.f_bavail * disk.f_frsize  # The tests hold 0.2 GB at once.
  if room > 4e9 and os.access(folder, os.W_OK) and not disk.f_flag & os.ST_NOEXEC:
    os.environ.setdefault("TMPDIR", folder)
    tempfile.tempdir = None  # pytest has asked for it already.


_prefer_memory()


def pytest_addoption(parser):
  parser.addoption("--run_slow", action="store_true", help="also run the long reproductions")
  parser.addoption("--quick", action="store_true", help="run one test of each folder alone")


# What --quick runs: of each folder the test that goes through most of what the folder is about in
# seconds. Those of experiments and privacy hold for the numbers that every Python is to reproduce.
QUICK = frozenset(
  f"tests/{name}"
  for name in (
    "algorithms/test_superquantile_fed_avg.py::test_rounds_against_numpy",
    "analytics/test_private_distribution.py::test_the_whole_way_with_little_noise",
    "attacks/test_exact_pair.py::test_the_bound_of_a_pair_without_sampling_is_that_of_the_gaussian",
    "benchmarks/test_round_time.py::test_equal_work_counts_and_other_work_is_void",
    "client_work/test_optimizers.py::test_a_subclass_may_take_other_steps",
    "docs/test_examples.py::test_library_example",
    "evaluation/test_evaluation.py::test_every_client_exactly",
    "doctor/test_doctor.py::test_folder",
    "experiments/test_cli.py::test_another_broken_pipe_is_told",
    "experiments/config/test_names.py::test_names_know_what_the_flags_say",
    "experiments/evidence/test_paired.py::test_a_statistic_of_counts_is_that_of_the_repeated_sample",
    "experiments/export/test_export.py::test_probabilities_of_extreme_logits",
    "experiments/plan/test_tuning.py::test_smallest_result_is_chosen",
    "experiments/private_evaluation/test_private_evaluation.py::test_refuses_and_releases_nothing",
    "experiments/references/test_without_models.py::test_ranks_within_clients_are_means_of_spearmans",
    "experiments/report/test_client_reports.py::test_thirds_are_those_of_a_plain_count",
    "experiments/run/hooks/test_convergence.py::test_losses_that_are_not_known_do_not_count",
    "experiments/run/register/test_register.py::test_a_refused_run_is_withdrawn",
    "experiments/run/test_kept_results.py::test_training_gives_the_same_results",
    "paper/studies/test_sensitivity.py::test_the_sentence_has_the_least_and_the_largest_change",
    "paper/test_statements.py::test_formulas_are_misprints_where_what_is_meant_is_true",
    "privacy/test_accountant_alone.py::test_the_accountant_needs_no_tensorflow",
    "secure_sums/test_secure_sum.py::test_clients_send_remainders_and_the_server_gets_one",
    "engine/test_stages.py::test_each_aggregation_in_blocks",
    "simulation/test_cohorts.py::test_every_client_and_every_pair_is_equally_likely",
    "tasks/test_synthetic.py::test_every_example_is_the_pools_and_used_once",
    "test_superquantile.py::test_dual_weights_attain_the_linear_program",
    "threshold/test_tree.py::test_against_numpy",
  )
)


def pytest_ignore_collect(collection_path, config):
  """Returns whether --quick imports a file for nothing; None for what it does not decide."""
  if not config.getoption("--quick") or collection_path.suffix != ".py":
    return None
  return not any(name.startswith(f"{collection_path.relative_to(_ROOT)}::") for name in QUICK)


def pytest_xdist_auto_num_workers():
  """Returns one worker more than cores, as a third of the time is spent in waiting for processes.

  A worker that has run a third of all tests holds 5 GB.
  """
  memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return max(1, min(len(os.sched_getaffinity(0)) + 1, int(memory / 6e9)))


def pytest_configure(config):
  processes.pytest_configure(config)
  # Until everything is imported: the collector would go over TensorFlow's modules again and again.
  gc.disable()


def pytest_collection_finish():
  # A graph of TensorFlow is thousands of objects, which few collections need to go over: with the
  # usual thresholds they took a sixth of all time.
  gc.set_threshold(100_000, 20, 20)
  gc.freeze()
  gc.enable()


def pytest_unconfigure():
  # TFF's runtime, which some tests compare with, ends when its context is collected.
  if "tensorflow_federated" in sys.modules:
    from tff_superquantile.engine.processes import worker

    worker.close()
  gc.freeze()  # Python would look at all objects once more.


# Files that take minutes; whichever process gets one last holds up the end.
_LONG = (
  *("experiments/test_sweep", "experiments/run/test_private_methods", "experiments/test_train"),
  *("experiments/run/test_folder_histories", "experiments/run/test_training_options"),
  *("engine/test_cohort_engine", "algorithms/test_private_superquantile_fed_avg"),
  *("algorithms/test_superquantile_fed_avg", "algorithms/test_baselines"),
  *("engine/test_data_sets", "experiments/test_additions", "experiments/run/test_private_run"),
  *("experiments/run/test_private_resumed", "experiments/run/test_baseline_runs"),
  *("experiments/run/test_own_runs", "test_stack", "docs/test_examples"),
  *("tasks/test_downloads", "tasks/test_emnist"),
  *("experiments/run/register/test_experiment_histories", "threshold/test_tree"),
  *("experiments/plan/test_tuning", "experiments/run/hooks/test_personal_models"),
  *("algorithms/test_empirical_privacy", "threshold/test_geometric", "attacks/test_exact_pair"),
  *("experiments/run/test_kept_results", "experiments/export/test_export"),
  "algorithms/test_private_threshold",
  *("paper/test_convergence", "algorithms/test_as_tff"),
  *("privacy/test_composition", "privacy/test_ledger"),
)


def pytest_collection_modifyitems(config, items):
  ranks = {f"tests/{name}.py": rank for rank, name in enumerate(_LONG)}
  assert all((_ROOT / name).exists() for name in ranks), "_LONG names a file that is not there"
  items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(_LONG)))
  if config.getoption("--quick"):
    config.hook.pytest_deselected(items=[i for i in items if i.nodeid.split("[")[0] not in QUICK])
    items[:] = [item for item in items if item.nodeid.split("[")[0] in QUICK]
  if config.getoption("--run_slow"):
    return
  skip = pytest.mark.skip(reason="a long reproduction; run it with --run_slow")
  for item in items:
    if "slow" in item.keywords:
      item.add_marker(skip)


@pytest.fixture(scope="session")
def shared_dir() -> pathlib.Path:
  """The folder of real data that some tests use; they are skipped where it is missing."""
  path = pathlib.Path(os.environ.get("SUPERQUANTILE_SHARED", _ROOT.parent / "shared"))
  if not (path / "data").is_dir():
    pytest.skip(f"the real data is not at {path}; set SUPERQUANTILE_SHARED to use it")
  return path


@pytest.fixture
def restored_context():
  """Lets a test set the default context."""
  import tensorflow_federated as tff  # Not before a test needs TensorFlow.

  old = tff.framework.get_context_stack().current
  yield
  tff.framework.set_default_context(old)


@pytest.fixture(scope="session")
def simulation_context():
  """This process as the default context."""
  from tff_superquantile.engine import context  # Not before a test needs TensorFlow.

  context.set_simulation_context()


# Folders to run commands in.


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_works():
  """Also where the tests run in the background: children inherit what is ignored."""
  old = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, old)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
  """A folder of all processes of these tests."""
  root = tmp_path_factory.getbasetemp()
  folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "shared"
  (folder / "cache").mkdir(parents=True, exist_ok=True)
  return folder


@pytest.fixture(scope="session")
def cache_dir(shared):
  """Where the synthetic clients are kept, made once for all tests."""
  return shared / "cache"


@pytest.fixture(scope="module")
def lab(tmp_path_factory, cache_dir):
  from helpers import commands  # Not before a test needs TensorFlow.

  lab = commands.Lab(tmp_path_factory.mktemp("lab"), cache_dir)
  yield lab
  lab.close()
