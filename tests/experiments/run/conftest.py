"""Private runs in this process."""

from helpers import private_run
import pytest

from tff_superquantile.experiments.run import runner


@pytest.fixture(scope="module")
def run_here(lab):
  """Runs the train command's function in this process, which has started TensorFlow before."""
  return lambda out, **values: runner.train(private_run.config(**lab.places(out), **values)).path


@pytest.fixture(scope="module")
def fixed_key(lab):
  """Flags of runs whose numbers are looked at: cohorts and noise are the same in all tests."""
  path = lab.folder / "fixed_key"
  path.write_text("8f3b61d2c07a94e5" + "1d6e50b7f29c8a43")
  return dict(noise_key_file=str(path))
