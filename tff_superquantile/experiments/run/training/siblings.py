"""Whether runs of one experiment measure exactly whom another of them protects.

The ledger of a private run says nothing of what other runs publish about its clients. So a run is
refused before it begins if it would protect a client of whom the experiment has exact results, or
will have; or measure exactly a client whom another run protects.

An experiment is OUTPUT_DIR with the runs of its tuning. Runs have the same clients if these have
the same names, in tasks of one family (emnist_linear and emnist_convnet) and one table. Clients of
generated data are nobody, whom anything may measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
import dataclasses
import pathlib
from typing import NamedTuple

import tasks
from tff_superquantile.experiments.run import hook
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_config
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.parts import privacy
from tff_superquantile.simulation import client_files

_MEASURED = ("test", "validation", "train")  # The splits of which a run has files.
# From what it follows whom a private run trains on.
_OF_SPLIT = ("split_seed", "validation_fraction", "client_split", "num_train_clients")


class Coverage(NamedTuple):
  """The clients whom a run protects, and those whose results it writes exactly."""

  protected: Set[str]
  measured: Set[str]


def clients(is_private: bool, splits: Mapping[str, client_files.ClientFiles]) -> Coverage:
  """Returns the clients of a run by its splits: a private one protects those that it trains on."""
  by_split = {split: set(files.client_ids) for split, files in splits.items()}
  train = by_split.pop("train") if is_private else set()
  return Coverage(train, set().union(*by_split.values()))


def folders(run: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the folders of the other runs of an experiment."""
  run = run.resolve()
  output_dir = run.parents[2]
  output_dir = output_dir.parent if output_dir.name == names.TUNING else output_dir
  for pattern in ("*/*/seed_*", f"{names.TUNING}/*/*/seed_*"):
    yield from (p for p in sorted(output_dir.glob(pattern)) if p.is_dir() and p != run)


def find(path: pathlib.Path, config: run_config.RunConfig) -> list[run_folder.Run]:
  """Returns the other runs of an experiment that have begun and may have a run's clients."""
  runs = (run_folder.Run(other, 0) for other in folders(path))
  population = _population(config.to_flags())
  return [run for run in runs if run.flags and _population(run.flags) == population]


def _population(flags: Mapping[str, str]) -> tuple[str, ...]:
  """Identifies those among whom a run's clients are, by the texts of its flags."""
  task = flags.get("task", "synthetic")
  table = pathlib.Path(flags.get("data_dir", "")).name.partition(".")[0] if task == "own" else ""
  seed = flags.get("seed", "0") if task == "synthetic" else ""  # It generates the clients.
  return (task.partition("_")[0], flags.get("data", "files"), table, seed)


def check(
  path: pathlib.Path,
  config: run_config.RunConfig,
  open_task: Callable[[], tasks.task.Task],
  own: Coverage,
  data: run_config.RunConfig | None = None,
  start: run_folder.Run | None = None,
) -> None:
  """Refuses to protect a client whom another run measures exactly, and the other way round."""
  # Clients of generated data are nobody.
  is_generated = config.task.name == "synthetic" or config.task.is_standin
  if config.exact_siblings == run_config.ALLOWED or is_generated:
    return
  others = find(path, config)
  if not own.protected:
    others = [run for run in others if privacy.is_private(run.flags)]
  remedy = "copy the run to a folder of which you publish nothing"
  if data is None:
    remedy = (
      "choose another --output_dir, of which you publish one alone, or say that the clients are"
      f" nobody's secret by --exact_siblings={run_config.ALLOWED}"
    )
  split = _Split(data or config, open_task()) if others or start else None
  by_run = {} if split is None else {run: split.clients(run) for run in others}
  wrong = {run.path: own.measured & its.protected for run, its in by_run.items()}
  _refuse(config, wrong, by_run, "are to be measured exactly, and are protected in {}", remedy)
  if split is not None and start is not None:
    by_run[start] = split.clients(start)
  wrong = {run.path: own.protected & its.measured for run, its in by_run.items()}
  if own.protected:
    wrong |= {path: own.protected & ids for path, ids in _tables(path.resolve(), others)}
  _refuse(config, wrong, by_run, "are to be protected, and are measured exactly in {}", remedy)


