"""Makes the report of a study.

    python -m paper.studies NAME [--flags]

`NAME --help` describes a study's measurements, its files and its flags. The names:

"""

import functools
import sys
from typing import Any

from paper import studies
from tff_superquantile.experiments import cli

__doc__ += "\n".join(f"    {name:<18}{question}" for name, question in studies.STUDIES.items())


def _run(name: str) -> int:
  """Runs a study's command; without `main`, its report is made of finished runs alone."""
  study: Any = studies.load(name)
  if not hasattr(study, "main"):
    from paper.studies import finished_models  # With flags of its own.

    study.define = functools.partial(finished_models.define_task, has_data=False)
    study.main = functools.partial(finished_models.publish, study.report)
  return cli.run(study, sys.argv[2:])


if __name__ == "__main__":
  if len(sys.argv) > 1 and sys.argv[1] in studies.STUDIES:
    sys.exit(_run(sys.argv[1]))
  elif sys.argv[1:2] == ["--help"]:
    print(__doc__)
  else:
    text = repr(sys.argv[1]) if len(sys.argv) > 1 else "no name"
    known = ", ".join(studies.STUDIES)
    cli.fail(f"Found {text} in place of a study; expected one of {known}.", cli.USAGE_ERROR)
