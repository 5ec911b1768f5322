"""Releases by the entries of their ledgers, in one line."""

import dataclasses
import math
import types

from privacy import accounting
from privacy import calibration
from privacy import cohorts
from privacy import parts
from privacy import releases
from privacy.noise import tree_mechanism

# The samplings whose cohorts are secret, or that know no distance between a client's rounds.
SAMPLED = ("poisson", "fixed_size", "none")


def release(
  population,
  clients_per_round,
  threshold_noise_multiplier=None,
  update_noise_multiplier=None,
  sampling="poisson",
  **entries,
):
  return releases.Release.of_entries(
    dict(
      population=population,
      clients_per_round=clients_per_round,
      threshold_noise_multiplier=threshold_noise_multiplier,
      update_noise_multiplier=update_noise_multiplier,
      sampling=sampling,
      **entries,
    )
  )


def changed(given, **entries):
  """The release with other entries."""
  return releases.Release.of_entries({**given.entries(), **entries})


def complete(
  given, *, num_bins=None, distributed_updates=False, clip_norm=1.0, num_parameters=None
):
  """The release with noise from the clients, as if the server made all of it so far."""
  made = {
    parts.Tree: dict(num_bins=None, mechanism=None),
    parts.UpdateSum: dict(num_parameters=None, clip_norm=1.0, mechanism=None),
  }
  if num_bins is not None:
    made[parts.Tree].update(num_bins=num_bins)
  if distributed_updates:
    made[parts.UpdateSum].update(num_parameters=num_parameters, clip_norm=clip_norm)
  completed = tuple(dataclasses.replace(p, **made.get(type(p), {})) for p in given.parts)
  return dataclasses.replace(given, parts=completed)


def costs_computed(monkeypatch):
  """Returns a list to which the arguments of each composition that is computed from now on come."""
  computed, composed_epsilon = [], accounting.composed_epsilon

  def counted(*arguments):
    computed.append(arguments)
    return composed_epsilon(*arguments)

  monkeypatch.setattr(accounting, "composed_epsilon", counted)
  for kept in (calibration.calibrate, accounting._spent, accounting.spent_by_pld):
    kept.cache_clear()  # Whatever other tests have asked for.
  return computed


def asked(
  *,
  population,
  clients_per_round,
  rho_ratio=None,
  sampling="poisson",
  threshold_kind="tree",
  relation="zero_out",
  protocol="complement",
  contacted=None,
  weighted_updates=False,
  clip_rho_ratio=None,
  num_bins=None,
  num_parameters=None,
  clip_norm=1.0,
):
  """A release without noise, and how a budget is divided; rho_ratio is inf without updates."""
  found = []
  if rho_ratio:
    kind = parts.private_kinds()[threshold_kind]
    bins = {"num_bins": num_bins} if kind is parts.Tree else {}
    found.append(kind(share=1.0 if rho_ratio == math.inf else rho_ratio, **bins))
  if rho_ratio != math.inf:
    summed = dict(num_parameters=num_parameters, clip_norm=clip_norm)
    found.append(parts.UpdateSum(is_weighted=weighted_updates, **summed))
  if clip_rho_ratio:
    found.append(parts.AdaptiveClip(share=clip_rho_ratio))
  return releases.Release(
    cohort=cohorts.of(sampling, population, clients_per_round),
    parts=tuple(found),
    noise=cohorts.source(protocol, contacted),
    relation=relation,
  )


def calibrate(
  epsilon, delta, *, num_rounds, accountant="tightest", distributed_updates=False, **given
):
  """The release of `asked` with the noise for a budget."""
  if not distributed_updates:
    given.pop("num_parameters", None)
  return calibration.calibrate(asked(**given), epsilon, delta, num_rounds, accountant)


def split_noise(z, rho_ratio):
  """z_q and z_w of a budget; None for what is not released."""
  entries = asked(population=9, clients_per_round=9, rho_ratio=rho_ratio).with_noise(z).entries()
  return entries["threshold_noise_multiplier"], entries["update_noise_multiplier"]


def default_rho_ratio(given, num_parameters, *, num_bins=64, theta=0.5, threshold_kind="tree"):
  """The threshold's share of the budget; `given` has no threshold."""
  tree_mechanism.check_num_bins(num_bins)
  kind = parts.private_kinds()[threshold_kind]
  threshold = kind(num_bins=num_bins) if kind is parts.Tree else kind()
  return calibration.default_share(threshold, given, num_parameters, theta)


def of(given):
  """The entries of a release as attributes, with its noise multipliers in their order."""
  entries = given.entries()
  names = [kind.flag for kind in parts.kinds()]
  return types.SimpleNamespace(
    **entries,
    noise_multipliers=tuple(entries[name] for name in names),
    sampling_probability=given.cohort.probability,
  )
