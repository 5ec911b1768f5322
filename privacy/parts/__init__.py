"""The parts of a round's release: one class for each noisy number or vector that a round releases.

A part knows its noise, its sensitivity to replacing a client over that to removing its data, who
adds the noise, the integers that clients send if they add it, its words, its entries in a ledger,
its flags and its columns. Accounting, ledger, audit and statements go over the parts of a release
and know no class by name. A new part is a class here or elsewhere, in `KINDS`, or in `THRESHOLDS`
if it releases a threshold. One more number beside the updates is a `Number` in `KINDS`, a
`secure_sums.Number` that computes it, and a class of its flags in `NUMBERS` of a run's privacy.
"""

from privacy.parts.part import ByClients as ByClients
from privacy.parts.part import Part as Part
from privacy.parts.thresholds import THRESHOLDS as THRESHOLDS
from privacy.parts.thresholds import Geometric as Geometric
from privacy.parts.thresholds import Histogram as Histogram
from privacy.parts.thresholds import OneBit as OneBit
from privacy.parts.thresholds import PrimalDual as PrimalDual
from privacy.parts.thresholds import Threshold as Threshold
from privacy.parts.updates import ClipCount as ClipCount
from privacy.parts.updates import Number as Number
from privacy.parts.updates import UpdateSum as UpdateSum

# The kinds of parts, in the order in which statements name them.
KINDS: list[type[Part]] = [Threshold, UpdateSum, ClipCount]


def numbers() -> list[type[Number]]:
  """Returns the kinds of numbers that may travel beside the updates."""
  return [kind for kind in KINDS if issubclass(kind, Number)]