class Siblings(hook.Hook):
  """Refuses a run as `check` does, and one whose start had another table."""

  def before(self) -> None:
    job, config, start = self.job, self.job.config, None
    if config.start is not None:
      start = run_folder.find_finished(pathlib.Path(config.start.folder))
      start.check_table(job.task)
      # The statistics of a private one are of its test clients.
      start = start if start.config is None or start.config.is_private else None
    own = clients(config.is_private, job.splits)
    check(job.folder, config, lambda: job.task, own, start=start)


class _Split:
  """Splits the clients of some data as other runs do."""

  def __init__(self, config: run_config.RunConfig, task: tasks.task.Task):
    self._task, self._place = task, config.to_flags().get("data_dir")
    request = config.request()
    pools = task.all_clients(request)
    # Held-out rows are pools of the same clients.
    self._pools = pools[:1] if request.held_out_examples else pools
    self._ids = {client_id for pool in self._pools for client_id in pool.client_ids}
    self._known: dict[tasks.task.Request, Coverage] = {}

  def clients(self, run: run_folder.Run) -> Coverage:
    """Returns whom another run protects and measures, when it has ended."""
    columns = (run.clients(split) for split in _MEASURED)
    measured = {str(client_id) for table in columns for client_id in table.get("client_id", ())}
    if run.flags.get("data_dir") != self._place and measured and not measured & self._ids:
      return Coverage(set(), measured)  # Its data are others, as of clients that came later.
    is_private = privacy.is_private(run.flags)
    try:
      config = run_config.from_flags(run.flags)
      request = config.request()
      least = request.min_examples_per_client or self._task.min_examples
      seed = request.seed if request.folds else 0
      same = dict(split_seed=None) if request.folds else dict(split_seed=request.seed_of_split)
      request = dataclasses.replace(request, min_examples_per_client=least, seed=seed, **same)
      if request not in self._known:
        self._known[request] = clients(is_private, self._task.split_clients(self._pools, request))
      protected, planned = self._known[request]
    except ValueError:  # Its flags are another version's, or it had other data.
      protected, planned = (self._ids - measured if is_private else set()), set()
    return Coverage(protected, planned | measured)


def _tables(
  own: pathlib.Path, others: list[run_folder.Run]
) -> Iterator[tuple[pathlib.Path, Set[str]]]:
  """Yields tables of clients beside those of the runs, as evaluations and studies write them."""
  for folder in sorted({run.parents[1] for run in (own, *(other.path for other in others))}):
    for path in sorted(folder.rglob("*.csv")):
      if path.is_relative_to(own) or path.name in {f"{split}_clients.csv" for split in _MEASURED}:
        continue
      with open(path, encoding="utf-8", errors="replace") as stream:
        has_clients = "client_id" in stream.readline()
      if has_clients:
        yield path, set(run_files.read_columns(path, is_whole=True)["client_id"].tolist())


def _refuse(
  config: run_config.RunConfig,
  wrong: Mapping[pathlib.Path, Set[str]],
  by_run: Mapping[run_folder.Run, Coverage],
  words: str,
  remedy: str,
) -> None:
  """Raises a `ValueError` that names the clients' number and place, and the flags that mend it."""
  paths = [path for path, ids in wrong.items() if ids]
  if not paths:
    return
  number, first = len(set().union(*wrong.values())), paths[0]
  place = f"{first} (and {len(paths) - 1} more)" if len(paths) > 1 else str(first)
  other = next((run.config for run in by_run if run.path == first), None)
  if config.is_private and other is not None and other.is_private:
    its, own = other.to_flags(), config.to_flags()
    its.setdefault("split_seed", its["seed"])
    alike = (f"--{name}={its[name]}" for name in _OF_SPLIT if its.get(name) != own.get(name))
    remedy = f"split alike, by {' '.join(alike)}, or {remedy}"
  raise ValueError(
    f"Found {number} client{'s' * (number != 1)} who {words.format(place)}; expected none in one"
    f" experiment, as no epsilon is finite for them: {remedy}."
  )
