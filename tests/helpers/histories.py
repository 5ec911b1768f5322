"""Histories of a private run's folder: it is interrupted, damaged and resumed, at random.

What an observer of the folder ever saw is kept, as what was once seen cannot be taken back.
"""

import collections
import csv
import dataclasses
import io
import random
import shutil
import signal
import time

import numpy as np

from helpers import commands
from privacy import audit

NUM_ROUNDS = 8
_CLIENTS = 14
_RUN = "own_table_linear/mine/seed_0"
_AT_THE_END = ("weights.npz", "metrics.json", "test_clients.csv")
_FLAGS = (
  *("--task=own", "--data_dir=table.csv", "--client_column=who", "--label_column=label"),
  *("--output_dir=runs", "--run_name=mine", f"--num_rounds={NUM_ROUNDS}", "--clip_norm=0.5"),
  *("--rounds_per_evaluation=2", "--clients_per_round=5", "--delta=1e-3", "--epsilon=30"),
)
# Every kind of noise, wherever it is made.
VARIANTS = {
  "geometric": ("--theta=0.5",),
  "tree": ("--theta=0.5", "--threshold=tree", "--num_bins=8"),
  "fed_avg": ("--algorithm=fed_avg",),
  "distributed": ("--algorithm=fed_avg", "--update_sum=distributed"),
  "adaptive": ("--theta=0.5", "--threshold=primal_dual", "--clip_norm=adaptive"),
  # Noise that depends on that of rounds before, of all numbers that a round may release.
  "cyclic": (
    *("--theta=0.5", "--threshold=primal_dual", "--clip_norm=adaptive", "--sampling=cyclic"),
    "--averaged_rounds=3",
  ),
}
_OTHER_FLAGS = (
  *("--epsilon=40", "--clip_norm=0.25", "--num_rounds=9", "--batch_size=2"),
  *("--clients_per_round=6", "--accounting=rdp", "--relation=replace_one", "--max_loss=3"),
  *("--client_learning_rate=0.05", "--local_epochs=2", "--delta=1e-4", "--features=u"),
)
# The command as a user starts it, but that it ends, or finds the disk full, at a file operation.
_SCRIPT = """
import errno, os, runpy, sys
kind, left, folder = {kind!r}, [{count}], {folder!r}
def is_write(event, arguments):
  if event == "open":
    return bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
  return event in ("os.mkdir", "os.rename", "os.remove", "os.utime", "os.chmod", "os.truncate")
def hook(event, arguments):
  if not is_write(event, arguments) or isinstance(arguments[0], int):
    return
  if not os.path.abspath(os.fspath(arguments[0])).startswith(folder):
    return
  left[0] -= 1
  if left[0] <= 0:
    if kind == "kill":
      os.kill(os.getpid(), {signum})
    elif event in ("open", "os.mkdir"):
      raise OSError(errno.ENOSPC, "No space left on device")
sys.addaudithook(hook)
sys.argv[0] = "train"
runpy.run_module("tff_superquantile.experiments.train", run_name="__main__", alter_sys=True)
"""


def table(removed=(), changed=(), added=()):
  """A table of few rows a client, as text."""
  lines = ["who,label,u,v"]
  for i in range(_CLIENTS):
    rng = np.random.default_rng(i)
    for _ in range(4):
      u, v = rng.normal(size=2)
      label = int(u + v > 0) if i not in changed else int(u + v <= 0)
      if i not in removed:
        lines.append(f"c{i},{label},{u:.3f},{v:.3f}")
  lines += [f"{name},1,0.5,0.5" for name in added]
  return "\n".join(lines) + "\n"


@dataclasses.dataclass(frozen=True)
class Step:
  """What happened once: what was done to the folder, how the command ran, and how it ended."""

  damage: str
  interruption: str
  outcome: str
  words: str


def _rows(text):
  """{(round, column): cell} of a rounds.csv, but for blank cells and epsilon."""
  rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
  return {
    (int(row[0]), name): cell
    for row in rows[1:]
    for name, cell in zip(rows[0][1:], row[1:])
    if cell and name != "epsilon"
  }


