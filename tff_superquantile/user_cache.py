"""Where converted data and environments are kept for the next run. Standard library alone."""

import os


def default_dir() -> str:
  """The folder of this project in the user's cache, by the XDG base directory specification."""
  cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
  return os.path.join(cache, "tff_superquantile")
