"""The answers of the commands in `account`: values for JSON, and lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import json
import textwrap
from typing import Any

from privacy import audit
from privacy import parts
from privacy import releases
from privacy.settings import command_line

_WIDTH = 100
_LABEL_WIDTH = 34

# The labels of values, and the notes behind them.
_ROWS = {
  "effective_noise_multiplier": ("noise multiplier, together", "z_eff"),
  "bands": ("bands of noise over rounds", "b"),
  "separation": ("distance of a client's rounds", "s"),
  "participations": ("most rounds of a client", "k"),
  "sensitivity": ("sensitivity of all rounds", ""),
  "noise_multiplier": ("noise over a round's sensitivity", "z"),
  "stddev": ("noise over that of all rounds", "z / Delta"),
  "running_sums_noise": ("noise of running sums of updates", "RMS, in clip norms"),
  "sigma_update": ("noise on the sum of updates", "sigma_W = z_w C"),
  "epsilon": ("epsilon, recomputed", ""),
  "epsilon_one_round": ("  one round", ""),
  "epsilon_planned": ("  after all planned rounds", ""),
  "epsilon_rdp": ("  by RDP", ""),
  "epsilon_pld": ("  by PLD", ""),
  "epsilon_server": ("epsilon against the server", ""),
  "epsilon_server_one_round": ("  one round", ""),
  "epsilon_real_poisson": ("  really, Poisson cohorts", "zero-out"),
  "rho": ("  rho of zCDP", "of noise that does not end"),
  "rounds_aborted": ("rounds aborted", ""),
  "num_shares": ("shares of noise, most clients", "K"),
  "scale": ("histogram's scale", "c"),
  "local_stddev": ("noise of a client, scaled", "sigma_local"),
  "bits_per_client": ("bits per client and round", ""),
  "bits_per_update": ("bits per update", ""),
}
# The texts of None where that is not "none".
_WITHOUT = {
  "epsilon_rdp": "not computed",
  "epsilon_pld": "not computed",
  "rounds_aborted": "not recorded",
}


@dataclasses.dataclass(frozen=True)
class CommandAnswer:
  """An answer."""

  values: Mapping[str, Any]  # What programs get, in the order of the JSON object.
  lines: Sequence[str]  # What people get.
  holds: bool = True  # Whether the claims hold that were audited, if any.

  def printed(self, as_json: bool) -> str:
    """Returns the text to print."""
    if as_json:
      return json.dumps(self.values, indent=2)
    return "\n".join(map(command_line.one_line, self.lines))


def as_text(value: float | None, without: str = "none") -> str:
  """Formats a whole number with all its digits, any other number with five."""
  if value is None:
    return without
  return str(value) if isinstance(value, int) else f"{value:.5g}"


def as_delta(delta: float) -> str:
  """Formats a delta with four digits, or with all of them where four would say 1."""
  return repr(delta) if delta > 0.9999 else f"{delta:.4g}"


def row(label: str, text: str, note: str = "") -> str:
  """Returns a row of an answer's text."""
  return f"  {label:<{_LABEL_WIDTH}}{text}{note and f'  ({note})'}"


def rows(values: Mapping[str, Any], *names: str) -> list[str]:
  """Returns the rows of those values that are there."""
  labels = {**_ROWS, **{kind.flag: (f"  {kind.label}", kind.symbol) for kind in parts.kinds()}}
  without = dict(_WITHOUT)
  if values.get("server", "").endswith("it is trusted."):
    without |= dict.fromkeys(("epsilon_server", "epsilon_server_one_round"), "none; it is trusted")
  return [
    row(labels[name][0], as_text(values[name], without.get(name, "none")), labels[name][1])
    for name in names
    if name in values
  ]


def noise_multipliers(release: releases.Release) -> dict[str, float | None]:
  """Returns z of a release's parts; of parts that it lacks, those always said are None."""
  always = {kind.flag: None for kind in parts.kinds() if kind.is_always_said}
  return {**always, **release.noise_multipliers}


def noise_rows(values: Mapping[str, Any]) -> list[str]:
  """Returns the rows of the noise of a release."""
  return rows(values, "effective_noise_multiplier", *(kind.flag for kind in parts.kinds()))


def paragraphs(title: str, sentences: Sequence[str]) -> list[str]:
  """Lists sentences below a title; returns nothing for none."""
  if not sentences:
    return []
  lines = ["", title]
  for sentence in sentences:
    lines.extend(textwrap.wrap(sentence, _WIDTH, initial_indent="  - ", subsequent_indent="    "))
  return lines


def explanations(values: Mapping[str, Any]) -> list[str]:
  """Returns the paragraphs on the meaning of the numbers."""
  return [
    *paragraphs("What epsilon is about:", values["guarantee"]),
    *paragraphs("Against the server:", [values["server"]]),
    *paragraphs("Outside the guarantee:", values["not_covered"]),
  ]


def of_audit(audited: audit.Audit, folder: str) -> CommandAnswer:
  """Returns the answer of `audit` for one run: whether its claim holds, and its costs."""
  entry, release, spent = audited.ledger, audited.ledger.release, audited.spent
  values = dict(
    command="audit",
    folder=folder,
    holds=audited.holds,
    failures=audited.failures,
    notes=audited.notes,
    accounting=entry.accounting,
    claim=entry.claim,
    num_rounds_planned=entry.num_rounds_planned,
    rounds_done=audited.num_rounds,
    rounds_in_csv=audited.rounds.done,
    rounds_in_ledger=entry.rounds_done,
    rounds_aborted=audited.rounds.aborted,
    **noise_multipliers(release),
    effective_noise_multiplier=release.effective_noise_multiplier,
    epsilon=spent.epsilon,
    epsilon_rdp=audited.epsilon_rdp,
    epsilon_planned=audited.epsilon_planned,
    rdp_order=spent.rdp_order,
    delta=spent.delta,
    epsilon_server=audited.server.epsilon,
    server_participations=audited.server.participations,
    server=audited.server.explanation,
    guarantee=list(audited.guarantee.values()),
    not_covered=list(audited.not_covered.values()),
  )
  claimed, delta = entry.claim["epsilon"], entry.claim["delta"]
  lines = [
    f"{folder}: The claim {'holds' if audited.holds else 'does NOT hold'}.",
    row("claimed epsilon", as_text(claimed), f"delta = {as_delta(delta)}"),
    row("rounds done, of those planned", f"{audited.num_rounds} of {entry.num_rounds_planned}"),
    *rows(values, "rounds_aborted"),
    *noise_rows(values),
    *rows(values, "epsilon", "epsilon_rdp", "epsilon_planned", "epsilon_server"),
    *paragraphs("Why it does not hold:", audited.failures),
    *paragraphs("Notes:", audited.notes),
    *explanations(values),
  ]
  return CommandAnswer(values, lines, audited.holds)
