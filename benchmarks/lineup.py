"""Lists the contenders by name, and tells which of them do the same work."""

from collections.abc import Mapping, Sequence
import dataclasses
import difflib
from typing import Any

from tff_superquantile.engine.processes import limits

FED_AVG = "fed_avg"
SUPERQUANTILE = "superquantile"
FAMILY = "family"
FAMILY_THETAS = (1.0, 0.5, 0.25)
BEST_STOCK = "tff_client_ids"
# In the process; there, with files that were read before, as peers have theirs; by TFF's runtime.
_ENGINES = {"in_process": "", "kept": ", read before", "native": ", TFF's runtime"}
_TREE = dict(threshold="tree", threshold_noise_multiplier=1.0)
_PRIVATE = dict(clip_norm=1.0, update_noise_multiplier=1.0, delta=1e-5, client_weighting="uniform")
# This project's methods in the order of the table: title, and flags of a run that make the method
# what it is. Nobody else does the work of those that are not FedAvg.
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
  FED_AVG: ("FedAvg", dict(algorithm="fed_avg", threshold=None)),
  SUPERQUANTILE: ("superquantile, exact", {}),
  "tree_64": ("tree of 64 bins", dict(_TREE, num_bins=64)),
  "tree_1024": ("tree of 1024 bins", dict(_TREE, num_bins=1024)),
  "private_geometric": (
    "private, geometric",
    dict(_PRIVATE, threshold="geometric", threshold_noise_multiplier=10.0),
  ),
  "private_tree_64": ("private, tree of 64", dict(_PRIVATE, **_TREE, num_bins=64)),
  "private_distributed": (
    "private, tree, distributed noise",
    dict(_PRIVATE, **_TREE, num_bins=64, update_sum="distributed"),
  ),
  # All its models at once. The weights of its first, of theta = 1, are those of FedAvg.
  FAMILY: (f"family, theta {', '.join(map('{:g}'.format, FAMILY_THETAS))}", {}),
}


@dataclasses.dataclass(frozen=True)
class Entry:
  """A contender of a run.

  Attributes:
    name: Its name on the command line.
    title: Its name in tables.
    module: The module of `benchmarks.contenders` that is its process.
    options: The options of the module.
    work: Its method; entries of the same work must get the same weights.
    peer: The environment that it needs, see `peers.environments`; None for the project's own.
  """

  name: str
  title: str
  module: str
  options: dict[str, Any]
  work: str = FED_AVG
  peer: str | None = None


# pfl-research's guide to fast simulations wants a process for each device. Measured on 2 cores,
# seconds a round, 100 clients of the linear and of the ConvNet task: 0.25 and 4.9 with one process
# of one thread, 0.23 and 4.2 with one of two threads, 0.16 and 3.1 with two of one thread.
_PFL_PROCESSES = limits.num_cores()
_OTHERS = (
  Entry(BEST_STOCK, "TFF's FedAvg, client ids", "tff_stock", {"way": "client_ids"}),
  Entry("tff_tutorial", "TFF's FedAvg, as in tutorials", "tff_stock", {"way": "tutorial"}),
  Entry("data_sets", "TFF's FedAvg, tutorials, in process", "tff_stock", {"way": "data_sets"}),
  Entry("floor", "a loop of one tf.function", "floor", {}),
  Entry(
    "pfl_research",
    "pfl-research, FedAvg",
    "pfl_research",
    {"processes": _PFL_PROCESSES, "threads": 1},
    peer="pfl-research",
  ),
  Entry("fedjax", "FedJAX, FedAvg", "fedjax_peer", {}, peer="fedjax"),
)
PEERS = tuple(entry.name for entry in _OTHERS if entry.peer)
DEFAULT = (
  *(entry.name for entry in _OTHERS if not entry.peer),
  FED_AVG,
  f"{FED_AVG}@kept",
  f"{FED_AVG}@native",
  SUPERQUANTILE,
  f"{SUPERQUANTILE}@kept",
  f"{SUPERQUANTILE}@native",
  *list(METHODS)[2:],
)


def find(name: str, theta: float) -> Entry:
  """Finds the entry of a name, one of `DEFAULT` or `PEERS`, or a method with an engine.

  That is one of this project's methods with the engine that computes it: `superquantile@native`.
  Without one it is "in_process".
  """
  for entry in _OTHERS:
    if entry.name == name:
      return entry
  method, _, engine = name.partition("@")
  if method not in METHODS or (engine or "in_process") not in _ENGINES:
    known = [*(entry.name for entry in _OTHERS), *METHODS]
    known += [f"{method}@{engine}" for method in METHODS for engine in _ENGINES]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    raise ValueError(f"Found no contender {name!r}; did you mean {close[0]!r}?")
  options = {"method": method, "engine": engine or "in_process", "theta": theta}
  title = METHODS[method][0] + _ENGINES[engine or "in_process"]
  return Entry(name, title, "ours", options, work=FED_AVG if method == FAMILY else method)


def choose(names: Sequence[str], with_peers: bool, theta: float) -> list[Entry]:
  """Chooses the entries of a run in the order of the table; without names all but the peers."""
  names = list(names or DEFAULT)
  if len(set(names)) != len(names):
    raise ValueError(f"Found a contender twice in {','.join(names)}; give each one once.")
  if with_peers:
    names += [name for name in PEERS if name not in names]
  return [find(name, theta) for name in names]
