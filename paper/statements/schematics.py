"""The paper's two schematic figures, computed rather than sketched.

The model family: who trains which model, and who takes which. The superquantile: where it lies in a
density, and the weights that attain it, a polytope in the simplex.
"""

from __future__ import annotations

import itertools

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import patches as mpl_patches
import numpy as np
from scipy import stats

from tff_superquantile import superquantile
from tff_superquantile.experiments.pages import style

# The loss of a client near the average, and how it grows with the distance, by tail fraction.
_MODELS = {1.0: (0.3, 1.0), 0.5: (0.5, 0.72), 0.25: (0.9, 0.42)}
_NUM_CLIENTS = 16
_THETA = 0.2  # Of the density's tail.
_DENSITY = stats.gamma(3.0)
# Caps of three clients' weights: from FedAvg's single point towards the whole simplex.
_POLYTOPES = (0.5, 0.8)

_FAMILY_CAPTION = (
  "Left: the clients of a round, and three models with losses of their own. A client takes part in"
  " the training of each model in whose tail it is (dark). Right: an unseen client takes the model"
  " that serves it best: those whom the average serves badly take the models of small θ. The losses"
  " are made up."
)
_SUPERQUANTILE_CAPTION = (
  f"Left: a fifth of the clients, θ = {_THETA:g}, has losses above the quantile; their mean is the"
  " superquantile. Right: the weights of three clients with π_i ≤ 1 / (3 θ). At θ = 1"
  " only equal weights are left (the point), at θ ≤ 1/3 the whole triangle: one client can have all"
  " the weight. The superquantile is the largest mean loss over the polytope, attained at a corner."
)


def model_family() -> style.Figure:
  """Draws clients that train and choose the models of three tail fractions."""
  # How far each client is from the average.
  unlike = stats.gamma(2.0, scale=0.5).ppf((np.arange(_NUM_CLIENTS) + 0.5) / _NUM_CLIENTS)
  # A model for a smaller theta serves the far ones better, and the near ones worse.
  losses = np.array([low + slope * unlike for low, slope in _MODELS.values()])
  losses = losses + np.random.default_rng(4).normal(scale=0.06, size=losses.shape)
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.6))
    training, serving = figure.subplots(1, 2, squeeze=False).flat
    for row, (theta, of_model) in enumerate(zip(_MODELS, losses)):
      is_in = superquantile.tail_weights(of_model, theta) > 0
      color = style.COLORS[row]
      x = np.arange(_NUM_CLIENTS)
      training.scatter(x[is_in], np.full(is_in.sum(), -row), s=110, marker="s", color=color)
      training.scatter(
        x[~is_in], np.full((~is_in).sum(), -row), s=110, marker="s", color=style.FAINT
      )
    chosen = losses.argmin(axis=0)
    for row, theta in enumerate(_MODELS):
      color = style.COLORS[row]
      serving.plot(unlike, losses[row], color=style.FAINT, linewidth=1.2, zorder=1)
      takers = chosen == row
      serving.scatter(unlike[takers], losses[row][takers], s=42, color=color, zorder=2)
      serving.annotate(
        f"θ = {theta:g}",
        (unlike[-1], losses[row][-1]),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=color,
      )
    training.set_yticks([0, -1, -2], [f"model of θ = {theta:g}" for theta in _MODELS])
    training.set(xlim=(-0.8, _NUM_CLIENTS - 0.2), ylim=(-2.7, 0.7), xticks=[])
    training.set_xlabel("clients of the round, from the average outwards")
    training.set_title("Who trains which model")
    training.grid(False)
    serving.set_title("Which model each client takes (dots)")
    serving.set(xlabel="distance from the average client", ylabel="loss")
    serving.set_xlim(right=unlike[-1] + 0.35)
    svg = style.to_svg(figure)
  return style.Figure("model-family", "A family of models", _FAMILY_CAPTION, svg)


