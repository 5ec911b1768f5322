"""The findings of an audit: the budget that was spent, and what contradicts the claim."""

from collections.abc import Mapping
import dataclasses
import os
import pathlib

from privacy import accounting
from privacy import ledger as ledger_lib
from privacy import server as server_lib
from privacy import statements
from privacy.audit import agreement
from privacy.audit import flags as flags_lib
from privacy.audit import results as results_lib
from privacy.evaluation import entries


@dataclasses.dataclass(frozen=True)
class Audit:
  """The findings of an audit.

  Attributes:
    ledger: The folder's ledger.
    rounds: The content of `rounds.csv`.
    num_rounds: The number of rounds that is accounted for.
    spent: The cost of these rounds.
    epsilon_rdp: Their cost by RDP; None where that does not apply.
    server: Their cost for a client against the server.
    epsilon_planned: The cost of all planned rounds.
    failures: Sentences that contradict the claim; empty if it holds.
    notes: Further remarks, in sentences.
    guarantee: What epsilon is about, in sentences by name that follow from ledger and flags.
    not_covered: The limits of the guarantee, likewise.
  """

  ledger: ledger_lib.Ledger
  rounds: results_lib.Rounds
  num_rounds: int
  spent: accounting.Spent
  epsilon_rdp: float | None
  server: server_lib.ServerSpent
  epsilon_planned: float
  failures: tuple[str, ...]
  notes: tuple[str, ...]
  guarantee: Mapping[str, str]
  not_covered: Mapping[str, str]

  @property
  def holds(self) -> bool:
    """Whether the claim holds."""
    return not self.failures


def audit_files(folder: str | os.PathLike[str]) -> Audit:
  """Recomputes the budget of a run, finished or not, from its folder; other folders are refused.

  Args:
    folder: The folder of a private run, OUTPUT_DIR/TASK/METHOD/seed_S.

  Returns:
    The findings: what the rounds have cost, and what contradicts the claim.

  Raises:
    ValueError: If there is no such folder, it is not that of a private run, the run is of a version
      before 0.4, or a file of it cannot be read.
  """
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    raise ValueError(f"Found no folder {os.fspath(folder)!r}; expected that of a private run.")
  flags = flags_lib.read(folder)
  ledger = results_lib.read_ledger(folder)
  results = results_lib.read(folder, has_begun=ledger.rounds_done > 0)
  wrong_evaluations, costs = entries.audit(folder, ledger, results.manifest or {})
  release, delta = ledger.release, ledger.claim["delta"]
  num_rounds = max(results.num_rounds, ledger.rounds_done)
  accountant = accounting.Accountant(release, delta, ledger.accounting)
  spent = accountant.spent(num_rounds)
  planned = accountant.spent(max(num_rounds, ledger.num_rounds_planned))
  return Audit(
    ledger=ledger,
    rounds=results.rounds,
    num_rounds=num_rounds,
    spent=spent,
    epsilon_rdp=accounting.epsilon_or_none(release, num_rounds, delta, accounting.RDP),
    server=server_lib.server_epsilon(release, num_rounds, delta),
    epsilon_planned=planned.epsilon,
    failures=(
      *_failures(ledger, spent),
      *_wrong_sentences(ledger, flags),
      *_exposing_starts(ledger, flags),
      *flags_lib.contradictions(flags, ledger),
      *flags_lib.wrong_mechanisms(ledger),
      *flags_lib.wrong_coefficients(flags, ledger),
      *agreement.contradictions(ledger, flags, results),
      *wrong_evaluations,
    ),
    notes=(*_notes(ledger, results, spent, planned), *costs),
    guarantee=statements.guarantee(release, flags),
    not_covered=statements.not_covered(release, ledger.starts, flags),
  )


