"""Personal models on the page of the bench: where they help, and whether fairness adds to them."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from benchmarks.tailbench import judging
from benchmarks.tailbench import plan
from benchmarks.tailbench import results as results_lib
from benchmarks.tailbench import significance
from tff_superquantile.experiments.evidence import bootstrap
from tff_superquantile.experiments.evidence import evidence
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units

# What `results.PERSONAL` compares, in headings and in a sentence.
_PERSONAL = {
  "gain": ("kept − shared", "what clients keep of FedAvg’s model and their own"),
  "after": (f"{plan.JUDGED} first", f"{plan.JUDGED} in FedAvg’s place before that"),
  "own": ("own − kept", "a client’s own model alone, in its place,"),
}
_PERSONAL_NOTE = (
  "Each test client tunes the model on half of its rows, for as many epochs as it chooses there (in"
  " rows of docs/tailbench.csv but FEMNIST’s, for at most ten, which validation clients chose), and"
  " keeps it if it is better there by cross-fitting; all are measured on its other rows. Own models"
  " are fitted to that half from nothing, for up to 100 clients with 20 rows or more. Changes of"
  " p90 are in the unit of the measure, of the error where that is no mean over rows, with 95 %"
  " intervals; bold is beyond chance after Holm’s correction over the data sets. Disagreement is"
  " known before training, the share of a pooled fit’s error that fits of training clients’ own do"
  " not have."
)


def blocks(judged: judging.Judged, method: str) -> list[page.Block]:
  """Lays out what personal models change, and says where, and whether disagreement tells it."""
  fed_avg = judged.of(plan.FED_AVG)
  fed_avg = fed_avg[fed_avg["gain_p90_change"].notna()]
  if fed_avg.empty:
    return []
  sources_of = {"gain": fed_avg, "after": judged.of(method).reindex(fed_avg.index), "own": fed_avg}
  changes = {
    of: rows[[f"{of}_p90_{p}" for p in results_lib.ENDS]] for of, rows in sources_of.items()
  }
  sure, texts = {}, []
  for of, rows in changes.items():
    sizes = fed_avg["num_test_clients"]
    p_values = [
      bootstrap.p_value(change, low, high, int(n))
      for (change, low, high), n in zip(rows.to_numpy(), sizes)
    ]
    sure[of] = bootstrap.holm(p_values) < significance.LEVEL
    signs = np.sign(rows.iloc[:, 0])[sure[of]]
    counts = f"lowers p90 beyond chance on {(signs < 0).sum()}, raises it on {(signs > 0).sum()}"
    texts.append(f"{_PERSONAL[of][1]} {counts} of {rows.iloc[:, 0].notna().sum()}")
  rows = []
  for place, (data_set, row) in enumerate(fed_avg.iterrows()):
    measure = row["measure"] if row["measure"] in evidence.MEANS_OVER_ROWS else "error"
    error = "rmse" if row["kind"] == "number" else "misclassification"
    unit = units.of_measure(measure, units.of_error(error))
    levels = (row["kept_p90"] - row["gain_p90_change"], row["kept_p90"])
    seeds = tables.Cell(f"{row['num_personal_seeds']:.0f}")
    cells = [tables.Cell(unit.symbol), seeds, *(tables.Cell(unit.number(p90)) for p90 in levels)]
    for of, of_changes in changes.items():
      change, low, high = of_changes.iloc[place]
      ends = f"({unit.number(low, sign=True)} to {unit.number(high, sign=True)})"
      number = unit.number(change, sign=True)
      cell = tables.Cell(number, ends, bool(sure[of][place]))
      cells.append(tables.Cell("–") if math.isnan(change) else cell)
    share = row["disagreement"]
    cells.append(tables.Cell("–" if math.isnan(share) else tables.number(share, 2, sign=True)))
    rows.append(tables.Row(str(data_set).replace("_", " "), cells))
  relative = fed_avg["gain_p90_change"] / (fed_avg["kept_p90"] - fed_avg["gain_p90_change"])
  known = fed_avg["disagreement"].notna()
  test = stats.spearmanr(relative[known], fed_avg["disagreement"][known])
  text = (
    f"Personal models: {'; '.join(texts)} data sets. Over {known.sum()} of them the rank"
    " correlation of disagreement with the relative change after FedAvg is"
    f" {tables.number(test.statistic, 2, sign=True)} (p = {test.pvalue:.2g})."
  )
  titles = [title for title, _ in _PERSONAL.values()]
  headings = ["data set", "unit", "seeds", "shared p90", "kept p90", *titles, "disagreement"]
  table = tables.Table(f"Personal models, {judged.words}", headings, rows, _PERSONAL_NOTE)
  return [page.Text(text), table]
