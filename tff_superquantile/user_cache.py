"""Names the place of converted data and environments. Standard library alone."""

import os


def default_dir() -> str:
  """Returns this project's folder in the user's cache, by the XDG base directory specification."""
  cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
  return os.path.join(cache, "tff_superquantile")
