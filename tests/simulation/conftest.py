"""What the tests of contexts share."""

import calls
import pytest
import tensorflow_federated as tff


@pytest.fixture(scope="module")
def native():
  """TFF's own runtime, in a process of its own, which ends with `worker.close`."""
  return calls.tffs_runtime()


@pytest.fixture
def restored_context():
  """Lets a test set the default context."""
  old = tff.framework.get_context_stack().current
  yield
  tff.framework.set_default_context(old)
