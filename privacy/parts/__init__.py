"""The parts of a round's release: one class for each noisy number or vector that a round releases.

A part declares its flags and checks itself; it knows its noise, its sensitivity to replacing a
client over that to removing its data, who adds the noise, the integers that clients send if they
add it, its words, its entries in a ledger and its columns. Accounting, ledger, audit and statements
go over the parts of a release and know no class by name.

A new threshold is a row of `THRESHOLDS`, or from outside a subclass of one.
"""

from privacy.parts.clips import AdaptiveClip as AdaptiveClip
from privacy.parts.clips import Clip as Clip
from privacy.parts.clips import FixedClip as FixedClip
from privacy.parts.released import ReleasedPart as ReleasedPart
from privacy.parts.thresholds import THRESHOLDS as THRESHOLDS
from privacy.parts.thresholds import Exact as Exact
from privacy.parts.thresholds import Geometric as Geometric
from privacy.parts.thresholds import OneBit as OneBit
from privacy.parts.thresholds import PrimalDual as PrimalDual
from privacy.parts.thresholds import PrivateThreshold as PrivateThreshold
from privacy.parts.thresholds import Reweighting as Reweighting
from privacy.parts.thresholds import Threshold as Threshold
from privacy.parts.thresholds import Tree as Tree
from privacy.parts.thresholds import is_accounted as is_accounted
from privacy.parts.thresholds import private_kinds as private_kinds
from privacy.parts.updates import UpdateSum as UpdateSum


def kinds() -> list[type[ReleasedPart]]:
  """Returns the kinds of parts, in the order in which statements name them.

  Returns:
    The classes.
  """
  return [PrivateThreshold, UpdateSum, AdaptiveClip]
