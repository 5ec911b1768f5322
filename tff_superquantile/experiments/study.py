"""Makes the report of a study.

    python -m tff_superquantile.experiments.study NAME [--flags]

`NAME --help` describes a study's measurements, its files and its flags. The names:

"""

from __future__ import annotations

import functools
import sys
import types

from absl import flags

from tff_superquantile.experiments import cli
from tff_superquantile.experiments import studies

__doc__ += "\n".join(f"    {name:<18}{question}" for name, question in studies.STUDIES.items())


# Studies of the paper, which are beside the library, in a clone of the project alone.
_OF_THE_PAPER = ("convergence", "nonconvex", "paper")


def run(study: types.ModuleType) -> None:
  """Runs the command of a study's module, whose flags are the arguments of this process.

  Without `define_flags` and `main`, its report is made of finished runs alone.
  """
  if hasattr(study, "define_flags"):
    study.define_flags()
    main = study.main
  else:
    from tff_superquantile.experiments.studies import finished_models  # With flags of its own.

    finished_models.declare_flags(study.__name__)
    main = functools.partial(finished_models.publish, study.report)
  # --help shows the docstring of the main module, whichever that is.
  sys.modules["__main__"].__doc__ = study.__doc__
  for flag in flags.FLAGS.get_key_flags_for_module(study.__name__):
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
  cli.run(main)


if __name__ == "__main__":
  if len(sys.argv) > 1 and sys.argv[1] in studies.STUDIES:
    run(studies.load(sys.argv.pop(1)))
  elif sys.argv[1:2] in (["--help"], ["--helpfull"]):
    print(__doc__)
  elif len(sys.argv) > 1 and sys.argv[1] in _OF_THE_PAPER:
    cli.fail(
      f"Found {sys.argv[1]!r}, a study of the paper, which is no part of the library; expected"
      f" ./run_experiments.sh {sys.argv[1]} in a clone of the project.",
      cli.USAGE_ERROR,
    )
  else:
    found = repr(sys.argv[1]) if len(sys.argv) > 1 else "no name"
    cli.fail(
      f"Found {found} in place of a study; expected one of {', '.join(studies.STUDIES)}.",
      cli.USAGE_ERROR,
    )
