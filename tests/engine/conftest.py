"""What the tests of contexts share."""

import calls
import pytest


@pytest.fixture(scope="module")
def native():
  """TFF's own runtime, in a process of its own, which ends with `worker.close`."""
  return calls.tffs_runtime()
