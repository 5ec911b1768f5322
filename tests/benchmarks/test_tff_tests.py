"""TFF's tests are run as they are, in both contexts, and differences are found."""

import csv
import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]

_HELPER = "LIMIT = 3\n"
_TESTS = """
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.backends.native import execution_contexts
from tensorflow_federated.python.only_for_tests import helper

class SumTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(("one", [1]), ("three", [1, 2, 3]))
  def test_sum(self, values):
    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def total(held):
      return tff.federated_sum(held)
    self.assertEqual(total(values), sum(values))

  def test_default(self):
    one = tff.tensorflow.computation(lambda: 1)
    @tff.federated_computation
    def count():
      return tff.federated_sum(tff.federated_eval(one, tff.CLIENTS))
    self.assertEqual(count(), helper.LIMIT)

  def test_fails(self):
    self.assertEqual(1, 2)

  def test_is_skipped(self):
    self.skipTest("a reason")

  def test_only_in_tffs_context(self):
    context = tff.framework.get_context_stack().current
    self.assertIsInstance(context, tff.framework.SyncExecutionContext)

if __name__ == "__main__":
  execution_contexts.set_sync_local_cpp_execution_context(default_num_clients=helper.LIMIT)
  tf.test.main()
"""


def _run(*flags):
  command = [sys.executable, "benchmarks/tff/own_tests.py", *flags]
  return subprocess.run(
    command, cwd=_ROOT, capture_output=True, text=True, timeout=600, env=dict(os.environ)
  )


@pytest.fixture
def checkout(tmp_path):
  package = tmp_path / "checkout" / "tensorflow_federated" / "python" / "only_for_tests"
  package.mkdir(parents=True)
  (package / "__init__.py").touch()
  (package / "helper.py").write_text(_HELPER)
  (package / "sums_test.py").write_text(_TESTS)
  return tmp_path / "checkout"


@pytest.mark.slow
def test_each_test_is_run_in_both_contexts(checkout, tmp_path):
  result = _run(f"--checkout={checkout}", f"--csv={tmp_path / 'outcomes.csv'}")
  assert result.returncode == 1, result.stderr
  assert "only_for_tests/sums_test.py: SumTest.test_only_in_tffs_context\n" in result.stdout
  rows = list(csv.DictReader((tmp_path / "outcomes.csv").open()))
  outcomes = {row["test"].partition(".")[2]: (row["TFF"], row["here"]) for row in rows}
  assert outcomes == {
    "test_default": ("passed", "passed"),
    "test_fails": ("failed", "failed"),
    "test_is_skipped": ("skipped", "skipped"),
    "test_only_in_tffs_context": ("passed", "failed"),
    "test_session": ("skipped", "skipped"),
    "test_sum_one": ("passed", "passed"),
    "test_sum_three": ("passed", "passed"),
  }


def test_a_folder_without_tests_is_refused(tmp_path):
  result = _run(f"--checkout={tmp_path}")
  assert (result.returncode, result.stdout) == (2, "")
  assert "Found no tests below" in result.stderr
