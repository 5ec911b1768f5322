"""The quantities of each client that figures show."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run.names import Name


@dataclasses.dataclass(frozen=True)
class Quantity:
  """A quantity of each client, with titles of an axis of it and of one that counts clients.

  `split` is "test" or "train", `column` "error", "loss" or another measure.
  """

  split: str
  column: str
  unit: units.Unit
  title: str
  clients: str


def of_test(groups: grouped.Grouped) -> Quantity:
  """Returns the leading measure of each test client, in its unit."""
  leading = groups.leading
  title = leading.unit.axis(f"{leading.title} of a test client")
  return Quantity("test", leading.name, leading.unit, title, "Test clients (%)")


def train_loss(groups: grouped.Grouped) -> Quantity:
  """Returns the loss of each training client, in the unit of the runs' task."""
  unit = groups.task_units.loss
  title = unit.axis("Loss of a training client")
  return Quantity("train", "loss", unit, title, "Training clients (%)")


def pooled(groups: grouped.Grouped, quantity: Quantity) -> dict[Name, pd.DataFrame]:
  """Collects the clients of all seeds at the end of training, by method that has any.

  There is a row for each client and seed with the columns of the runs' files, "seed", and "value",
  the quantity in its unit, which is finite.
  """
  frames = {}
  for method, runs in groups.items():
    own = [pd.DataFrame(run.clients(quantity.split)).assign(seed=run.seed) for run in runs]
    clients = pd.concat([frame for frame in own if quantity.column in frame] or [pd.DataFrame()])
    if quantity.column in clients:
      clients = clients.assign(value=clients[quantity.column] * quantity.unit.factor)
      clients = clients[np.isfinite(clients["value"])]
    if not clients.empty:
      frames[method] = clients
  return frames
