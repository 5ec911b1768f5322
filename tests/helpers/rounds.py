"""Rounds of all algorithms over client files, for the tests of the engine."""

import functools

import numpy as np
import tensorflow_federated as tff
import tree

from helpers import problems
from privacy.noise import sum_mechanism
from privacy.noise import tree_mechanism
from tff_superquantile import algorithms
from tff_superquantile import threshold as threshold_lib
from tff_superquantile.simulation import client_files

NUM_CLIENTS = 20
# Less than the largest of the cohorts, and more than the others.
_NUM_SHARES = 18
KEY = bytes(range(16))
_NUM_PARAMETERS = problems.NUM_FEATURES * problems.NUM_CLASSES + problems.NUM_CLASSES


def write_files(directory, sizes):
  arrays = problems.client_arrays(sizes)
  return client_files.write_client_files(
    directory / "clients", ((f"client {i}", x, y) for i, (x, y) in enumerate(arrays))
  )


def tree_threshold():
  return functools.partial(
    threshold_lib.build_tree_quantile,
    mechanism=tree_mechanism.build_tree_mechanism(1.0, 16, 16, num_shares=_NUM_SHARES),
    max_loss=4.0,
    noise_key=KEY,
  )


def geometric_threshold():
  return functools.partial(
    threshold_lib.build_geometric_quantile,
    noise_multiplier=1.0,
    expected_clients=NUM_CLIENTS,
    initial_estimate=1.0,
    noise_key=KEY,
  )


def _sum(num_entries):
  return sum_mechanism.build_sum_mechanism(1.0, 0.5, num_entries, _NUM_SHARES)


def _private(**values):
  usual = dict(clip_norm=0.5, noise_multiplier=1.0, expected_clients=NUM_CLIENTS, noise_key=KEY)
  return algorithms.Private(**{**usual, **values})


def weighted(local, distributed=False):
  update_sum = _sum(_NUM_PARAMETERS + 1) if distributed else None
  return algorithms.build_weighted_fed_avg(
    weighting=threshold_lib.build_own_loss_weighting(threshold_lib.build_power_share(2.0, 4.0)),
    private=_private(expected_clients=None, update_sum=update_sum),
    **local,
  )


def private(local, threshold, distributed=False):
  update_sum = _sum(_NUM_PARAMETERS) if distributed else None
  return superquantile({**local, "private": _private(update_sum=update_sum)}, threshold)


def private_gifair(local):
  keywords = tree_threshold().keywords
  weighting = threshold_lib.build_histogram_weighting(
    threshold_lib.build_rank_share(0.8), **keywords
  )
  return algorithms.build_weighted_fed_avg(weighting=weighting, private=_private(), **local)


def superquantile(local, threshold):
  return algorithms.build_superquantile_fed_avg(theta=0.5, threshold=threshold, **local)


BUILDERS = {
  "fed_avg": lambda local: algorithms.build_fed_avg(
    **{k: v for k, v in local.items() if k != "seed_fn"}
  ),
  "exact": lambda local: superquantile(local, "exact"),
  "reweighting": lambda local: superquantile(local, "reweighting"),
  "tree": lambda local: superquantile(local, tree_threshold()),
  "geometric": lambda local: superquantile(local, geometric_threshold()),
  "private tree": lambda local: private(local, tree_threshold()),
  "private geometric": lambda local: private(local, geometric_threshold()),
  "private distributed": lambda local: private(local, tree_threshold(), distributed=True),
  "fed_prox": lambda local: algorithms.build_fed_prox(proximal_strength=0.5, **local),
  "q_fed_avg": lambda local: algorithms.build_q_fed_avg(q=2.0, **local),
  "tilted_erm": lambda local: algorithms.build_tilted_erm(
    temperature=3.0, moving_average_rate=0.3, **local
  ),
  "agnostic_fed_avg": lambda local: algorithms.build_agnostic_fed_avg(
    ascent_rate=0.5, num_clients=NUM_CLIENTS, index_fn=lambda handle: handle["index"], **local
  ),
  "prop_fair": lambda local: algorithms.build_prop_fair(utility_bound=5.0, max_loss=4.0, **local),
  "gifair": lambda local: algorithms.build_gifair(fairness_strength=0.8, **local),
  "private gifair": private_gifair,
  "private weighted": weighted,
  "private weighted distributed": lambda local: weighted(local, distributed=True),
  "family": lambda local: algorithms.build_superquantile_family(thetas=(1.0, 0.5, 0.25), **local),
}


def local_work(files, batch_size, **reading):
  return dict(
    model_fn=problems.linear_model(),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3, momentum=0.9),
    examples_fn=client_files.build_examples_fn(files, shuffle=batch_size > 0, **reading),
    local_batch_size=batch_size,
    seed_fn=lambda handle: handle["seed"],
  )


@functools.cache  # Each is built once for all tests: what a context makes of it is the context's.
def build(name, files, batch_size, **reading):
  return BUILDERS[name](local_work(files, batch_size, **reading))


def cohort(files, clients, round_num=0):
  return [files.handle(f"client {i}", (i, round_num)) for i in clients]


def run(of_context, process, cohorts):
  """The outputs of `next`, one a cohort."""
  tff.framework.set_default_context(of_context)
  state = process.initialize()
  outputs = []
  for clients in cohorts:
    outputs.append(process.next(state, clients))
    state = outputs[-1].state
  return outputs


def assert_same(found, expected, rtol=1e-5):
  assert [path for path, _ in tree.flatten_with_path(found)] == [
    path for path, _ in tree.flatten_with_path(expected)
  ]
  for a, b in zip(tree.flatten(found), tree.flatten(expected)):
    assert type(a) is type(b)
    if isinstance(b, (np.ndarray, np.number)):
      assert np.asarray(a).dtype == np.asarray(b).dtype
      np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    else:
      assert a == b
