"""Tries the additions out, in a process of their own, and prints as JSON what came of it."""

import contextlib
import io
import json
import sys

from absl import flags
import rows  # noqa: F401  Before flags and configs are made of the tables.

from privacy import account
from privacy import parts
from tff_superquantile.experiments import run
from tff_superquantile.experiments import studies
from tff_superquantile.experiments import train_flags  # noqa: F401  Defines the flags.
from tff_superquantile.experiments.report import page
from tff_superquantile.experiments.run import names
from tff_superquantile.experiments.run import run_config

_COMMON = dict(num_train_clients=30, num_test_clients=15, clients_per_round=8, num_rounds=4)
_CAPPED = dict(algorithm="capped_fed_avg", cap=1.5)
_PRIVATE = dict(threshold="slow_geometric", epsilon=8.0, clip_norm=0.5)


def _refusal(**values):
  try:
    run.train(run_config.of(**_COMMON, output_dir="refused", **values))
  except ValueError as error:
    return str(error)
  return ""


def _name(**values):
  config = run_config.of(**values)
  return names.Name(names.folder(config), config)


def main(output_dir, cache_dir):
  where = dict(_COMMON, rounds_per_evaluation=2, output_dir=output_dir, cache_dir=cache_dir)
  trained = [
    run.train(run_config.of(**where, **own))
    for own in (_CAPPED, _PRIVATE, dict(algorithm="fed_avg"))
  ]
  study = studies.load("lengths").report(output_dir, "synthetic")
  page.publish(study, trained[0].path.parents[1])
  with contextlib.redirect_stdout(io.StringIO()):
    audited = account.main(["audit", str(trained[1].path)])
  return {
    "labels": [one.method.label for one in trained],
    "ordered": sorted(
      [_name(theta=0.25), _name(**_CAPPED), _name(algorithm="fed_avg")], key=lambda name: name.order
    ),
    "flag": flags.FLAGS["cap"].help,
    "private": list(parts.private_kinds()),
    "refusals": [
      _refusal(algorithm="capped_fed_avg"),
      _refusal(algorithm="fed_avg", cap=2.0),
      _refusal(algorithm="capped_fed_avg", cap=2.0, epsilon=1.0, clip_norm=1.0),
    ],
    "losses": [float(one.rounds["train_loss"][-1]) for one in (trained[0], trained[2])],
    "num_losses": trained[0].rounds["num_losses"].tolist(),
    "summary": study.summary,
    "audit": audited,
  }


if __name__ == "__main__":
  found = main(*sys.argv[1:])
  print(json.dumps(found))
