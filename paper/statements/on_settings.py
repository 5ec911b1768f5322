"""The paper's figures and settings: what shows them here, and what they show."""

from __future__ import annotations

from collections.abc import Iterator
import math

from paper.statements import measurements
from paper.statements import rows
from paper.statements import sources
from tff_superquantile.experiments.report import tables

_DIGITS = f"{sources.DIGITS} (docs/results.md)"
# Clients with fewer examples of EMNIST have little data.
_DATA_POOR = 200


def of_histograms(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the figures of the clients' errors."""
  says = "Delta-FL has a thinner upper tail than FedAvg and Tilted-ERM"
  for where, source in (
    ("Figure 3, EMNIST ConvNet", "emnist_convnet"),
    ("Figure 7, EMNIST linear", "emnist_linear"),
  ):
    command = sources.SOURCES[source].command
    chosen = ["FedAvg", evidence.best(source, "Tilted-ERM"), "Superquantile θ = 0.5"]
    known = evidence.get_all(source, filter(None, chosen), "test.error.superquantile_90")
    if len(known) < 3:
      yield rows.missing(where, says, command)
      continue
    tails = [value.mean for value in known.values()]
    found = "; ".join(f"{name} {value.in_percent()}" for name, value in known.items())
    found += f" ({tables.plural(known['FedAvg'].num_seeds, 'seed')})"
    yield rows.Row(
      where,
      says,
      f"Worst tenth of the clients: {found}. The histogram is in the run’s report.",
      rows.judge(tails[2] <= min(tails[:2])),
      data=_DIGITS,
    )


def of_sizes(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the claims on clients with few examples."""
  says = "Delta-FL helps clients with fewer than 200 images most; Tilted-ERM and q-FFL the others"
  for where, source in (
    ("Section 7.4, Figures 4 and 9, ConvNet", "emnist_convnet"),
    ("Section 7.4, Figure 9, linear", "emnist_linear"),
  ):
    rivals = (evidence.best(source, "Tilted-ERM"), evidence.best(source, "q-FFL"))
    chosen = ["Superquantile θ = 0.5", *filter(None, rivals)]
    changes = {
      name: [
        evidence.get(source, name, f"test.{third}_third.error.change")
        for third in ("smallest", "largest")
      ]
      for name in chosen
    }
    known = {name: [value for value in pair if value is not None] for name, pair in changes.items()}
    largest = evidence.get(source, "FedAvg", "test.largest_third.examples.most")
    if largest is None or len(known[chosen[0]]) < 2:
      yield rows.missing(where, says, sources.SOURCES[source].command)
      continue
    texts = [f"{m} {' and '.join(v.in_percent() for v in pair)}" for m, pair in known.items()]
    is_lower = {m: pair[0].mean < pair[1].mean for m, pair in known.items() if len(pair) == 2}
    holds = is_lower.pop(chosen[0]) and not any(is_lower.values())
    has_others = largest.mean >= _DATA_POOR
    yield rows.Row(
      where,
      says,
      "Points of error against FedAvg for the third of clients with the fewest and with the most"
      f" images: {'; '.join(texts)}.",
      rows.judge(holds) if has_others else rows.Verdict.UNCHECKED,
      ""
      if has_others
      else f"Of these digits nobody has more than {largest.mean:.0f} images, so"
      " that all clients are those with little data.",
      _DIGITS,
    )


def of_spread(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the claims on how much clients differ, of the ConvNet."""
  source = "emnist_convnet"
  for says, metric in (
    ("Delta-FL reduces the variance of the loss on the training clients", "train.loss.std"),
    (
      "Among test clients with few images Delta-FL reduces the variance of the error",
      "test.smallest_third.error.std",
    ),
  ):
    chosen = ("FedAvg", "Superquantile θ = 0.8", "Superquantile θ = 0.5", "Superquantile θ = 0.1")
    known = evidence.get_all(source, chosen, metric)
    if len(known) < len(chosen):
      yield rows.missing("Appendix C", says, sources.SOURCES[source].command)
      continue
    found = ", ".join(f"{name} {value.mean:.3f}" for name, value in known.items())
    own = known.pop("FedAvg")
    yield rows.Row(
      "Appendix C",
      says,
      f"Standard deviation over clients: {found} ({tables.plural(own.num_seeds, 'seed')}).",
      rows.judge(all(value.mean < own.mean for value in known.values())),
      data=f"{sources.DIGITS} (ConvNet)",
    )


def of_drawings(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the figures that explain, and where they are drawn here."""
  ways = ("One for all, by held-in p90", "Family: own choice, by loss")
  known = [v.in_percent() for v in evidence.get_all("model_family", ways, "mean").values()]
  yield rows.Row(
    "Figure 1",
    "A family of models: clients take part in the training of each, and users select theirs",
    "Drawn below; `build_superquantile_family` trains the models on one cohort."
    + f" Mean error of {sources.DIGITS}: one model for all, own choice: {', '.join(known)}."
    * (len(known) == 2),
    rows.Verdict.DRAWN,
  )
  yield rows.Row(
    "Figure 2",
    "The superquantile is the mean of the tail; its weights are a polytope in the simplex",
    "Drawn below, computed from a density and from the corners of the polytope.",
    rows.Verdict.DRAWN,
  )
  yield rows.Row(
    "Figure 5",
    "The error of private quantiles against ε",
    "`./run_experiments.sh private_quantile` draws it, with its bound and with our recipe beside it"
    " (docs/results.md).",
    rows.Verdict.DRAWN,
  )
  yield rows.Row(
    "Figures 8 and 10, Sent140",
    "Histograms and scatter plots of the errors of Twitter users",
    "The tweets are not here. The report of any run draws both.",
    rows.Verdict.UNCHECKED,
  )


def of_settings(evidence: measurements.Evidence) -> Iterator[rows.Row]:
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
  tails = ("Superquantile θ = 0.1", "Superquantile θ = 0.25")
  known = evidence.get_all("synthetic", tails, "test.error.superquantile_90")
  if len(known) < len(tails):
    yield rows.missing("Section 7.3", says, sources.SOURCES["synthetic"].command)
    return
  small, large = known.values()
  is_unstable = small.mean > large.mean and small.spread > large.spread
  yield rows.Row(
    "Section 7.3",
    says,
    f"With ten clients in the tail the worst tenth is {small.in_percent()} at θ = 0.1 and"
    f" {large.in_percent()} at 0.25 ({tables.plural(small.num_seeds, 'seed')}).",
    rows.Verdict.DIFFERS if is_unstable else rows.Verdict.UNCHECKED,
    "The cause is not the bias that the theorem bounds but the noise of few updates: the"
    " primal-dual threshold has no bias and the same worst tenth, and all clients in every round"
    " end it (docs/results.md, “Why theta = 0.1 is unstable”)."
    if is_unstable
    else "It is stable there, so the cause cannot be seen.",
    "the synthetic task",
  )


def _rounds(evidence: measurements.Evidence) -> str:
  value = evidence.get("synthetic", "FedAvg", "rounds")
  return "–" if value is None else tables.number(value.mean, 0)
