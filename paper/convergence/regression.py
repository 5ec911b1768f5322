"""A federated problem with a known optimum: linear regression, one small data set a client.

Client i has examples (x_ij, y_ij) and the loss F_i(w) = mean_j (x_ij . w - y_ij)^2 / 2; all clients
share lambda / 2 |w|^2.
"""

from collections.abc import Callable
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Problem:
  """Linear regression of y [n, e] on x [n, e, d], e examples a client, with lambda = `l2` > 0."""

  features: np.ndarray
  labels: np.ndarray
  l2: float

  @property
  def num_clients(self) -> int:
    return self.labels.shape[0]

  @property
  def dimension(self) -> int:
    return self.features.shape[2]

  @property
  def hessians(self) -> np.ndarray:
    """[n, d, d] of the F_i, without the regulariser."""
    return np.einsum("iej,iek->ijk", self.features, self.features) / self.labels.shape[1]

  @property
  def linear_terms(self) -> np.ndarray:
    """[n, d]: minus the gradients of the F_i at w = 0."""
    return np.einsum("iej,ie->ij", self.features, self.labels) / self.labels.shape[1]

  def losses(self, points: np.ndarray) -> np.ndarray:
    """Returns F_i [..., n] at points [..., d], without the regulariser."""
    residuals = np.matmul(points, self.features.reshape(-1, self.dimension).T)
    residuals = residuals.reshape(*residuals.shape[:-1], *self.labels.shape) - self.labels
    return 0.5 * np.mean(np.square(residuals), axis=-1)

  def gradients(self, point: np.ndarray) -> np.ndarray:
    """Returns the gradients [n, d] of the F_i at a point [d], without the regulariser."""
    return self.hessians @ point - self.linear_terms

  def mixed_hessian(self, point: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the Hessian [d, d] of sum_i weights_i F_i, the same at all points."""
    del point
    return np.tensordot(weights, self.hessians, 1)

  def local_training(
    self, learning_rates: np.ndarray, local_steps: int
  ) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Returns tau steps on F_i + lambda / 2 |w|^2 of every client, averaged; see `rounds.Problem`.

    A step is affine, so that all of them are one affine map a client.
    """
    n, d = self.num_clients, self.dimension
    maps = np.empty([len(learning_rates), n, d * d + d])
    for row, learning_rate in zip(maps, learning_rates):
      matrices, offsets = self.local_maps(learning_rate, local_steps)
      row[:] = np.concatenate([matrices.reshape(n, -1), offsets], axis=1)

    def train(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
      mixed = weights @ maps[: len(points)]
      matrices = mixed[..., : d * d].reshape(*points.shape, d)
      return np.einsum("rsij,rsj->rsi", matrices, points) + mixed[..., d * d :]

    return train

  def local_maps(self, learning_rate: float, local_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns tau gradient steps on F_i + lambda / 2 |w|^2 as w -> matrices_i w + offsets_i.

    They are (matrices [n, d, d], offsets [n, d]).
    """
    step = np.eye(self.dimension) - learning_rate * (
      self.hessians + self.l2 * np.eye(self.dimension)
    )
    matrices = np.broadcast_to(np.eye(self.dimension), step.shape)
    offsets = np.zeros([self.num_clients, self.dimension])
    for _ in range(local_steps):
      matrices = step @ matrices
      offsets = np.einsum("ijk,ik->ij", step, offsets) + learning_rate * self.linear_terms
    return matrices, offsets

  def objective(self, points: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Returns F [...] at points [..., d] for rank weights omega [n]."""
    descending = -np.sort(-self.losses(points), axis=-1)
    return descending @ ranks + 0.5 * self.l2 * np.sum(np.square(points), axis=-1)

  def minimiser(self, weights: np.ndarray) -> np.ndarray:
    """Returns argmin of sum_i weights_i F_i(w) + lambda / 2 |w|^2, [d], for weights [n]."""
    hessian = np.tensordot(weights, self.hessians, 1) + self.l2 * np.eye(self.dimension)
    return np.linalg.solve(hessian, weights @ self.linear_terms)


def build_problem(
  num_clients: int = 100, dimension: int = 5, num_examples: int = 3, seed: int = 1
) -> Problem:
  """Draws n clients of e examples, of which the last fifth wants another model than the rest.

  Features, d >= 2, are scaled so that every Hessian has norm L = 1, and lambda = 1 / 2: the
  condition number of the theorem, kappa = (L + lambda) / lambda, is 3. With fewer examples than
  dimensions the F_i alone are not strongly convex.
  """
  rng = np.random.default_rng(seed)
  features = rng.normal(size=[num_clients, num_examples, dimension])
  norms = np.linalg.norm(features, ord=2, axis=(1, 2)) / np.sqrt(num_examples)
  features /= norms[:, None, None]
  models = 0.2 * rng.normal(size=[num_clients, dimension])
  minority = np.arange(num_clients) >= 0.8 * num_clients
  models[np.arange(num_clients), np.where(minority, 1, 0)] += np.where(minority, 1.5, 1.0)
  labels = np.einsum("ied,id->ie", features, models)
  labels += 0.1 * rng.normal(size=labels.shape)
  return Problem(features, labels, 0.5)


@dataclasses.dataclass(frozen=True)
class Constants:
  """The theorem's assumptions on the problem, in a ball of radius R around zero.

  They are F_i <= B, |grad F_i| <= G, L-Lipschitz gradients, and lambda = `l2`.
  """

  radius: float
  max_loss: float
  lipschitz: float
  smoothness: float
  l2: float

  @property
  def condition_number(self) -> float:
    """kappa = (L + lambda) / lambda."""
    return (self.smoothness + self.l2) / self.l2


def build_constants(problem: Problem) -> Constants:
  """Computes the constants B, G and L, exact on a ball that local steps do not leave.

  The theorem wants bounds on all of R^d, which only constant convex functions have. A step of
  learning rate gamma <= 1 / (L + lambda) on F_i + lambda / 2 |w|^2, of Hessian H_i and minimiser
  H_i^-1 b_i, gives |w'|^2 <= (1 - gamma lambda) |w|^2 + gamma b_i . H_i^-1 b_i, and an average of
  clients is no longer than the longest: |w|^2 <= R^2 = max_i b_i . H_i^-1 b_i / lambda is kept.
  """
  values, bases = np.linalg.eigh(problem.hessians)
  linear = np.einsum("idk,id->ik", bases, problem.linear_terms)
  longest = np.sum(linear**2 / (values + problem.l2), axis=1).max()
  radius = float(np.sqrt(longest / problem.l2))
  offsets = 0.5 * np.mean(np.square(problem.labels), axis=1)
  losses = _largest_on_ball(values, -linear, radius) + offsets
  # |A w - b|^2 / 2 is a quadratic with Hessian A^2 and gradient -A b at zero.
  slopes = _largest_on_ball(values**2, -values * linear, radius)
  slopes += 0.5 * np.sum(linear**2, axis=1)
  lipschitz = np.sqrt(2.0 * np.max(slopes))
  return Constants(
    radius, float(np.max(losses)), float(lipschitz), float(np.max(values)), problem.l2
  )


def build_start(problem: Problem, constants: Constants) -> np.ndarray:
  """Returns w_0 [d], the point of the ball of `constants` farthest from the optimum of FedAvg."""
  mean = problem.minimiser(np.full(problem.num_clients, 1.0 / problem.num_clients))
  return -constants.radius / np.linalg.norm(mean) * mean


def _largest_on_ball(values: np.ndarray, slopes: np.ndarray, radius: float) -> np.ndarray:
  """Returns max sum_k (values_k z_k^2 / 2 + slopes_k z_k) over |z| <= radius, a row each: [n].

  A convex function is largest on the sphere, where (mu - values_k) z_k = slopes_k for a
  mu >= max_k values_k; |z| falls in mu, so mu is bisected.
  """
  low = values.max(axis=1, keepdims=True)
  high = low + np.linalg.norm(slopes, axis=1, keepdims=True) / radius + 1e-300
  for _ in range(200):
    middle = 0.5 * (low + high)
    with np.errstate(divide="ignore", invalid="ignore"):
      outside = np.sum((slopes / (middle - values)) ** 2, axis=1, keepdims=True) > radius**2
    low, high = np.where(outside, middle, low), np.where(outside, high, middle)
  # The dual's value errs to the safe side by the rest of the bisection.
  return 0.5 * (high[:, 0] * radius**2 + np.sum(slopes**2 / (high - values), axis=1))