class History:
  """One folder, and all that was ever seen in it."""

  def __init__(self, folder, cache_dir, variant, seed=0):
    """Makes the folder; the seed is that of all that is drawn."""
    self._random = random.Random(seed)
    self._flags = (*_FLAGS, *VARIANTS[variant], f"--cache_dir={cache_dir}")
    self.folder = folder
    self.folder.mkdir()
    self._lab = commands.Lab(folder, cache_dir)
    self.run = self.folder / "runs" / _RUN
    self._key = self.folder / "key"
    self._key.write_text("5" * 32)
    self.write_table()
    self._seen = collections.defaultdict(set)  # What: all values that were seen of it.
    self._copies = []  # Earlier contents of the run's files.
    self.steps = []

  def write_table(self, **changes):
    (self.folder / "table.csv").write_text(table(**changes))

  # How a command runs.

  def command(self, *flags, kind="whole", count=0, signum=signal.SIGKILL):
    """Runs the command, with the run's flags and others, to its end or to a point."""
    script = _SCRIPT.format(
      kind=kind, count=count or 1 << 60, folder=str(self.run), signum=int(signum)
    )
    return self._lab.fork("-c", script, *self._flags, *flags)

  def whole(self, *flags):
    """Carries out the command in this process; returns how it ended."""
    return self._lab.bare("train", *self._flags, *flags)

  def interrupted(self, *flags):
    """Runs the command, and interrupts it at random; returns (the interruption, its result)."""
    kinds = ("kill", "kill", "kill", "stop", "full disk", "killed later", "killed later")
    kind = self._random.choice(kinds)
    more = f"--seconds_per_checkpoint={self._random.choice(('0', '0.05', '1000'))}"
    count = self._random.randint(1, 115)
    if kind == "stop":
      command = self.command(*flags, more, kind="kill", count=count, signum=signal.SIGTERM)
    elif kind == "killed later":
      command = self.command(*flags, more)
      wanted = commands.num_rows(self.run) + self._random.randint(0, 4)
      end = time.monotonic() + 60
      while command.process.poll() is None and time.monotonic() < end:
        if commands.num_rows(self.run) > wanted:
          break
        time.sleep(0.002)
      time.sleep(self._random.random() * 0.05)
      command.process.send_signal(signal.SIGKILL)
    else:
      command = self.command(*flags, more, kind=kind.split()[0], count=count)
    return kind, command.wait()

  # What is done to the folder meanwhile. Each returns flags for the command.

  def _nothing(self):
    return ()

  def _lose_checkpoints(self):
    shutil.rmtree(self.run / "checkpoints", ignore_errors=True)
    return self._random.choice(((), (f"--noise_key_file={self._key}",)))

  def _lose_a_file(self):
    files = [path for path in self.run.rglob("*") if path.is_file()]
    if files:
      self._random.choice(files).unlink()
    return ()

  def _restore_a_file(self):
    """Of those of earlier, whatever it was."""
    if self._copies:
      copy = self._random.choice(self._copies)
      self._restore(copy, self._random.sample(sorted(copy), min(1, len(copy))))
    return ()

  def _restore_all_but_one(self):
    if self._copies:
      copy = self._random.choice(self._copies)
      self._restore(copy, self._random.sample(sorted(copy), max(0, len(copy) - 1)))
    return ()

  def _restore(self, copy, names):
    for name in names:
      (self.run / name).parent.mkdir(parents=True, exist_ok=True)
      (self.run / name).write_bytes(copy[name])

  def _change_a_client(self):
    self.write_table(changed=[self._random.randrange(_CLIENTS)])
    return ()

  def _remove_a_client(self):
    self.write_table(removed=[self._random.randrange(_CLIENTS)])
    return ()

  def _add_a_client(self):
    self.write_table(added=[f"new{self._random.randrange(1000)}"])
    return ()

  def _change_a_flag(self):
    return (self._random.choice(_OTHER_FLAGS),)

  def _change_the_key(self):
    other = self.folder / "other_key"
    other.write_text("6" * 32)
    if self._random.random() < 0.5:
      shutil.rmtree(self.run / "checkpoints", ignore_errors=True)
    return (f"--noise_key_file={other}",)

  DAMAGES = (
    *("nothing", "lose_checkpoints", "lose_a_file", "restore_a_file", "restore_all_but_one"),
    *("change_a_client", "remove_a_client", "add_a_client", "change_a_flag", "change_the_key"),
    "two_processes",
  )

  # What is seen.

  def look(self):
    """Notes all that the folder shows to a reader of everything but checkpoints/."""
    text = self._read("rounds.csv")
    for what, value in _rows(text).items():
      self._seen[what].add(value)
    for path in sorted((self.run / "clients").glob("round_*.parquet")):
      self._seen[path.name].add(path.read_bytes())
    for name in _AT_THE_END:
      if (self.run / name).exists():
        self._seen[name].add((self.run / name).read_bytes())
    if self.run.exists():
      self._copies.append(commands.contents(self.run))

  def _read(self, name):
    path = self.run / name
    return path.read_text() if path.exists() else ""

  @property
  def seen(self):
    return self._seen

  @property
  def last_round_seen(self):
    rounds = [what[0] for what in self._seen if isinstance(what, tuple)]
    rounds += [int(what[6:13]) for what in self._seen if str(what).startswith("round_")]
    return max(rounds, default=0)

  @property
  def _has_begun(self):
    return (self.run / "flags.txt").exists() or self.last_round_seen > 0

  def public(self):
    return {
      name: content
      for name, content in (commands.contents(self.run) if self.run.exists() else {}).items()
      # What a killed writer left unfinished is removed even if the run is refused then.
      if not name.startswith("checkpoints/") and "/." not in f"/{name}" and name != "lock"
    }

  def live(self, num_steps):
    """Begins the run, and lets so many things happen to it."""
    self._step("nothing", ("--noise_key_file=key",))
    for _ in range(num_steps):
      damage = self._random.choice(self.DAMAGES)
      if not self._has_begun:
        self._step("nothing", ("--noise_key_file=key",))
        continue
      if damage == "two_processes":
        self._two_processes()
        continue
      self._step(damage, getattr(self, f"_{damage}")())
      self.write_table()

  def _step(self, damage, flags):
    # What it does to the folder is done by somebody else, and no release.
    before = self.public()
    interruption, result = self.interrupted(*flags)
    self._judge(damage, interruption, result, before)

  def _judge(self, damage, interruption, result, before):
    self.look()
    errors = result.errors()
    assert "Traceback" not in result.err, (damage, result.err)
    if "Finished before" in result.out:
      outcome = "had ended before"
    elif result.code == 0:
      outcome = "went on to the end"
    elif result.code < 0:
      outcome = "was killed"
    elif result.code in (130, 143):
      outcome = "stopped"
    elif "No space left" in result.err:
      outcome = "found the disk full"
    else:
      outcome = "refused"
      assert len(errors) == 1, (damage, result)
      assert result.code in (1, 2), (damage, result)
    self.steps.append(Step(damage, interruption, outcome, " ".join(errors)))
    if outcome == "refused" and before is not None:
      after = self.public()
      changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
      # Of rounds that do not repeat themselves, only the number is entered.
      expected = {"privacy.json"} if "repeat" in errors[0] else set()
      assert changed <= expected, (damage, changed, errors)
    if outcome == "went on to the end":
      self.assert_covered()

  def _two_processes(self):
    for result in [command.wait() for command in (self.command(), self.command())]:
      self._judge("two_processes", "whole", result, None)

  def assert_covered(self):
    """The ledger has every round that anybody saw, and the audit finds nothing."""
    found = audit.audit_folder(self.run)
    assert found.holds, found.failures
    assert found.ledger.rounds_done >= self.last_round_seen
    assert found.ledger.rounds_done == NUM_ROUNDS, self.steps

  def finish(self, *flags):
    """Lets the run end, if it may, and judges the folder as it is then."""
    before = self.public()
    if not self._has_begun:
      flags = ("--noise_key_file=key",)
    self._judge("nothing", "whole", self.whole(*flags), before)
