"""Writes down what an exported model is, whom it serves, and what it promises (Mitchell 2019).

The card of a private run has nothing of its training clients but what `privacy.json` covers. It
has exact errors of test clients, who are outside of the guarantee, as the run's own files do. It
compares with no other run, as a report does: that one's model is a release of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import hashlib
from typing import Any

import numpy as np

from privacy import ledger as ledger_lib
from tff_superquantile import measures
from tff_superquantile import superquantile
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.evidence import in_reports
from tff_superquantile.experiments.evidence import paired
from tff_superquantile.experiments.export import formats
from tff_superquantile.experiments.export import front_matter
from tff_superquantile.experiments.pages import page
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.pages import units
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.report import sizes
from tff_superquantile.experiments.run import run_folder

_PERCENTILES = (10, 50, 90)
_TAIL = 0.1
_PREDICTION = "prediction, in the unit of the labels"
_SCALE = "and the network predicts labels of mean 0 and standard deviation 1"
_PROBABILITIES = (
  "logits, the scores of the network, and probabilities, a column a class in the order of"
  " labels.txt"
)
_NO_GUARANTEE = (
  "None: training had no budget. The model may reveal something of its training clients to whoever"
  " has it."
)
_TEST_CLIENTS = (
  "The errors in this card are exact numbers of the test clients, who are not among the training"
  " clients. They are outside of the guarantee: leave them out where the test clients want one, or"
  " release them by tff_superquantile.experiments.private_evaluation."
)


def build(run: run_folder.Run, *, raw: str, labels: Sequence[str], example: str = "") -> str:
  """Returns the card of a finished run's model, in Markdown."""
  leading = grouped.by_method([run]).leading
  clients = run.clients("test")
  errors = clients.get(leading.name, np.array([]))
  is_known = np.isfinite(errors)  # A client may have no value of a measure.
  errors, client_sizes = errors[is_known], clients.get("num_examples", np.array([]))[is_known]
  use = {"Input": raw, "Output": _outputs(bool(labels))}
  if labels:
    use["Labels"] = ", ".join(map(repr, labels))
  blocks: list[page.Block] = [
    tables.listing(_facts(run), "How it was made"),
    tables.listing(use, "How to use it"),
  ]
  if len(errors):
    pooled = run.metrics.get("test", {}).get("pooled", {})
    blocks.append(_by_size(leading, client_sizes, errors))
    for title, entries in (
      ("Measures of the test clients", _measures(run, clients, pooled)),
      ("Classes of the test clients' examples", _classes(labels, pooled)),
      ("The constant answer, for comparison", _of_constant(run)),
    ):
      blocks += [tables.listing(entries, title)] if entries else []
  blocks.append(tables.Table("Intended use and limits", [], _limits(len(errors)), kind="words"))
  blocks += _privacy(run)
  card = page.Page(
    name=formats.CARD,
    title="Model card",
    question=f"{run.task_title}, {run.method.label}",
    scope=f"Seed {run.seed}",
    summary=_summary(errors, leading),
    blocks=blocks,
  )
  text = front_matter.build(run) + page.render(card, "md")
  return text if not example else f"{text}\n## Example\n\n```python\n{example}```\n"


def _outputs(has_classes: bool) -> str:
  """Says what an exported model computes, and which formats have something else in its place."""
  outputs = [_PROBABILITIES if has_classes else _PREDICTION]
  for export in formats.FORMATS.values():
    if export.instead and has_classes:
      outputs.append(f"{export.file} has neither, but {export.instead}")
    elif export.instead:
      outputs.append(f"{export.file} has none, but {export.instead}, {_SCALE}")
  return "; ".join(outputs)


def _summary(errors: np.ndarray, leading: units.Leading) -> str:
  """Says the leading measure of the test clients [n]."""
  unit = leading.unit
  if not len(errors):
    return "The run left no errors of test clients."
  begin = (
    f"On {len(errors)} test clients, who never trained, the {leading.words} is"
    f" {unit.text(errors.mean())} on average"
  )
  if len(errors) < paired.FEW_CLIENTS:
    return f"{begin}, and {unit.text(errors.max())} for the worst of them."
  p90 = superquantile.percentile(errors, 90)
  tail = superquantile.superquantile(errors, _TAIL)
  return (
    f"{begin}, at most {unit.text(p90)} for nine of ten clients, and {unit.text(tail)} on average"
    " over the worst-off tenth."
  )


def _facts(run: run_folder.Run) -> dict[str, Any]:
  """Returns facts of the run's flags and manifest by name."""
  config, manifest, flags = run.config, run.manifest, run.flags
  is_standin = config is not None and config.task.is_standin
  clients = manifest.get("num_clients", {})
  theta = run.method.theta
  versions = manifest.get("versions", {})
  facts = {
    "Task": run.task_title,
    "Data": "generated, a stand-in for the real data" if is_standin else "the task's own",
    "Simulated clients": "" if config is None or not config.task.partition else config.task.about,
    "Data file": flags.get("data_dir", "").rpartition("/")[2],
    "Digest of the data": manifest.get("data") or "",
    "Clients": ", ".join(f"{number} {split}" for split, number in clients.items()),
    "Method": run.method.label,
    "theta": "none" if theta is None else f"{theta:g}",
    "Rounds": flags.get("num_rounds", ""),
    "Clients a round": flags.get("clients_per_round", ""),
    "Seed": run.seed,
    "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    "Git revision": manifest.get("git_revision", ""),
    "Weights": f"{run_folder.WEIGHTS} with SHA-256 {run.fingerprint}...",
  }
  return {name: value for name, value in facts.items() if value != ""}


