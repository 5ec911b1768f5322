"""Compares what the convergence study measured with what the theory says."""

import pandas as pd

_ROUNDING = 1e-12
# The primal-dual threshold has to leave less than this of the floor.
_SHARE_OF_FLOOR = 0.2
# With fewer it is still on its way there.
_ENOUGH_ROUNDS = 2**14


def check(
  points: pd.DataFrame,
  duals: pd.DataFrame,
  biases: pd.DataFrame,
  optima: pd.DataFrame,
  smoothings: pd.DataFrame,
) -> dict[str, bool]:
  """Compares the measurements with the theory.

  Args:
    points: As `algorithm.measure` returns them.
    duals: The same with the primal-dual threshold.
    biases: As `optimum.sampling_biases` returns them.
    optima: As `optimum.compare_optima` returns them.
    smoothings: As `smoothing.measure` returns them.

  Returns:
    Sentences, and whether they hold.
  """
  gap, lowest = optima["gap"].max(), points["error"].min()
  unbiased = biases.loc[biases["theta"] == 1.0, ["largest", "floor"]].max(axis=None)
  of_smoothing = (smoothings["floor"] / smoothings["bound"]).max()
  bias, floor = ((biases[name] / biases["bound"]).max() for name in ("largest", "floor"))
  return {
    f"the duality gap of every optimum is at most {gap:.0e}": gap <= 1e-11,
    f"no run is below the minimum, the lowest error being {lowest:.0e}": lowest >= -_ROUNDING,
    f"at θ = 1 cohorts have no bias beyond {unbiased:.0e}": unbiased <= _ROUNDING,
    f"no bias is above {100 * bias:.2g} % of B / √(θ m)": bias <= 1.0,
    f"no floor is above {100 * floor:.2g} % of it": floor <= 2.0,
    f"no floor of smoothing is above {100 * of_smoothing:.2g} % of ν log(1 / θ)": (
      of_smoothing <= 1.0
    ),
    **_check_primal_dual(duals, biases),
  }


def _check_primal_dual(duals: pd.DataFrame, biases: pd.DataFrame) -> dict[str, bool]:
  """Compares the primal-dual threshold with the floor of cohorts whose floor is the highest."""
  if duals["num_rounds"].max() < _ENOUGH_ROUNDS:
    return {}
  setting = ["theta", "cohort_size"]
  both = duals.merge(biases[[*setting, "floor"]], on=setting).query("theta * cohort_size >= 1")
  worst = both.loc[both["floor"].idxmax()]
  text = (
    f"the primal-dual threshold ends at {worst['error']:.1e} for θ = {worst['theta']:g} and m ="
    f" {worst['cohort_size']:.0f}, where the floor of cohorts is {worst['floor']:.1e}"
  )
  return {text: worst["error"] <= _SHARE_OF_FLOOR * worst["floor"]}
