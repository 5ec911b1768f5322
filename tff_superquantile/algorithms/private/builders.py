"""The private builders of version 0.3, as calls of those that take the option `private`."""

import dataclasses
from typing import Any, TypeAlias

import tensorflow_federated as tff

from tff_superquantile import threshold as threshold_lib
from tff_superquantile.algorithms import fed_avg
from tff_superquantile.algorithms import superquantile_fed_avg
from tff_superquantile.algorithms import weighted_fed_avg
from tff_superquantile.algorithms.private import private

_Process: TypeAlias = tff.learning.templates.LearningProcess


def _with_private(options: dict[str, Any]) -> dict[str, Any]:
  """Returns options with the fields of `Private` among them in one."""
  fields = {field.name for field in dataclasses.fields(private.Private)} & set(options)
  part = private.Private(**{name: options.pop(name) for name in fields})
  return {**options, "private": part}


def build_private_superquantile_fed_avg(*args: Any, **options: Any) -> _Process:
  """Calls `build_superquantile_fed_avg` with a `Private` of some of the keyword arguments."""
  return superquantile_fed_avg.build_superquantile_fed_avg(*args, **_with_private(options))


def build_private_fed_avg(
  model_fn: Any,
  threshold: threshold_lib.ThresholdProcess | None,
  *args: Any,
  **options: Any,
) -> _Process:
  """Calls `build_weighted_fed_avg`, or without a threshold `build_fed_avg`; see there."""
  options = _with_private(options)
  if threshold is None:
    return fed_avg.build_fed_avg(model_fn, *args, **options)
  return weighted_fed_avg.build_weighted_fed_avg(model_fn, threshold, *args, **options)


def build_private_weighted_fed_avg(
  model_fn: Any, share_fn: threshold_lib.OwnShareFn, *args: Any, **options: Any
) -> _Process:
  """Calls `build_weighted_fed_avg` of `build_own_loss_weighting`, with a `Private`."""
  weighting = threshold_lib.build_own_loss_weighting(share_fn)
  return weighted_fed_avg.build_weighted_fed_avg(
    model_fn, weighting, *args, **_with_private(options)
  )
