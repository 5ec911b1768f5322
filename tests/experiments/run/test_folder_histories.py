"""Whatever happens to a private run's folder, its ledger covers all that was released."""

import collections

from helpers import histories
import pytest


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, cache):
  """What a run of each variant shows that nothing disturbed, with the key of all histories."""
  found = {}

  def of(variant):
    if variant not in found:
      history = histories.History(tmp_path_factory.mktemp("whole") / "run", cache, variant)
      history.finish("--noise_key_file=key")
      assert [step.outcome for step in history.steps] == ["went on to the end"], history.steps
      found[variant] = history.seen
    return found[variant]

  return of


def _live(tmp_path, cache, undisturbed, seeds, num_steps):
  """Lets histories happen; returns how often each damage had each outcome."""
  counted = collections.Counter()
  for seed in seeds:
    variant = list(histories.VARIANTS)[seed % len(histories.VARIANTS)]
    history = histories.History(tmp_path / f"history_{seed}", cache, variant, seed)
    history.live(num_steps)
    history.finish()
    counted.update((step.damage, step.outcome) for step in history.steps)
    whole = undisturbed(variant)
    for what, values in history.seen.items():
      # One use of the noise, one value: that of the run that nothing disturbed.
      assert values == whole[what], (seed, what, history.steps)
  return counted


# One of three variants that have all kinds of noise always; all variants in the long run.
_ALWAYS = ((0,), (3,), (5,))
_LATER = ((1, 2, 4), *(tuple(range(first, first + 3)) for first in range(6, 24, 3)))


@pytest.mark.parametrize(
  "seeds",
  [*_ALWAYS, *(pytest.param(seeds, marks=pytest.mark.slow) for seeds in _LATER)],
  ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_histories(tmp_path, cache, undisturbed, seeds):
  counted = _live(tmp_path, cache, undisturbed, seeds, num_steps=2)
  print(counted)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 25))
def test_many_histories(tmp_path, cache, undisturbed, first):
  counted = _live(tmp_path, cache, undisturbed, range(first, first + 25), num_steps=4)
  for (damage, outcome), number in sorted(counted.items()):
    print(f"{damage:22}{outcome:22}{number}")
