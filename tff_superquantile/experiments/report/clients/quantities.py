"""The quantities of each client that figures show."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from tff_superquantile.experiments.report import grouped
from tff_superquantile.experiments.report import units
from tff_superquantile.experiments.run.names import Name


class Quantity(NamedTuple):
  """A measure of each "test" or "train" client, with titles of its axis and of one of clients."""

  split: str
  measure: units.Leading

  @property
  def column(self) -> str:
    return self.measure.name

  @property
  def unit(self) -> units.Unit:
    return self.measure.unit

  @property
  def who(self) -> str:
    return "training" if self.split == "train" else self.split

  @property
  def title(self) -> str:
    return self.unit.axis(f"{self.measure.title} of a {self.who} client")


def of_test(groups: grouped.Grouped) -> Quantity:
  """Returns the leading measure of each test client, in its unit."""
  return Quantity("test", groups.leading)


def train_loss(groups: grouped.Grouped) -> Quantity:
  """Returns the loss of each training client, in the unit of the runs' task."""
  return Quantity("train", units.Leading("loss", groups.task_units.loss))


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
