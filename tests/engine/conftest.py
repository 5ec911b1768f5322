"""What the tests of contexts share."""

from helpers import calls
from helpers import rounds
import pytest


@pytest.fixture(scope="module")
def native():
  """TFF's own runtime, in a process of its own, which ends with `worker.close`."""
  return calls.tffs_runtime()


@pytest.fixture(scope="module")
def equal_files(tmp_path_factory):
  """Clients of the same size, with one batch each."""
  return rounds.write_files(tmp_path_factory.mktemp("equal"), [11] * rounds.NUM_CLIENTS)


@pytest.fixture(scope="module")
def unequal_files(tmp_path_factory):
  return rounds.write_files(tmp_path_factory.mktemp("unequal"), range(3, 3 + rounds.NUM_CLIENTS))
