"""A federated problem that is smooth but not convex: a network of two layers on every client.

Client i has examples (x_ij, y_ij), and its loss is half the mean squared error of h tanh units,

    F_i(w) = mean_j (g(w; x_ij) - y_ij)^2 / 2,    g(w; x) = mean_k tanh(w_k . x),

with w = (w_1, ..., w_h). As g and the labels are bounded, the theorem's assumptions hold for all w,
with constants that follow from the largest residual R = 1 + max |y|, from T = 4 / (3 sqrt 3), the
largest second derivative of tanh, and from s = max_i |mean_j x_ij x_ij^T|: see `build_constants`.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math

import numpy as np

_TANH_CURVATURE = 4.0 / (3.0 * math.sqrt(3.0))


@dataclasses.dataclass(frozen=True)
class Problem:
  """A network of h tanh units on n clients, with x [n, e, p] of e examples each, and y [n, e]."""

  features: np.ndarray
  labels: np.ndarray
  num_units: int

  @property
  def num_clients(self) -> int:
    return self.labels.shape[0]

  @property
  def dimension(self) -> int:
    """d = h p."""
    return self.num_units * self.features.shape[2]

  def losses(self, points: np.ndarray) -> np.ndarray:
    """Returns F_i [..., n] at points [..., d]."""
    num_inputs = self.features.shape[2]
    units = points.reshape(*points.shape[:-1], self.num_units, num_inputs)
    outputs = np.tanh(np.matmul(units, self.features.reshape(-1, num_inputs).T)).mean(axis=-2)
    residuals = outputs.reshape(*points.shape[:-1], *self.labels.shape) - self.labels
    return 0.5 * np.mean(np.square(residuals), axis=-1)

  def gradients(self, points: np.ndarray) -> np.ndarray:
    """Returns the gradients [n, d] of the F_i, at one point [d] or each at its own, [n, d]."""
    points = np.broadcast_to(points, [self.num_clients, self.dimension])
    return _gradients(points, self.features, self.labels)

  def mixed_hessian(self, point: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the Hessian [d, d] of sum_i weights_i F_i at a point [d], for weights [n]."""
    kept = np.flatnonzero(weights)
    x = self.features[kept].reshape(-1, self.features.shape[2])
    of_examples = np.repeat(weights[kept], self.labels.shape[1]) / self.labels.shape[1]
    outputs = np.tanh(x @ point.reshape(self.num_units, -1).T)  # [examples, h]
    slopes = (1.0 - outputs**2) / self.num_units
    residuals = outputs.mean(axis=1) - self.labels[kept].reshape(-1)
    jacobian = (slopes[:, :, None] * x[:, None, :]).reshape(len(x), -1)
    hessian = (of_examples[:, None] * jacobian).T @ jacobian
    bends = -2.0 * outputs * slopes * (of_examples * residuals)[:, None]
    size = x.shape[1]
    for unit in range(self.num_units):
      block = slice(unit * size, (unit + 1) * size)
      hessian[block, block] += (bends[:, unit, None] * x).T @ x
    return hessian

  def local_training(
    self, learning_rates: np.ndarray, local_steps: int
  ) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Returns tau gradient steps of every client that has a weight; see `rounds.Problem`."""

    def train(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
      # Only the tail trains; tails of other runs may be larger, by clients without a weight.
      size = int(np.count_nonzero(weights, axis=-1).max())
      tail = np.argpartition(-weights, size - 1, axis=-1)[..., :size]
      models = np.repeat(points[..., None, :], size, axis=-2)
      features, labels = self.features[tail], self.labels[tail]
      steps = learning_rates[: len(points), None, None, None]
      for _ in range(local_steps):
        models = models - steps * _gradients(models, features, labels)
      shares = np.take_along_axis(weights, tail, axis=-1)
      return np.matmul(shares[..., None, :], models)[..., 0, :]

    return train


def _gradients(models: np.ndarray, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Returns gradients [..., d] of models [..., d] on examples [..., e, p] with labels [..., e]."""
  num_inputs = features.shape[-1]
  units = models.reshape(*models.shape[:-1], -1, num_inputs)
  outputs = np.tanh(np.matmul(units, np.swapaxes(features, -1, -2)))  # [..., h, e]
  residuals = outputs.mean(axis=-2, keepdims=True) - labels[..., None, :]
  slopes = residuals * (1.0 - outputs**2) / (units.shape[-2] * labels.shape[-1])
  return np.matmul(slopes, features).reshape(models.shape)


def build_problem(
  num_clients: int = 100,
  num_inputs: int = 3,
  num_units: int = 2,
  num_examples: int = 3,
  seed: int = 1,
) -> Problem:
  """Draws clients of which the last fifth has another network behind its labels than the rest.

  Features are scaled so that |mean_j x_ij x_ij^T| = 1 for every client.
  """
  rng = np.random.default_rng(seed)
  features = rng.normal(size=[num_clients, num_examples, num_inputs])
  norms = np.linalg.norm(features, ord=2, axis=(1, 2)) / np.sqrt(num_examples)
  features /= norms[:, None, None]
  groups = 2.0 * rng.normal(size=[2, num_units, num_inputs])
  minority = np.arange(num_clients) >= 0.8 * num_clients
  units = groups[minority.astype(int)]
  units = units + 0.5 * rng.normal(size=units.shape)
  labels = np.tanh(np.einsum("ikp,iep->ike", units, features)).mean(axis=1)
  labels += 0.1 * rng.normal(size=labels.shape)
  return Problem(features, np.clip(labels, -1.0, 1.0), num_units)


def build_start(problem: Problem) -> np.ndarray:
  """Returns w_0 [d], a draw that has learned nothing."""
  return np.random.default_rng(2).normal(size=problem.dimension)


@dataclasses.dataclass(frozen=True)
class Constants:
  """The theorem's assumptions on the problem, for all w: 0 <= F_i <= B, |grad F_i| <= G.

  Gradients are L-Lipschitz, and F_i + rho / 2 |w|^2 is convex for the weak convexity rho <= L.
  """

  max_loss: float
  lipschitz: float
  smoothness: float
  weak_convexity: float

  @property
  def strength(self) -> float:
    """mu = 2 L, of the theorem's Moreau envelope."""
    return 2.0 * self.smoothness


def build_constants(problem: Problem) -> Constants:
  """Computes B = R^2 / 2, G = R sqrt(s / h), L = (1 + R T) s / h and rho = R T s / h of all w.

  With r = g - y and J the gradient of g, an example's loss has the Hessian J J^T + r Hessian(g). As
  J has the entries tanh' x / h, and the Hessian of g the blocks tanh'' x x^T / h, it lies between
  the block-diagonal matrices of -(R T / h) x x^T and ((1 + R T) / h) x x^T. A gradient,
  mean_j r_j J_j, is at most sqrt(s / h) times the root of the mean of r_j^2 long.
  """
  residual = 1.0 + float(np.abs(problem.labels).max())
  moments = np.einsum("iep,ieq->ipq", problem.features, problem.features)
  largest = float(np.linalg.norm(moments / problem.labels.shape[1], ord=2, axis=(1, 2)).max())
  of_units = largest / problem.num_units
  bend = residual * _TANH_CURVATURE * of_units
  return Constants(0.5 * residual**2, residual * math.sqrt(of_units), of_units + bend, bend)
