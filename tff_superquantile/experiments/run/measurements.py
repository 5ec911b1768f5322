"""What is measured in a run, as values of a row of rounds.csv and as statistics of clients."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_superquantile import evaluation

# Names of a threshold's measurements in rounds.csv, where they differ.
_COLUMNS = {"loss_mean": "cohort_loss_mean", "loss_superquantile": "cohort_loss_superquantile"}
# Statistics of the test clients in the rows of rounds.csv, for plots against rounds.
_RELEASED_STATISTICS = ("mean", "p90", "superquantile_90")


def of_round(metrics: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the values of a row of rounds.csv by name, from the metrics of a round."""
  client_work = metrics["client_work"] or {}  # It is empty where nothing is measured.
  threshold = client_work.get("threshold") or {}
  aggregator = metrics["aggregator"] or {}
  named = {
    "threshold": threshold.get("threshold"),
    **client_work.get("cohort", {}),
    "estimated_share_sum": None,  # Its place, whichever part measures it.
    **{_COLUMNS.get(name, name): value for name, value in threshold.items()},
    **aggregator,
    "train_loss": client_work.get("train", {}).get("loss"),
  }
  return {name: value for name, value in named.items() if value is not None}


def describe(metrics: evaluation.ClientMetrics, weighted: bool = False) -> dict[str, Any]:
  """Returns {"loss" | "error" | measure: {statistic: number}} of clients."""
  weights = metrics.num_examples if weighted else None
  return {
    "loss": evaluation.describe(metrics.loss, weights),
    "error": evaluation.describe(metrics.error, weights),
    **{
      name: {**evaluation.describe(values, weights), "num_clients": int(np.isfinite(values).sum())}
      for name, values in metrics.measures.items()
    },
  }


def of_test_clients(described: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
  """Returns the values of a row of rounds.csv by name, from `describe`."""
  return {
    f"test_{quantity}_{name}": described[quantity][name]
    for quantity in dict.fromkeys(("error", "loss", *described))
    for name in _RELEASED_STATISTICS
  }
