"""The flags of a run, one for each field of `RunConfig`. Importing this starts no TensorFlow."""

import dataclasses
from typing import Any

from absl import flags

from tff_superquantile.experiments.run import run_config


def _define() -> None:
  define = {int: flags.DEFINE_integer, float: flags.DEFINE_float}
  for field in dataclasses.fields(run_config.RunConfig):
    kind = run_config.types()[field.name]
    description, choices = field.metadata["help"], field.metadata["choices"]
    if choices:
      flags.DEFINE_enum(field.name, field.default, choices, description)
    elif kind is str:
      flags.DEFINE_string(field.name, field.default, description)
    else:
      define[kind](field.name, field.default, description, lower_bound=field.metadata["least"])


_define()


def given() -> dict[str, Any]:
  """Returns the values of a run's flags that are on the command line, by name."""
  return {name: flags.FLAGS[name].value for name in run_config.names() if flags.FLAGS[name].present}


def config() -> run_config.RunConfig:
  """Returns the config that the command line asks for."""
  return run_config.RunConfig(**given())
