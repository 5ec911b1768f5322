"""How commands begin."""

import gc

import pytest

from tff_superquantile.experiments import cli


def test_the_garbage_collector_works_again_and_spares_what_was_imported():
  frozen = gc.get_freeze_count()
  with cli.starting_tensorflow():
    assert not gc.isenabled()
    kept = [[i] for i in range(1000)]  # As modules would be.
  assert gc.isenabled()
  assert gc.get_freeze_count() >= frozen + len(kept)
  with pytest.raises(ImportError), cli.starting_tensorflow():
    raise ImportError
  assert gc.isenabled()
