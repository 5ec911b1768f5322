"""Folders of runs that nobody has carried out, and reports of them."""

import csv
import pathlib

import numpy as np
import pandas as pd

from helpers import finished_runs
from tff_superquantile import atomic_files
from tff_superquantile import distribution
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.report import comparison
from tff_superquantile.experiments.run import run_files

SUPERQUANTILE = "superquantile_theta_0.5"
_EVALUATED = (
  "test_error_mean",
  "test_error_p90",
  "test_error_superquantile_90",
  "test_loss_mean",
  "test_loss_superquantile_90",
)


def fabricate(
  root, method, seed, *, task="synthetic", shift=0.0, sizes=True, finished=True, num_rounds=40
):
  """Writes a run folder; `shift` is taken off every client's error. Returns the test errors.

  Without rounds (`num_rounds` None) there are fewer figures to draw, so the test is quicker.
  """
  folder = pathlib.Path(root) / task / method / f"seed_{seed}"
  folder.mkdir(parents=True)
  rng = np.random.default_rng(seed)
  errors = np.clip(rng.beta(2, 6, 60) - shift, 0, 1)
  flags = finished_runs.flags_of(method)
  theta = flags.get("theta")
  training = {"train_loss": 0.5, "tail_size": 50, "cohort_size": 100}
  rows = [
    {
      "round": number,
      **({"threshold": rng.normal() if number else None} if theta else {}),
      **(training if number else {}),
      **({name: rng.random() for name in _EVALUATED} if number % 10 == 0 else {}),
    }
    for number in range(0 if num_rounds is None else num_rounds + 1)
  ]
  if rows:
    pd.DataFrame(rows).to_csv(folder / "rounds.csv", index=False)
  is_standin = task.endswith("_standin")
  # No task of the paper, whose comparisons are answered otherwise.
  name = {"synthetic": "tiny"}.get(task, task.removesuffix("_standin"))
  flags = {"task": name, "theta": 1, **flags, "seed": seed}
  flags |= {"learning_rate": 0.1, **({"data": "standin"} if is_standin else {})}
  lines = [*(f"--{name}={value}" for name, value in flags.items()), "--noverbose", ""]
  (folder / "flags.txt").write_text("\n".join(lines))
  manifest = {"versions": {"numpy": "1.25.2"}, "started": f"2024-01-0{seed + 1}"}
  atomic_files.write_json(folder / "manifest.json", {**manifest, "seconds_per_round": 0.5 + seed})
  clients = {
    "client_id": [f"client_{index}" for index in range(60)],
    "num_examples": 100 + 7 * sizes * np.arange(60),
    "loss": 2 * errors,
    "error": errors,
  }
  for split in ("test", "train"):
    run_files.write_clients(folder / f"{split}_clients.csv", clients)
  if finished:
    described = {"error": distribution.describe(errors), "loss": distribution.describe(2 * errors)}
    metrics = {"test": described, "train": {"loss": {"mean": 0.7 + 0.01 * seed}}}
    atomic_files.write_json(folder / "metrics.json", metrics)
  return errors


def write(root, task="synthetic"):
  """Writes the report of a task; returns its files."""
  return page.write(comparison.report(root, task), pathlib.Path(root, task))


def csv_rows(paths):
  with open(paths["csv"], newline="", encoding="utf-8") as stream:
    return {(row["method"], row["metric"]): row for row in csv.DictReader(stream)}
