"""Heads a model card with what the Hugging Face Hub reads: YAML between two lines of `---`."""

from __future__ import annotations

from collections.abc import Mapping
import json
import math
from typing import Any

from tff_superquantile import measures
from tff_superquantile.experiments.run import run_folder

_RULE = "---\n"
_STATISTICS = {
  "mean": "mean over test clients",
  "p90": "90th percentile over test clients",
  "superquantile_90": "mean of the worst-off tenth of the test clients",
}


def build(run: run_folder.Run) -> str:
  """Returns the front matter of the card of a finished run.

  Numbers are those of metrics.json of test clients, which never trained. A private run's has none:
  the sentence that they are outside of its guarantee does not go with them to who reads YAML alone.
  Values are written as JSON, which YAML contains. The license is for those who publish to choose.
  """
  is_private = run.config is not None and run.config.is_private
  is_public = run.config is not None and not is_private
  tags = ["federated-learning", "tensorflow-federated", run.task]
  entries: dict[str, Any] = {
    "license": "unknown",
    "library_name": "tff_superquantile",
    "tags": [*tags, "differential-privacy"] if is_private else tags,
  }
  results = _results(run.metrics.get("test", {})) if is_public else {}
  if results:
    entries["metrics"] = list(results)
    task = {"type": "other", "name": run.task_title}
    dataset = {"type": run.task, "name": run.task_title, "split": "test"}
    metrics = [metric for of_measure in results.values() for metric in of_measure]
    result = {"task": task, "dataset": dataset, "metrics": metrics}
    entries["model-index"] = [{"name": run.method.label, "results": [result]}]
  lines = (f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in entries.items())
  return "".join([_RULE, *lines, _RULE, "\n"])


def _results(of_test: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
  """Returns the numbers of each measure, in the unit of metrics.json, as the Hub names them."""
  found = {}
  for name in (name for name in measures.NAMES if name in of_test):
    numbers = [
      {"type": name, "name": f"{name}, {words}", "value": value}
      for statistic, words in _STATISTICS.items()
      if (value := of_test[name].get(statistic)) is not None and math.isfinite(value)
    ]
    if numbers:
      found[name] = numbers
  return found


def without(card: str) -> str:
  """Returns a card without its front matter, as a model that was changed since needs another."""
  before, _, rest = card.removeprefix(_RULE).partition(f"\n{_RULE}\n")
  return rest if card.startswith(_RULE) and rest else card
