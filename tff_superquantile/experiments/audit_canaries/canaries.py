"""Canary clients: what they send, in which rounds, and what an adversary makes of the releases.

A canary i takes the place of a training client. It has a direction u_i, a unit vector over all
weights, a public sign s_ti in each round, and a secret fair coin. If it is in, its update in a
round in which it takes part is along s_ti u_i, longer than the clip norm C, so that the clipping is
under test, too, and its share is 1, as of a client that every threshold lets train. If it is out,
it has no data (zero-out), or its update is along -s_ti u_i (replace one). It is drawn into cohorts
as any client.

Directions share no weight while there are at least as many weights as canaries: each is of d / m
weights chosen at random, with random signs. More canaries than weights share directions, which the
signs tell apart. The signs also keep what other clients have in common, and their drift over the
rounds, from adding up in a score; and the model from following the canaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
from scipy import ndimage
from scipy import signal

from privacy import parts
from privacy import releases
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation import seeds

# What other clients send changes slowly: of each sum, the mean of so many rounds around it.
_WINDOW = 11


@dataclasses.dataclass(frozen=True, eq=False)
class Canaries:
  """The canaries of one run.

  Attributes:
    files: The training clients, of whom some are canaries.
    clients: The positions of the canaries among these, int [m].
    coins: Whether each is in, bool [m].
    signs: s_ti, 1 or -1, int [T, m].
    direction_of: For each weight of the model, flattened, whose direction has it, int32 [d].
    weights: What that direction has there, float32 [d].
    relation: The neighbouring relation of the claim.
  """

  files: client_files.ClientFiles
  clients: np.ndarray
  coins: np.ndarray
  signs: np.ndarray
  direction_of: np.ndarray
  weights: np.ndarray
  relation: str

  @property
  def num_directions(self) -> int:
    """The number of different directions, at most that of the weights."""
    return int(self.direction_of.max()) + 1

  @property
  def directions(self) -> np.ndarray:
    """The direction of each canary, int [m]."""
    return np.arange(len(self.clients)) % self.num_directions

  def at_clients(
    self, cohort: Sequence[Mapping[str, Any]], round_num: int
  ) -> tuple[list[Any], np.ndarray]:
    """Returns the handles of a cohort with its canaries, and whether each canary sends data.

    The index of one that sends is n + 2 direction + [its sign is positive], which
    `watched.Watched` reads. That of one that is out is of a client without examples.
    """
    n = len(self.files.client_ids)
    where = {self.files.path(self.files.client_ids[c]): i for i, c in enumerate(self.clients)}
    handles: list[Any] = []
    there = np.zeros(len(self.clients), bool)
    for handle in cohort:
      canary = where.get(handle["path"])
      if canary is not None and handle["index"] != client_files.WITHOUT_EXAMPLES:
        there[canary] = True
        is_positive = self.signs[round_num, canary] > 0
        index = n + 2 * self.directions[canary] + is_positive
        if not self.coins[canary]:
          is_replaced = self.relation == releases.REPLACE_ONE
          index = index - 2 * is_positive + 1 if is_replaced else client_files.WITHOUT_EXAMPLES
        handle = {**handle, "index": np.int32(index)}
      handles.append(handle)
    return handles, there


def draw(
  key: bytes,
  files: client_files.ClientFiles,
  num_canaries: int,
  num_weights: int,
  num_rounds: int,
  relation: str,
) -> Canaries:
  """Draws the canaries of T = `num_rounds` rounds and d = `num_weights` weights by a key."""
  clients, coins, signs, weights = (
    seeds.generator(key, f"{purpose} of canaries")
    for purpose in ("clients", "coins", "signs", "directions")
  )
  direction_of = weights.permutation(num_weights) % min(num_canaries, num_weights)
  lengths = np.sqrt(np.bincount(direction_of))
  return Canaries(
    files=files,
    clients=clients.choice(len(files.client_ids), num_canaries, replace=False),
    coins=coins.random(num_canaries) < 0.5,
    signs=signs.choice([-1, 1], [num_rounds, num_canaries]),
    direction_of=direction_of.astype(np.int32),
    weights=(weights.choice([-1, 1], num_weights) / lengths[direction_of]).astype(np.float32),
    relation=relation,
  )


def scores(
  canaries: Canaries, release: releases.Release, sums: np.ndarray, there: np.ndarray | None
) -> np.ndarray:
  """Returns the logarithm of the likelihood ratio of in to out of each canary, under the claim.

  With y_t = s_ti <U_t, u_i> / C, z the noise multiplier of the updates, and q the chance to take
  part, secret cohorts give sum_t log(1 - q + q exp((y_t - 1 / 2) / z^2)), from which replace-one
  takes the same of -y_t. Of known cohorts with noise C^-1 z over rounds, c its coefficients, it is
  that of two normal vectors, c * y and the same without the canary's part, in units of z. Of each
  sum the mean of the rounds around it is taken first, which are the other clients' above all.

  Args:
    canaries: The canaries.
    release: What the run is said to release in a round.
    sums: <U_t, u> / C of each round and direction, float [T, directions].
    there: Whether each canary sent data, or would have, bool [T, m], of an adversary that knows the
      cohorts; None for one that does not.

  Returns:
    The scores, float [m].
  """
  updates = release.find(parts.UpdateSum)
  assert updates is not None  # A run releases a model.
  variance, is_replaced = updates.z**2, canaries.relation == releases.REPLACE_ONE
  seen = _without_others(signal.lfilter(release.coefficients, [1.0], sums, axis=0))
  seen = seen[:, canaries.directions]
  if there is not None:
    sent = signal.lfilter(release.coefficients, [1.0], there * canaries.signs, axis=0)
    likely = sent * (2.0 * seen) if is_replaced else sent * (seen - sent / 2.0)
    return np.sum(likely, axis=0) / variance
  share = release.cohort.probability
  with np.errstate(divide="ignore"):
    absent, present = np.log1p(-share), np.log(share)

  def likelihood(along: np.ndarray) -> np.ndarray:
    ratios = np.logaddexp(absent, present + (along - 0.5) / variance)
    summed: np.ndarray = np.sum(ratios, axis=0)
    return summed

  along = canaries.signs * seen
  return likelihood(along) - (likelihood(-along) if is_replaced else 0.0)


def _without_others(sums: np.ndarray) -> np.ndarray:
  """Takes from each round, of float [T, directions], the mean of those around it, if there are."""
  if len(sums) < _WINDOW:
    return sums
  means = ndimage.uniform_filter1d(sums, _WINDOW, axis=0, mode="nearest")
  rest: np.ndarray = (sums - means) * (_WINDOW / (_WINDOW - 1))  # A round is in its own mean.
  return rest
