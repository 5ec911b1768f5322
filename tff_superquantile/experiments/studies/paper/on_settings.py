"""The paper's figures and settings: what shows them here, and what they show."""

from __future__ import annotations

from collections.abc import Iterator
import math

from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.studies.paper import evidence as evidence_lib
from tff_superquantile.experiments.studies.paper import rows
from tff_superquantile.experiments.studies.paper import sources

_DIGITS = f"{sources.DIGITS} (docs/results.md)"


def of_histograms(evidence: evidence_lib.Evidence) -> Iterator[rows.Row]:
  """Yields the figures of the clients' errors."""
  says = "Delta-FL has a thinner upper tail than FedAvg and Tilted-ERM"
  for where, source in (
    ("Figure 3, EMNIST ConvNet", "emnist_convnet"),
    ("Figure 7, EMNIST linear", "emnist_linear"),
  ):
    command = sources.SOURCES[source].command
    chosen = ["FedAvg", evidence.best(source, "Tilted-ERM"), "Superquantile θ = 0.5"]
    values = {
      name: evidence.get(source, name, "test.error.superquantile_90") for name in chosen if name
    }
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < 3:
      yield rows.missing(where, says, command)
      continue
    tails = [value.mean for value in known.values()]
    found = "; ".join(f"{name} {value.in_percent()}" for name, value in known.items())
    yield rows.Row(
      where,
      says,
      f"Worst tenth of the clients: {found}. The histogram is in the run’s report.",
      rows.judge(tails[2] <= min(tails[:2])),
      data=_DIGITS,
    )


def of_sizes(evidence: evidence_lib.Evidence) -> Iterator[rows.Row]:
  """Yields the claims on clients with few examples."""
  says = "Delta-FL helps clients with little data most; Tilted-ERM and q-FFL those with much"
  for where, source in (
    ("Section 7.4, Figures 4 and 9, ConvNet", "emnist_convnet"),
    ("Section 7.4, Figure 9, linear", "emnist_linear"),
  ):
    command = sources.SOURCES[source].command
    chosen = ("Superquantile θ = 0.5", evidence.best(source, "Tilted-ERM"))
    changes = {
      name: [
        evidence.get(source, name, f"test.{third}_third.error.change")
        for third in ("smallest", "largest")
      ]
      for name in chosen
      if name is not None
    }
    ours = changes.get("Superquantile θ = 0.5", [None])
    if None in ours:
      yield rows.missing(where, says, command)
      continue
    texts = []
    for name, pair in changes.items():
      known = [value.in_percent() for value in pair if value is not None]
      texts.append(f"{name} {' and '.join(known)}")
    smallest, largest = (value.mean for value in ours if value is not None)
    yield rows.Row(
      where,
      says,
      "Points of error against FedAvg for the third of clients with the fewest and with the most"
      f" images: {'; '.join(texts)}.",
      rows.judge(smallest < min(largest, 0.0)),
      data=_DIGITS,
    )


def of_drawings() -> Iterator[rows.Row]:
  """Yields the figures that explain, and where they are drawn here."""
  yield rows.Row(
    "Figure 1",
    "A family of models: each client trains every model in whose tail it is, and takes the best",
    "Drawn below. `build_superquantile_family` trains the models on one cohort.",
    rows.Verdict.HOLDS,
  )
  yield rows.Row(
    "Figure 2",
    "The superquantile is the mean of the tail; its weights are a polytope in the simplex",
    "Drawn below, computed from a density and from the corners of the polytope.",
    rows.Verdict.HOLDS,
  )
  yield rows.Row(
    "Figure 8 and 10, Sent140",
    "Histograms and scatter plots of the errors of Twitter users",
    "The tweets are not here. The report of any run draws both.",
    rows.Verdict.UNCHECKED,
  )


def of_settings(evidence: evidence_lib.Evidence) -> Iterator[rows.Row]:
  """Yields what the paper says of data and settings, where it can be seen here."""
  own = evidence.get("synthetic", "FedAvg", "train.loss.mean")
  says = (
    "On the synthetic task the loss at convergence is about 0.7, at random guessing log 10, 2.3"
  )
  where = "Appendix D, footnote"
  if own is None:
    yield rows.missing(where, says, sources.SOURCES["synthetic"].command)
  else:
    yield rows.Row(
      where,
      says,
      f"{own.mean:.3f} after {_rounds(evidence)} rounds of FedAvg; log 10 = {math.log(10):.3f}.",
      rows.judge(abs(own.mean - 0.7) < 0.05),
    )
  for task, clients, sizes in (
    ("EMNIST", "1730 clients with a median of 179 and at most 447 images", "handwritten letters"),
    ("Sent140", "877 clients with a median of 69 and at most 549 tweets", "tweets"),
  ):
    yield rows.Row(
      "Table 1",
      f"{task}: {clients}",
      f"These {sizes} are not here.",
      rows.Verdict.UNCHECKED,
      f"python -m tff_superquantile.experiments.describe --task={task.lower()}_linear"
      " --data_dir=... prints the table.",
    )
  says = "Sent140’s RNN is unstable at θ = 0.1, as the theorem wants m far above 1 / θ"
  yield rows.Row(
    "Section 7.3",
    says,
    "On the synthetic task θ = 0.1 is unstable, too, with ten clients in the tail. It is not the"
    " bias"
    " that the theorem bounds: the primal-dual threshold has none and the same worst tenth; all"
    " clients in every round end it (docs/results.md, “Why theta = 0.1 is unstable”).",
    rows.Verdict.DIFFERS,
    "The noise of few updates is the cause.",
    "the synthetic task",
  )


def _rounds(evidence: evidence_lib.Evidence) -> str:
  value = evidence.get("synthetic", "FedAvg", "rounds")
  return "–" if value is None else tables.number(value.mean, 0)