def _distribution(unit: units.Unit, values: np.ndarray) -> str:
  """Describes clients' values [n] in a sentence, those that are finite."""
  known = values[np.isfinite(values)]
  if not len(known):
    return "no client has a value"
  if len(known) < paired.FEW_CLIENTS:
    tail = f"{unit.text(known.max())} for the worst client"
  else:
    levels = {f"p{q}": superquantile.percentile(known, q) for q in _PERCENTILES}
    levels["worst 10 %"] = superquantile.superquantile(known, _TAIL)
    tail = ", ".join(f"{name} {unit.text(level)}" for name, level in levels.items())
  return f"{unit.text(known.mean())} on average, {tail}, of {len(known)} clients"


def _measures(
  run: run_folder.Run, clients: Mapping[str, np.ndarray], pooled: Mapping[str, Any]
) -> dict[str, str]:
  """Returns every measure of clients, and of all their examples together."""
  by_measure = {}
  for name in (name for name in measures.NAMES if name in clients):
    unit = units.of_measure(name, units.of_run(run))
    together = f"; of all examples together {unit.text(pooled[name])}" if name in pooled else ""
    by_measure[f"{unit.quantity} in {unit.name}"] = _distribution(unit, clients[name]) + together
  return by_measure


def _classes(labels: Sequence[str], pooled: Mapping[str, Any]) -> dict[str, str]:
  """Returns the share and the recall of each class of the test clients' examples."""
  recalls = pooled.get("recall", {})
  return {
    labels[int(c)] if labels else c: f"{units.PERCENT.text(share)} of the examples, of which"
    f" {units.PERCENT.text(recalls[c])} are found (recall)"
    for c, share in pooled.get("share", {}).items()
  }


def _of_constant(run: run_folder.Run) -> dict[str, str]:
  """Returns what the constant answer is and gives, where there are reference models."""
  references = in_reports.find([run]).of_seed.get(run.seed)
  if references is None:
    return {}
  constant = references.models[kept.CONSTANT]
  return {"Answer": constant.description, **_measures(run, constant.clients, {})}


def _limits(num_clients: int) -> list[tables.Row]:
  """Says what the model is for, and what its numbers do not show."""
  sentences = [
    "It is for new clients that are like its test clients: same columns, same way of measuring,"
    " same labels. Nothing here was measured on others, or later.",
    "It was trained for research on federated learning. Whether it may decide about people is for"
    " those who use it to examine, by groups that this card does not know.",
    "An error counts all mistakes alike. Where a class is rare, compare it with the constant"
    " answer, and look at the recall of each class, before use.",
    f"The numbers are of {num_clients} test clients, a percentile of the few at its end.",
  ]
  return [tables.Row(sentence, []) for sentence in sentences]


def _by_size(leading: units.Leading, client_sizes: np.ndarray, errors: np.ndarray) -> tables.Table:
  """Describes the mean errors of small, middling and large clients."""
  terciles = sizes.terciles(client_sizes, client_sizes)
  rows = []
  for tercile in np.unique(terciles):
    its = terciles == tercile
    cells = str(its.sum()), leading.unit.number(errors[its].mean())
    rows.append(tables.Row(sizes.span(client_sizes[its]), [*map(tables.Cell, cells)]))
  title = f"Mean {leading.words} in {leading.unit.name} by a client's number of examples"
  return tables.Table(title, ["examples", "clients", "this model"], rows)


def _privacy(run: run_folder.Run) -> list[page.Block]:
  """States the run's guarantee, or that there is none."""
  path = run.path / ledger_lib.FILE_NAME
  if run.config is None or not run.config.is_private:
    return [tables.listing({"Guarantee": _NO_GUARANTEE}, "Privacy")]
  if not path.is_file():
    raise ValueError(
      f"Found no {ledger_lib.FILE_NAME} in the private run {run.path}; expected its ledger: bring"
      " it back, as nobody knows otherwise what the model has cost."
    )
  content = path.read_bytes()
  ledger = ledger_lib.Ledger.from_json(content.decode("utf-8", errors="replace"))
  spent = "no bound" if ledger.epsilon_spent is None else f"{ledger.epsilon_spent:.4g}"
  facts = {
    "Guarantee": f"(epsilon, delta)-differential privacy of a client, epsilon = {spent}, delta ="
    f" {ledger.claim['delta']:.3g}, after {ledger.rounds_done} rounds",
    "Ledger": f"{ledger_lib.FILE_NAME} with SHA-256 {hashlib.sha256(content).hexdigest()};"
    " superquantile account audit RUN_DIR computes the numbers again",
  }
  gaps = (f"Not covered: {gap}" for gap in ledger.not_covered.values())
  rows = [
    tables.Row(sentence, []) for sentence in (*ledger.guarantee.values(), *gaps, _TEST_CLIENTS)
  ]
  return [
    tables.listing(facts, "Privacy"),
    tables.Table("What it is about", [], rows, kind="words"),
  ]
