"""What `import tff_superquantile` offers, and that it costs nothing until it is used."""

import pathlib
import subprocess
import sys

import pytest

import tff_superquantile as tsq
from tff_superquantile import algorithms
from tff_superquantile import engine
from tff_superquantile import simulation
from tff_superquantile.engine import context
from tff_superquantile.simulation import client_files

_ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("package", [tsq, engine, simulation])
def test_all_public_names_are_there_and_listed(package):
  assert dir(package) == sorted(package.__all__)
  for name in package.__all__:
    assert getattr(package, name) is not None
  with pytest.raises(AttributeError, match="has no attribute 'importlib'"):
    _ = package.importlib


def test_names_are_those_of_the_rooms():
  builders = {name for name in algorithms.__all__ if name.startswith("build_")}
  assert builders | {"AdaptiveClipNorm", "BandedKey", "Private", "dp_mean_factory"} == {
    n for n in dir(tsq) if hasattr(algorithms, n)
  }
  assert tsq.build_superquantile_fed_avg is algorithms.build_superquantile_fed_avg
  assert tsq.set_simulation_context is context.set_simulation_context
  assert simulation.ClientFiles is client_files.ClientFiles
  assert tsq.engine.context is context


def test_nothing_is_loaded_before_it_is_used():
  code = (
    "import sys, tff_superquantile as tsq; dir(tsq); dir(tsq.simulation);"
    " assert 'numpy' not in sys.modules; tsq.superquantile.superquantile;"
    " assert 'tensorflow' not in sys.modules"
  )
  subprocess.run([sys.executable, "-c", code], check=True, cwd=_ROOT)
