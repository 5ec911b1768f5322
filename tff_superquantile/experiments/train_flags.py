"""The flags of a run, one for each field of `RunConfig`. Importing this starts no TensorFlow."""

from collections.abc import Iterable, Sequence
import sys
from typing import Any

from absl import flags

from tff_superquantile.experiments import cli
from tff_superquantile.experiments.run import run_config

# Flags of a run that a command about finished runs may override, as data may have moved.
WHERE_DATA_IS = ("data_dir", "glove", "cache_dir")


class _NumberOrWord(flags.FloatParser):
  """Parses a number, or a word that may stand in its place."""

  def __init__(self, word: str):
    super().__init__()
    self.syntactic_help = f"a number or {word}"
    self._word = word

  def convert(self, argument: Any) -> Any:
    """Returns the word as it is, and any other argument as a float."""
    return argument if argument == self._word else super().convert(argument)


def _define(names: Iterable[str]) -> None:
  define: dict[type, Any] = {int: flags.DEFINE_integer, float: flags.DEFINE_float}
  for name in names:
    one = run_config.flags()[name]
    if one.word is not None:
      flags.DEFINE(_NumberOrWord(one.word), name, one.default, one.help)
    elif one.choices:
      flags.DEFINE_enum(name, one.default, [*one.choices, *one.synonyms], one.help)
    elif one.kind is str:
      flags.DEFINE_string(name, one.default, one.help)
    else:
      define[one.kind](name, one.default, one.help, lower_bound=one.least)


def _load(argv: Sequence[str]) -> None:
  """Brings in the parts from outside that a command line names, with their flags."""
  early, known = flags.FlagValues(), set(run_config.flags())
  for name in run_config.TABLES:
    flags.DEFINE_string(name, None, "", flag_values=early)
  early(argv, known_only=True)
  run_config.load({name: early[name].value for name in run_config.TABLES})
  _define(added := [name for name in run_config.flags() if name not in known])
  for name in added:  # Then --help has them.
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
  for name, table in run_config.TABLES.items():
    vars(flags.FLAGS[name].parser)["enum_values"] = list(table)


_define(run_config.flags())
flags.register_validator(
  "output_dir", bool, message="Found no folder; expected one: name it, or . for this one"
)
cli.BEFORE_FLAGS.append(_load)
# It stands for others, and flags.txt has these.
_SECURE = flags.DEFINE_bool(
  "secure",
  False,
  "Clients make the noise of a private run in secure sums of integers, as in the paper:"
  " --threshold=tree where there is a threshold, and --update_sum=distributed.",
)


def given() -> dict[str, Any]:
  """Returns the values of a run's flags that are on the command line, by name; also `secure`."""
  names = [*run_config.flags(), *([_SECURE.name] if _SECURE.value else [])]
  return {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].present}


def config() -> run_config.RunConfig:
  """Returns the config that the command line asks for, checked."""
  asked = given()
  # The flags of a run, which --flagfile brings, have the theta that then means nothing, too.
  is_repeated = any(argument.lstrip("-").startswith("flagfile") for argument in sys.argv[1:])
  if "theta" in asked and asked.get("wanted_updates") and not is_repeated:
    raise ValueError(
      f"Found --theta={asked['theta']:g} with --wanted_updates={asked['wanted_updates']}, by which"
      " theta follows the cohort's size; leave out one of them."
    )
  return run_config.of(**asked)


def finished_task() -> tuple[str, str, dict[str, str]]:
  """Returns --output_dir, --task and what to override of `WHERE_DATA_IS`; refuses other flags.

  Without --task it is the only one with finished runs.
  """
  # With NumPy, which the --help of a run spares.
  from tff_superquantile.experiments.run import run_folder

  names = list(given())
  strange = [name for name in names if name not in ("output_dir", "task", *WHERE_DATA_IS)]
  if strange:
    raise ValueError(
      f"Found --{strange[0]}, which this command does not take; the finished runs have their own."
    )
  output_dir, task = flags.FLAGS.output_dir, flags.FLAGS.task
  if "task" not in names:
    tasks = sorted({run.task for run in run_folder.find_runs(output_dir) if run.finished})
    if len(tasks) > 1:
      raise ValueError(
        f"Found finished runs of {', '.join(tasks)} in {output_dir}; choose one by --task."
      )
    task = tasks[0] if tasks else task
  overrides: dict[str, Any] = {
    name: flags.FLAGS[name].value for name in WHERE_DATA_IS if name in names
  }
  return output_dir, task, overrides


def task_without_data() -> tuple[str, str]:
  """Returns --output_dir and --task for a command without data; refuses other flags of a run."""
  output_dir, task, overrides = finished_task()
  if overrides:
    raise ValueError(
      f"Found --{next(iter(overrides))}, which this command does not take; it reads no data."
    )
  return output_dir, task
