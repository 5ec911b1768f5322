"""What the paper proves of convergence, by the study of convergence."""

from __future__ import annotations

from collections.abc import Iterator
import math

from tff_superquantile.experiments.report import tables
from tff_superquantile.experiments.studies.paper import evidence as evidence_lib
from tff_superquantile.experiments.studies.paper import rows
from tff_superquantile.experiments.studies.paper import sources


def statements(evidence: evidence_lib.Evidence) -> Iterator[rows.Row]:
  """Yields the statements on bias and rate in the convex case, from the convergence study."""
  command = sources.SOURCES["convergence"].command
  where, says = "Section 5.1, bias", "|F̄_θ − F_θ| ≤ B / √(θ m)"
  shares = []
  for setting in evidence.methods("sampling_bias"):
    largest, bound = (evidence.get("sampling_bias", setting, m) for m in ("largest", "bound"))
    if largest and bound and float(setting.split()[0]) < 1.0:
      shares.append(largest.mean / bound.mean)
  if shares:
    found = f"{len(shares)} settings of θ and m: at most {100 * max(shares):.0f} % of the bound."
    yield rows.Row(where, says, found, rows.judge(max(shares) <= 1.0))
  else:
    yield rows.missing(where, says, command)
  where, says = (
    "Section 5.1, convex theorem",
    "F_θ(w̄) − F_θ* falls as 1 / (λ T), to a floor of cohorts",
  )
  rates = {}
  for theta in ("1.0", "0.5", "0.1"):
    ends = []
    for num_rounds in (4096, 65536):
      setting = f"{theta} 100 {num_rounds} reweighting"
      value = evidence.get("convergence", setting, "error")
      ends.append((math.log(num_rounds), value.mean if value else math.nan))
    (start, first), (end, last) = ends
    if first > 0 and last > 0:
      rates[theta] = (math.log(last) - math.log(first)) / (end - start)
  if rates:
    found = "With all 100 clients the error falls as T to the power of " + ", ".join(
      f"{tables.number(rate, 2)} (θ = {theta})" for theta, rate in rates.items()
    )
    yield rows.Row(
      where,
      says,
      f"{found} between T = 4096 and 65536.",
      rows.judge(all(rate <= -0.95 for rate in rates.values())),
      "One step of the proof takes twice the exponent that holds; the learning rate’s logarithm"
      " pays.",
    )
  else:
    yield rows.missing(where, says, command)
