"""Compares what the study of the non-convex theorem measured with what the theory says."""

import pandas as pd

# The largest error of a norm that the certificates may leave, far below every norm measured.
_NORM_ERROR = 1e-5
# Local steps change the mean of |grad Phi|^2 by less than this share, if a round's step stays.
_CHANGE = 0.1
# The theorem's rate is -1/2, which the measured one reaches slowly.
_RATE = -0.35
_ENOUGH_ROUNDS = 2**12


def check(points: pd.DataFrame, drifts: pd.DataFrame, rates: pd.Series) -> dict[str, bool]:
  """Compares the measurements with the theory.

  Args:
    points: As `measurement.measure` returns them, with the theorem's learning rate.
    drifts: The same for several tau and a "schedule" of "theorem", "rate" or "step".
    rates: The slopes of log |grad Phi|^2 against log T of each setting of the points.

  Returns:
    Sentences, and whether they hold.
  """
  both = pd.concat([points, drifts])
  error = both["norm_error"].max()
  share = (both["squared_norm"] / both["bound"]).max()
  drifting = both[both["local_steps"] > 1]
  plain = (drifting["drift"] / drifting["plain_drift_bound"]).max()
  printed = (drifting["plain_drift_bound"] / drifting["drift_bound"]).max()
  of_step = drifts[drifts["schedule"] == "step"].groupby("num_rounds")["squared_norm"]
  change = (of_step.max() / of_step.min() - 1.0).max()
  checks = {
    f"every norm is certified to {error:.0e}": error <= _NORM_ERROR,
    f"no mean of |∇Φ|² is above {100 * share:.2g} % of the bound": share <= 1.0,
    f"no drift is above {100 * plain:.2g} % of what the lengths of the steps allow": plain <= 1.0,
    f"which is at most {100 * printed:.2g} % of the paper’s bound": printed <= 1.0,
    f"local steps change |∇Φ|² by at most {100 * change:.2g} %, if a round’s step stays": (
      change <= _CHANGE
    ),
  }
  if points["num_rounds"].max() >= _ENOUGH_ROUNDS:
    checks[f"|∇Φ|² falls at a rate of {rates.max():.2f} or faster"] = rates.max() <= _RATE
  return checks