def quantile_and_polytope() -> style.Figure:
  """Draws the superquantile of a density, and the polytope of weights of three clients."""
  with style.theme():
    figure = mpl_figure.Figure((style.WIDTH, 3.6))
    density, simplex = figure.subplots(1, 2, squeeze=False).flat
    _draw_density(density)
    _draw_polytopes(simplex)
    svg = style.to_svg(figure)
  return style.Figure("superquantile", "Quantile and superquantile", _SUPERQUANTILE_CAPTION, svg)


def tail_mean(theta: float) -> tuple[float, float]:
  """Returns the (1 - theta)-quantile and superquantile of the drawn density."""
  quantile = float(_DENSITY.ppf(1 - theta))
  return quantile, float(_DENSITY.expect(lambda z: z, lb=quantile)) / theta


def _draw_density(axes: mpl_axes.Axes) -> None:
  quantile, mean = tail_mean(_THETA)
  x = np.linspace(0, 10, 400)
  axes.plot(x, _DENSITY.pdf(x), color=style.GREY, linewidth=1.6)
  tail = x[x >= quantile]
  axes.fill_between(tail, _DENSITY.pdf(tail), color=style.COLORS[1], alpha=0.35, linewidth=0)
  for value, name, height, color in (
    (quantile, "quantile", 0.2, style.GREY),
    (mean, "superquantile", 0.13, style.COLORS[1]),
  ):
    axes.plot([value, value], [0, height], color=color, linewidth=1.4, linestyle=style.DASHES[1])
    axes.annotate(name, (value, height), xytext=(4, 2), textcoords="offset points", color=color)
  axes.annotate(f"θ = {_THETA:g}", (5.0, 0.018), color=style.INK)
  axes.set(xlabel="loss of a client", ylabel="density", xlim=(0, 10), ylim=(0, None))
  axes.set_title("The mean of the tail")


def corners(theta: float) -> np.ndarray:
  """Returns the corners of {pi in the simplex of three, pi_i <= 1 / (3 theta)}, in order [k, 3]."""
  cap = min(1.0, 1 / (3 * theta))
  vertices = set()
  for first, second in itertools.permutations(range(3), 2):
    # As much as the cap allows for one, then for the next, the rest for the last.
    pi = np.zeros(3)
    pi[first] = cap
    pi[second] = min(cap, 1 - cap)
    pi[3 - first - second] = 1 - pi.sum()
    vertices.add(tuple(np.round(pi, 12)))
  points = np.array(sorted(vertices))
  flat = _to_plane(points) - _to_plane(np.full((1, 3), 1 / 3))
  return points[np.argsort(np.arctan2(flat[:, 1], flat[:, 0]))]


def _to_plane(points: np.ndarray) -> np.ndarray:
  """Returns the places of weights [k, 3] in an equilateral triangle, [k, 2]."""
  return points @ np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def _draw_polytopes(axes: mpl_axes.Axes) -> None:
  triangle = _to_plane(np.eye(3))
  axes.add_patch(mpl_patches.Polygon(triangle, fill=False, edgecolor=style.GREY, linewidth=1.4))
  for theta, color in zip(_POLYTOPES, style.COLORS):
    shape = _to_plane(corners(theta))
    axes.add_patch(
      mpl_patches.Polygon(shape, facecolor=color, alpha=0.22, edgecolor=color, linewidth=1.4)
    )
    # Beside the middle of an edge.
    low = shape[np.argmax(shape[:, 1])]
    axes.annotate(
      f"θ = {theta:g}", (0.5, low[1]), xytext=(0, 3), textcoords="offset points", ha="center"
    )
  axes.plot(*_to_plane(np.full((1, 3), 1 / 3)).T, "o", color=style.INK, markersize=5)
  names, offsets = ("π₁ = 1", "π₂ = 1", "π₃ = 1"), ((-6, -14), (6, -14), (0, 6))
  for corner, name, offset in zip(triangle, names, offsets):
    axes.annotate(name, corner, xytext=offset, textcoords="offset points", ha="center")
  axes.set(xlim=(-0.15, 1.15), ylim=(-0.12, 1.0), aspect="equal", xticks=[], yticks=[])
  axes.grid(False)
  for side in ("left", "bottom"):
    axes.spines[side].set_visible(False)
  axes.set_title("The weights that it may take")
