"""The rows of the additions: one of METHODS, two of thresholds, one of STUDIES."""

import functools
import pathlib

import capped_fed_avg
import slow_geometric

from privacy import releases
from tff_superquantile.experiments import studies
from tff_superquantile.experiments.run import methods
from tff_superquantile.experiments.run import thresholds

methods.METHODS["capped_fed_avg"] = methods.Method(
  "Capped FedAvg",
  lambda run: capped_fed_avg.build_capped_fed_avg(cap=run.config.cap, **run.work),
  (methods.Parameter("cap", "Largest loss that counts.", "cap", "cap", is_required=True),),
)
releases.THRESHOLDS["slow_geometric"] = releases.ThresholdKind(
  "a one-bit count of losses, followed slowly", 2.0, noise_by_server=True, rank_variance=0.004
)
thresholds.THRESHOLDS["slow_geometric"] = thresholds.Threshold(
  lambda config, key, tree: functools.partial(
    slow_geometric.build_slow_geometric_quantile,
    noise_multiplier=config.threshold_noise_multiplier,
    expected_clients=config.clients_per_round,
    initial_estimate=config.max_loss,
    noise_key=key,
  ),
  is_private=True,
)
studies.STUDIES["lengths"] = "How long did each method train?"
studies.__path__.append(str(pathlib.Path(__file__).parent))  # In place of a file in the package.
