"""The kind of CPU of this machine, as far as TensorFlow's results follow from it.

Its kernels choose their instructions by what the CPU has, and the blocks in which they add up by
its caches; NumPy's do so, too. Standard library alone, as `limits`.
"""

from __future__ import annotations

import re

from tff_superquantile.engine.processes import limits

# Vector instructions: what kernels are chosen by.
_MATTERS = re.compile(r"(ss?se|avx|fma|f16c|amx)\w*")


def kind() -> dict[str, str]:
  """Returns what tells this kind of CPU from others; "" for what the kernel does not say.

  Returns:
    "model": vendor, family, model and name; "instructions": the sets of vector instructions;
    "caches": the sizes of a core's data caches from the first level on.
  """
  values: dict[str, str] = {}
  for line in limits.read(limits.ROOT / "proc/cpuinfo").splitlines():
    name, _, value = line.partition(":")
    values.setdefault(name.strip(), value.strip())  # Those of the first core.
  model = (values.get(name, "") for name in ("vendor_id", "cpu family", "model", "model name"))
  caches = []
  for folder in sorted((limits.ROOT / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
    if limits.read(folder / "type").strip() != "Instruction":
      caches.append(limits.read(folder / "size").strip())
  flags = sorted(flag for flag in values.get("flags", "").split() if _MATTERS.fullmatch(flag))
  return {
    "model": " ".join(filter(None, model)),
    "instructions": " ".join(flags),
    "caches": " ".join(caches),
  }
