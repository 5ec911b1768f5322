"""Trains under a privacy budget, and audits what the run claims.

    .venv/bin/python examples/private_training.py [OUTPUT_DIR]

The synthetic task makes its own clients: 2500 that train, 500 that test. Epsilon 10 in 100 rounds
is for one client's whole data, against a reader of all models and thresholds of the run who does
not know the cohorts; delta is the default, the smaller of 1e-5 and n^-1.1.
"""

import sys

from privacy import account
from tff_superquantile.experiments import run


def main(output_dir="results/example"):
  """Returns the exit status: 0 if the claim holds."""
  config = run.RunConfig(
    method=run.Superquantile(theta=0.5),
    privacy=run.Budget(epsilon=10.0, clip=run.FixedClip(norm=0.1)),
    num_rounds=100,
    rounds_per_evaluation=50,
    output_dir=output_dir,
  )
  finished = run.train(config)  # The noise is calibrated, and its cost printed, before it starts.
  print("p90 of the test clients' error:", finished.metrics["test"]["error"]["p90"])
  # Epsilon anew, from the flags, the rounds and the noise; 0 if the claim holds.
  return account.run(["audit", str(finished.path)])


if __name__ == "__main__":
  sys.exit(main(*sys.argv[1:]))
