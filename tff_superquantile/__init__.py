"""Federated learning that serves the worst-off clients, on TensorFlow Federated.

    import tff_superquantile as tsq

    tsq.set_simulation_context()
    process = tsq.build_superquantile_fed_avg(model_fn, theta=0.5, ...)

`tsq.algorithms` builds learning processes, `tsq.threshold` the quantile that a round learns,
`tsq.client_work` the work of a client; `tsq.evaluation` measures every client, `tsq.analytics`
estimates the distribution of one number a client privately, `tsq.simulation` runs rounds, and
`tsq.engine` computes them. The
mathematics, without TensorFlow, is in `tsq.superquantile`. What most programs need of these has its
name here, too.
"""

from tff_superquantile import lazy
from tff_superquantile import stack

lazy.check_neighbours("privacy")
stack.install()

__version__ = "0.4.0"

__all__, __getattr__, __dir__ = lazy.attach(
  __name__,
  (
    *("algorithms", "analytics", "client_work", "engine"),
    *("evaluation", "simulation", "superquantile", "threshold"),
  ),
  {
    "algorithms": (
      "AdaptiveClipNorm",
      "BandedKey",
      "Private",
      "build_aaggff",
      "build_agnostic_fed_avg",
      "build_averaged",
      "build_eagle",
      "build_fed_avg",
      "build_fed_prox",
      "build_gifair",
      "build_prop_fair",
      "build_q_fed_avg",
      "build_semi_vred",
      "build_superquantile_family",
      "build_superquantile_fed_avg",
      "build_tilted_erm",
      "build_weighted_fed_avg",
      "dp_mean_factory",
    ),
    "analytics": ("private_distribution",),
    "engine": ("set_simulation_context",),
    "evaluation": ("Personalizer", "build_evaluator", "describe", "upper_band"),
    "threshold": (
      "build_geometric_quantile",
      "build_primal_dual_quantile",
      "build_private_primal_dual_quantile",
      "build_tree_quantile",
    ),
  },
)
