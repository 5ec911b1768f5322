"""What the paper proves of convergence, by the two studies of it."""

from __future__ import annotations

from collections.abc import Iterator
import math

from paper.statements import measurements
from paper.statements import rows
from paper.statements import sources
from tff_superquantile.experiments.report import tables


def statements(evidence: measurements.Evidence) -> Iterator[rows.Row]:
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


def of_nonconvex(evidence: measurements.Evidence) -> Iterator[rows.Row]:
  """Yields the statements of the non-convex theorem, and on the drift of local steps."""
  command = sources.SOURCES["nonconvex"].command
  where = "Section 5.1, non-convex theorem"
  says = "The mean of |∇Φ|² over the rounds falls as 1 / √T, below the bound"
  slopes, shares = {}, []
  for setting in evidence.methods("nonconvex", "theorem "):
    values = [evidence.get("nonconvex", setting, name) for name in ("squared_norm", "bound")]
    measured, bound = values
    if measured is None or bound is None:
      continue
    shares.append(measured.mean / bound.mean)
    head, _, num_rounds = setting.rpartition(" ")
    earlier = evidence.get("nonconvex", f"{head} {int(num_rounds) // 16}", "squared_norm")
    if num_rounds == "32768" and earlier is not None and head.split()[2] == "100":
      slope = math.log(measured.mean / earlier.mean) / math.log(16)
      slopes[f"θ = {head.split()[1]}"] = slope
  if not slopes:
    yield rows.missing(where, says, command)
    return
  powers = ", ".join(f"{tables.number(slope, 2)} ({name})" for name, slope in slopes.items())
  yield rows.Row(
    where,
    says,
    f"A small network, a certified proximal point: T to the power of {powers} from T = 2048 to"
    f" 32768, and at most {100 * max(shares):.1f} % of the proof’s bound.",
    rows.judge(max(slopes.values()) <= -0.35 and max(shares) <= 1.0),
    "The slope nears −1/2 from above, as the first rounds weigh less and less.",
  )
  drifts = []
  for setting in evidence.methods("nonconvex"):
    values = [evidence.get("nonconvex", setting, name) for name in ("drift", "drift_bound")]
    drift, bound = values
    if drift is not None and bound is not None and bound.mean > 0:
      drifts.append(drift.mean / bound.mean)
  yield rows.Row(
    "Appendix A, proposition on the client drift",
    "The drift is at most 8 τ² (τ − 1) γ² G²",
    f"{len(drifts)} settings: at most {100 * max(drifts):.2g} % of it.",
    rows.judge(max(drifts) <= 1.0),
    "Where G bounds the gradients, τ (τ − 1) (2 τ − 1) / 6 γ² G² holds, too, a 25th to a 32nd of"
    " it.",
  )
