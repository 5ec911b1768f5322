"""Writes banded_oracles.json: sensitivities and errors of Toeplitz strategies by jax_privacy.

It needs an environment of its own with jax_privacy, and no module of this project:

    python tests/privacy/make_banded_oracles.py
"""

from importlib import metadata
import json
import pathlib

import jax
from jax_privacy.matrix_factorization import toeplitz
import numpy as np

# T, s, k and the number of coefficients of the square root.
_SCHEMAS = ((64, 8, 8, 8), (64, 8, 5, 16), (1000, 25, 40, 50), (1000, 25, 40, 25), (90, 7, 13, 30))
# T and b.
_OPTIMAL = ((64, 8), (64, 64), (300, 12), (1000, 25))


def main():
  jax.config.update("jax_enable_x64", True)
  roots, optimal = [], []
  for num_rounds, separation, most, bands in _SCHEMAS:
    root = toeplitz.optimal_max_error_strategy_coefs(bands)
    squared = toeplitz.minsep_sensitivity_squared(root, separation, most, num_rounds)
    errors = toeplitz.per_query_error(strategy_coef=root, n=num_rounds)
    roots.append(
      dict(
        num_rounds=num_rounds,
        separation=separation,
        most=most,
        bands=bands,
        sensitivity=float(np.sqrt(squared)),
        error=float(np.sqrt(np.mean(errors))),
      )
    )
  for num_rounds, bands in _OPTIMAL:
    found = toeplitz.optimize_banded_toeplitz(num_rounds, bands, max_optimizer_steps=2000)
    loss = float(np.sqrt(toeplitz.loss(found, num_rounds)))
    optimal.append(dict(num_rounds=num_rounds, bands=bands, loss=loss))
  made_by = f"jax_privacy {metadata.version('jax_privacy')}, jax {metadata.version('jax')}"
  text = json.dumps(dict(made_by=made_by, roots=roots, optimal=optimal), indent=2)
  path = pathlib.Path(__file__).with_name("banded_oracles.json")
  path.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
  main()
