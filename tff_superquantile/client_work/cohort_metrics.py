"""Sums the training metrics and the counts of a cohort at the server."""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

MetricsAggregator = Callable[[Any], tff.Computation]


def aggregate(
  finalizers: Any,
  metrics_aggregator: MetricsAggregator | None,
  metrics: tff.Value,
  counts: tff.Value,
) -> collections.OrderedDict[str, tff.Value]:
  """Sums clients' unfinalized `train` metrics, and counts (int32 [] in {0, 1}) as `cohort`."""
  if metrics_aggregator is not None:
    train = metrics_aggregator(finalizers)(metrics)
    # The sum is secure, as the aggregator may be; each count of a client is 0 or 1.
    cohort = tff.federated_secure_sum(counts, max_input=1)
    return collections.OrderedDict(train=train, cohort=cohort)

  def finalize(summed):
    if callable(finalizers):
      train = finalizers(summed["train"])
    else:
      train = collections.OrderedDict(
        (name, f(summed["train"][name])) for name, f in finalizers.items()
      )
    return collections.OrderedDict(train=train, cohort=summed["cohort"])

  # One sum carries both, because a sum over the clients costs as much as a small client's training.
  both = tff.federated_zip(collections.OrderedDict(train=metrics, cohort=counts))
  result = tff.learning.metrics.sum_then_finalize(finalize)(both)
  return collections.OrderedDict(train=result["train"], cohort=result["cohort"])