def _failures(ledger: ledger_lib.Ledger, spent: accounting.Spent) -> list[str]:
  """Returns how the ledger contradicts itself, and the cost of the rounds that were done."""
  release, delta, claim = ledger.release, ledger.claim["delta"], ledger.claim["epsilon"]
  tolerance, failures = flags_lib.TOLERANCE, []
  if claim is not None and spent.epsilon > claim * (1.0 + tolerance):
    failures.append(
      f"{spent.num_rounds} rounds cost epsilon = {spent.epsilon:.6g}, more than the claimed"
      f" {claim:.6g}."
    )
  recorded = accounting.epsilon(release, ledger.rounds_done, delta, ledger.accounting).epsilon
  if ledger.epsilon_spent < recorded * (1.0 - tolerance):
    failures.append(
      f"The ledger says that {ledger.rounds_done} rounds spent epsilon ="
      f" {ledger.epsilon_spent:.6g}; it is {recorded:.6g}."
    )
  server = server_lib.server_epsilon(release, ledger.num_rounds_planned, delta).epsilon
  of_server = ledger.epsilon_server
  is_right = of_server is server
  if of_server is not None and server is not None:
    is_right = of_server >= server * (1.0 - tolerance)
  if not is_right:
    texts = ["without any" if cost is None else f"{cost:.6g}" for cost in (of_server, server)]
    failures.append(
      f"The ledger says that the run costs epsilon = {texts[0]} against the server; it is"
      f" {texts[1]}."
    )
  return failures


def _wrong_sentences(ledger: ledger_lib.Ledger, flags: Mapping[str, str]) -> list[str]:
  """Returns that a ledger's sentences are others than follow from its numbers and the flags.

  Those of an earlier wording are compared by their names.
  """
  expected = (
    statements.guarantee(ledger.release, flags),
    statements.not_covered(ledger.release, ledger.starts, flags),
  )
  found = (ledger.guarantee, ledger.not_covered)
  is_right = list(map(list, found)) == list(map(list, expected))
  if ledger.wording == statements.WORDING:
    is_right = is_right and found == expected
  if is_right:
    return []
  return ["The ledger's sentences are not those that follow from its numbers and the run's flags."]


def exposing(ledger: ledger_lib.Ledger, task: str) -> list[statements.StartingModel]:
  """Returns the starts without privacy that may have seen clients of a run's task.

  What such a run has released may reveal all data of its training clients, and so may a model that
  starts from it: for a client of both no epsilon is finite, whatever the later run spends.
  """
  return [
    start
    for start in ledger.starts
    if start.epsilon is None and (start.same_population or statements.may_share(start.task, task))
  ]


def _exposing_starts(ledger: ledger_lib.Ledger, flags: Mapping[str, str]) -> list[str]:
  return [
    f"The run starts from {start.run}, which was trained without privacy on what may be the same"
    " clients: for a client of both no epsilon is finite."
    for start in exposing(ledger, flags.get("task", ""))
  ]


def _notes(
  ledger: ledger_lib.Ledger,
  results: results_lib.RunRecords,
  spent: accounting.Spent,
  planned: accounting.Spent,
) -> list[str]:
  """Returns what is no contradiction, and worth to know."""
  rounds, claim = results.rounds, ledger.claim["epsilon"]
  notes = []
  if claim is None:
    notes.append("The run claims no limit on epsilon.")
  elif spent.epsilon <= claim * (1.0 + flags_lib.TOLERANCE) < planned.epsilon:
    notes.append(
      f"All {planned.num_rounds} planned rounds would cost epsilon = {planned.epsilon:.6g}, more"
      f" than the claimed {claim:.6g}."
    )
  if rounds.repeated:
    notes.append(
      f"{rounds.repeated} rows of rounds.csv repeat a round after a resumption. They count once,"
      " since the same noise key draws the same cohort and noise."
    )
  if rounds.missing:
    notes.append(
      f"{rounds.missing} of the {rounds.done} rounds have no row in rounds.csv, as where an earlier"
      " copy was brought back. They count as the others do."
    )
  if rounds.aborted:
    notes.append(f"{rounds.aborted} rounds were aborted. They count as the others do.")
  if ledger.wording != statements.WORDING:
    notes.append(
      f"The ledger's sentences have wording {ledger.wording}, not today's {statements.WORDING}:"
      " their names are compared, and not their texts."
    )
  warning = accounting.delta_warning(spent.delta, ledger.release.cohort.population)
  if warning is not None:
    notes.append(warning)
  return notes
