"""Rounds on many machines: Ray's actors compute the blocks of a cohort.

It needs the extra `cluster` (`ray`), which nothing imports before `engine="ray"` is asked for.
"""

from tff_superquantile import lazy

__all__, __getattr__, __dir__ = lazy.attach(
  __name__, (), {"errors": ("ClusterError",), "ray_context": ("RayContext",)}
)
