"""The answers of the commands in `account`: one dataclass each, printed as JSON or as text.

A field with a row of the text has a label, and perhaps a note behind its value. Fields that do not
apply to an answer keep the value `ABSENT` and are left out of both.
"""

import abc
from collections.abc import Sequence
import dataclasses
import json
import textwrap
from typing import Any

from privacy import accounting
from privacy import audit
from privacy import ledger
from privacy import parts
from privacy import releases
from privacy import statements

_WIDTH = 100
_LABEL_WIDTH = 34

ABSENT: Any = object()


def labelled(label: str = "", note: str = "", without: str = "none") -> Any:
  """Returns a field with its row's label, the note behind the value, and the text for None."""
  metadata = dict(label=label, note=f"  ({note})" if note else "", without=without)
  return dataclasses.field(default=ABSENT, metadata=metadata)


def as_text(value: float | None, without: str = "none") -> str:
  """Formats a whole number with all its digits, any other number with five."""
  if value is None:
    return without
  return str(value) if isinstance(value, int) else f"{value:.5g}"


def row(label: str, text: str) -> str:
  """Returns a row of an answer's text."""
  return f"  {label:<{_LABEL_WIDTH}}{text}"


def paragraphs(title: str, sentences: Sequence[str]) -> list[str]:
  """Lists sentences below a title; returns nothing for none."""
  if not sentences:
    return []
  found = ["", title]
  for sentence in sentences:
    found.extend(textwrap.wrap(sentence, _WIDTH, initial_indent="  - ", subsequent_indent="    "))
  return found


def _explanations(guarantee: Sequence[str], server: str, not_covered: Sequence[str]) -> list[str]:
  """Returns the paragraphs on the meaning of the numbers."""
  return [
    *paragraphs("What epsilon is about:", guarantee),
    *paragraphs("Against the server:", [server]),
    *paragraphs("Outside the guarantee:", not_covered),
  ]


def _without_server(explanation: str) -> str:
  """Returns the text in place of an epsilon against the server."""
  return "none; it is trusted" if explanation.endswith("it is trusted.") else "none"


class Noise(dict[str, float | None]):
  """The noise multipliers of a release's parts, by their names, each an entry of an answer."""

  @classmethod
  def of(cls, release: releases.Release) -> "Noise":
    """Returns those of a release; of parts that it lacks, those that are not recent are None."""
    every = {kind.flag: None for kind in parts.KINDS if not kind.is_recent}
    return cls({**every, **release.noise_multipliers})

  def words(self) -> str:
    """Returns the multipliers that there are, with their symbols."""
    symbols = {kind.flag: kind.symbol for kind in parts.KINDS}
    return ", ".join(f"{symbols[name]} = {z:.5g}" for name, z in self.items() if z is not None)

  def rows(self) -> list[str]:
    """Returns the rows of the text."""
    kinds = {kind.flag: kind for kind in parts.KINDS}
    return [
      row(f"  {kinds[name].label}", f"{as_text(z)}  ({kinds[name].symbol})")
      for name, z in self.items()
    ]


