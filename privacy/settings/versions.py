"""The versions whose files are read: from 0.4 on, each version reads those of the one before."""

from __future__ import annotations

from collections.abc import Mapping
import os
from typing import Any

OLDEST = "0.4"
_IN_ALL = "exact_siblings"  # A flag in every flags.txt since that version, and in none before.


def older(place: str | os.PathLike[str] = "") -> ValueError:
  """Returns the error of a file, or of the folder of a run, that an earlier version wrote."""
  found = f" in {os.fspath(place)}" if os.fspath(place) else ""
  return ValueError(
    f"Found a run of a version before {OLDEST}{found}; expected {OLDEST} or later: train again in"
    " another --output_dir, or read it by the version that made it. What its privacy claim is worth"
    " is in docs/privacy.md."
  )


def check(flags: Mapping[str, Any], place: str | os.PathLike[str] = "") -> None:
  """Raises a `ValueError` for the flags of a run, values by name, of a version before `OLDEST`."""
  if flags and _IN_ALL not in flags:
    raise older(place)