@dataclasses.dataclass(frozen=True)
class Answer(abc.ABC):
  """An answer whose fields are in the order of its JSON object."""

  def to_json(self) -> str:
    """Returns the answer as one JSON object."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      values.update(value if isinstance(value, Noise) else {field.name: value})
    return json.dumps({k: v for k, v in values.items() if v is not ABSENT}, indent=2)

  @abc.abstractmethod
  def to_text(self) -> str:
    """Returns the answer for people."""

  def rows(self, *names: str, without: str | None = None) -> list[str]:
    """Returns the rows of the fields with these names, but for absent ones."""
    fields = {field.name: field.metadata for field in dataclasses.fields(self)}
    found = []
    for name in names:
      value, metadata = getattr(self, name), fields[name]
      if isinstance(value, Noise):
        found += value.rows()
      elif value is not ABSENT:
        text = as_text(value, without or metadata["without"])
        found.append(row(metadata["label"], text + metadata["note"]))
    return found


@dataclasses.dataclass(frozen=True)
class BudgetAnswer(Answer):
  """The answer of `calibrate` and `spend`: the noise of a run and its costs."""

  command: str
  accounting: str
  is_guarantee: bool
  population: int
  clients_per_round: float
  num_rounds: int
  delta: float
  sampling: str
  sampling_probability: float
  relation: str
  neighboring_relation: str
  threshold: str | None
  effective_noise_multiplier: float = labelled("noise multiplier, together", "z_eff")
  noise: Noise = ABSENT
  bands: int = labelled("bands of noise over rounds", "b")
  separation: int = labelled("distance of a client's rounds", "s")
  participations: int = labelled("most rounds of a client", "k")
  sensitivity: float = labelled("sensitivity of all rounds")
  running_sums_noise: float = labelled("noise of running sums of updates", "RMS, in clip norms")
  target_epsilon: float = ABSENT
  clip_norm: float = ABSENT
  sigma_update: float | None = labelled("noise on the sum of updates", "sigma_W = z_w C")
  epsilon: float = ABSENT
  epsilon_one_round: float = labelled("  one round")
  accountant: str = ABSENT
  epsilon_rdp: float | None = labelled("  by RDP", without="not computed")
  rdp_order: float | None = ABSENT
  epsilon_pld: float | None = labelled("  by PLD", without="not computed")
  rho: float = labelled("  rho of zCDP", "of noise that does not end")
  epsilon_server: float | None = labelled("epsilon against the server")
  epsilon_server_one_round: float | None = labelled("  one round")
  server_participations: int = ABSENT
  server: str = ABSENT
  noise_shares: str = ABSENT
  num_shares: int = labelled("shares of noise, most clients", "K")
  contacted_clients: float = ABSENT
  num_bins: int = ABSENT
  scale: int = labelled("histogram's scale", "c")
  local_stddev: float = labelled("noise of a client, scaled", "sigma_local")
  sigma_threshold: float = ABSENT
  modulus: int = ABSENT
  bits_per_entry: int = ABSENT
  bits_per_client: int = labelled("bits per client and round")
  num_parameters: int = ABSENT
  bits_per_update: int = labelled("bits per update")
  guarantee: Sequence[str] = ()
  not_covered: Sequence[str] = statements.NOT_COVERED
  warnings: Sequence[str] = ()
  plot: str = ABSENT

  def to_text(self) -> str:
    """Returns the answer for people."""
    run = f"{self.num_rounds} rounds of {self.clients_per_round:g} of {self.population} clients"
    cost = f"epsilon = {as_text(self.epsilon)} at delta = {self.delta:.4g}"
    lines = [
      f"{cost} for {run}."
      if self.target_epsilon is ABSENT
      else f"{self.noise.words()} for {cost} in {run}.",
      *paragraphs("Warning:", self.warnings)[1:],
      *self._epsilon_rows(),
      *self.rows("epsilon_one_round", "rho"),
      *self.rows(
        "epsilon_server", "epsilon_server_one_round", without=_without_server(self.server)
      ),
      "",
      *self.rows(
        "effective_noise_multiplier",
        "noise",
        "sigma_update",
        "scale",
        "local_stddev",
        *("bands", "separation", "participations", "sensitivity", "running_sums_noise"),
      ),
    ]
    if self.modulus is not ABSENT:
      lines.append(row("modulus", f"{self.modulus}, {self.bits_per_entry} bits  (M)"))
    lines += self.rows("bits_per_client", "bits_per_update", "num_shares")
    lines += _explanations(self.guarantee, self.server, self.not_covered)
    if self.plot is not ABSENT:
      lines += ["", f"Plot: {self.plot}"]
    return "\n".join(lines)

  def _epsilon_rows(self) -> list[str]:
    """Returns the rows of epsilon and of its bounds by other accountants."""
    by, beside = "by PLD", "epsilon_rdp"
    if self.accountant == accounting.GAUSSIAN:
      return [row("epsilon, all rounds", f"{as_text(self.epsilon)}  (one Gaussian mechanism)")]
    if self.accountant == accounting.RDP:
      by, beside = "by RDP", "epsilon_pld"
      if self.rdp_order is not None:
        by += f", order {self.rdp_order:g}"
    return [row("epsilon, all rounds", f"{as_text(self.epsilon)}  ({by})"), *self.rows(beside)]


@dataclasses.dataclass(frozen=True)
class AuditAnswer(Answer):
  """The answer of `audit`: whether a run's claim holds, and the costs of the run."""

  command: str
  folder: str
  holds: bool
  failures: Sequence[str]
  notes: Sequence[str]
  accounting: str
  claim: ledger.Claim
  num_rounds_planned: int
  rounds_done: int
  rounds_in_csv: int
  rounds_in_ledger: int
  rounds_aborted: int | None = labelled("rounds aborted", without="not recorded")
  noise: Noise = ABSENT
  effective_noise_multiplier: float = labelled("noise multiplier, together", "z_eff")
  epsilon: float = labelled("epsilon, recomputed")
  epsilon_rdp: float | None = labelled("  by RDP", without="not computed")
  epsilon_planned: float = labelled("  after all planned rounds")
  rdp_order: float | None = ABSENT
  delta: float = ABSENT
  epsilon_server: float | None = labelled("epsilon against the server")
  server_participations: int = ABSENT
  server: str = ABSENT
  guarantee: Sequence[str] = ()
  not_covered: Sequence[str] = statements.NOT_COVERED

  @classmethod
  def of(cls, found: audit.Audit, folder: str) -> "AuditAnswer":
    """Returns the answer for the findings of an audit in a folder."""
    entry, release = found.ledger, found.ledger.release
    return cls(
      command="audit",
      folder=folder,
      holds=found.holds,
      failures=found.failures,
      notes=found.notes,
      accounting=entry.accounting,
      claim=entry.claim,
      num_rounds_planned=entry.num_rounds_planned,
      rounds_done=found.num_rounds,
      rounds_in_csv=found.rounds.done,
      rounds_in_ledger=entry.rounds_done,
      rounds_aborted=found.rounds.aborted,
      noise=Noise.of(release),
      effective_noise_multiplier=release.effective_noise_multiplier,
      epsilon=found.spent.epsilon,
      epsilon_rdp=found.epsilon_rdp,
      epsilon_planned=found.epsilon_planned,
      rdp_order=found.spent.rdp_order,
      delta=found.spent.delta,
      epsilon_server=found.server.epsilon,
      server_participations=found.server.participations,
      server=found.server.explanation,
      guarantee=statements.guarantee(release),
      not_covered=statements.not_covered(entry.release, entry.starts, entry.version),
    )

  def to_text(self) -> str:
    """Returns the answer for people."""
    claimed, delta = self.claim["epsilon"], self.claim["delta"]
    lines = [
      f"{self.folder}: The claim {'holds' if self.holds else 'does NOT hold'}.",
      row("claimed epsilon", f"{as_text(claimed)}  (delta = {delta:.4g})"),
      row("rounds done, of those planned", f"{self.rounds_done} of {self.num_rounds_planned}"),
      *self.rows(
        "rounds_aborted",
        "effective_noise_multiplier",
        "noise",
        "epsilon",
        "epsilon_rdp",
        "epsilon_planned",
      ),
      *self.rows("epsilon_server", without=_without_server(self.server)),
      *paragraphs("Why it does not hold:", self.failures),
      *paragraphs("Notes:", self.notes),
      *_explanations(self.guarantee, self.server, self.not_covered),
    ]
    return "\n".join(lines)
