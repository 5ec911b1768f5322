"""States a privacy guarantee in named sentences: every number comes with them."""

from collections.abc import Mapping, Sequence
import dataclasses
import re

from privacy import cohorts
from privacy import parts
from privacy import releases

# The version of the sentences' wording, which a ledger keeps: an audit compares the names of a
# ledger's sentences with those that follow from its numbers, and the texts where they are of the
# same wording. Another number is for a release whose sentences differ from those of the last one.
WORDING = 1

_NOT_COVERED: Mapping[str, str] = {
  "public": "What is public: the number of training clients, the names of a table's columns, and"
  " all about the clients that are not trained on.",
  "choices": "Choosing hyperparameters, thresholds or models by results on the training clients:"
  " each run that is looked at spends its own budget.",
  "held_out": "Evaluation on held-out clients: their losses and errors are published without"
  " noise.",
  "noise_key": "The noise key: it must stay secret, since the noise and the cohorts follow from it,"
  " and serve one run only. The random seed is no secret.",
  "drawing": "How noise is drawn: in double precision, before it is rounded to the grid of the"
  " sums, and by Philox, which is no cryptographic generator.",
  "timing": "Timing: how long a round takes tells something of the size of its cohort.",
  "publications": "Anything else that is published about the cohorts, such as their exact sizes,"
  " who took part, how many were in the tail, or their exact metrics.",
}
# Of cohorts that all may know.
_OF_KNOWN_COHORTS: Mapping[str, str] = {
  "noise_key": "The noise key: it must stay secret, since the noise follows from it, and serve one"
  " run only. The random seed is no secret, and the cohorts follow from it.",
  "timing": "Timing: how long a round takes tells something of how many of its clients train, and"
  " on how much data.",
  "publications": "Anything else that is published about training clients, such as how many were in"
  " the tail, or their exact metrics.",
}
# Of cohorts in which others notice whether a client is in the list.
_OF_PUBLIC_LISTS: Mapping[str, str] = {
  "public": "What is public: who the training clients are, and not only their number: a client that"
  " a task leaves out of its list for want of data changes the cohorts of others. So are the names"
  " of a table's columns, and all about the clients that are not trained on.",
}
# The tasks of public data sets, whose clients are known not to be those of any other data.
_PUBLIC_TASKS = (
  *("emnist_convnet", "emnist_linear", "sent140_linear", "sent140_lstm"),
  *("shakespeare", "synthetic"),
)
_PUBLIC_FOLDER = re.compile(
  rf"({'|'.join(_PUBLIC_TASKS)})(_standin)?(_folds_[0-9]+)?(_held_out_[0-9.e-]+)?"
)
OTHER_DATA = "other data"
# By flag, the parts of private runs that the project has, and whose releases it accounts for.
OWN_PARTS: Mapping[str, frozenset[str]] = {
  "algorithm": frozenset(
    (
      *("fed_avg", "q_fed_avg", "tilted_erm", "prop_fair", "semi_vred", "gifair", "eagle"),
      "superquantile",
    )
  ),
  "threshold": parts.THRESHOLDS.own,
  "task": frozenset((*_PUBLIC_TASKS, "own")),
}
_LOSSES, _LOSS_GAPS = "losses", "loss gaps"
# By flag, the value with which a run of the project's own method judges its clients by loss gaps.
_BY_GAPS: Mapping[str, str] = {"algorithm": "eagle", "tail_by": "gap"}
_MEASURED_BESIDE = (
  "Other runs of the experiment (--exact_siblings=allowed): they may measure exactly the clients"
  " whom this run protects, or train on them without privacy. The guarantee is that of this run by"
  " itself; for a client of such a run all together have no finite epsilon."
)


def population(task: str) -> str | None:
  """Returns the data set of a task's clients: a public one, or `OTHER_DATA`.

  None stands for a task from outside that has the name of a public one, and may be either.

  Args:
    task: The name of a task, or of the folder of its runs.

  Returns:
    The data set's name, `OTHER_DATA` or None.
  """
  word = task.partition("_")[0]
  if _PUBLIC_FOLDER.fullmatch(task):
    return word
  return None if word in {name.partition("_")[0] for name in _PUBLIC_TASKS} else OTHER_DATA


def may_share(task: str, other: str) -> bool:
  """Returns whether tasks may have clients in common: only different data sets are known not to.

  Args:
    task: The name of a task, or of the folder of its runs.
    other: The same of another.

  Returns:
    False only if both are of known, different data sets.
  """
  populations = population(task), population(other)
  return None in populations or len(set(populations)) == 1


def from_outside(flags: Mapping[str, str]) -> list[str]:
  """Returns the flags of a private run that name parts that are not among the project's own.

  Args:
    flags: The run's flags, texts by name.

  Returns:
    The flags as --NAME=VALUE.
  """
  return [
    f"--{name}={flags[name]}"
    for name, own in OWN_PARTS.items()
    if flags.get(name) not in (None, *own)
  ]


def judged(flags: Mapping[str, str]) -> str:
  """Returns by what a run judges its clients: what its histogram or threshold is about.

  Of a method from outside, which says for itself by what it judges, the flags do not tell.

  Args:
    flags: The run's flags, texts by name; none without a run.

  Returns:
    The plural of a noun.
  """
  if any(flags.get(name) == value for name, value in _BY_GAPS.items()):
    return _LOSS_GAPS
  is_own = flags.get("algorithm") in (None, *OWN_PARTS["algorithm"])
  return _LOSSES if is_own else f"{_LOSSES} or {_LOSS_GAPS}"


def of_flags(flags: Mapping[str, str]) -> dict[str, str]:
  """States the limits of a guarantee that follow from the flags of its run.

  Args:
    flags: The run's flags, texts by name.

  Returns:
    Sentences by name, none for a run of the project's own parts.
  """
  sentences = {}
  if outside := from_outside(flags):
    sentences["outside"] = (
      f"Parts from outside the project ({', '.join(outside)}): that they release what is accounted"
      " for, and nothing else of a client, is the word of their authors."
    )
  if flags.get("exact_siblings") == "allowed":
    sentences["siblings"] = _MEASURED_BESIDE
  return sentences


@dataclasses.dataclass(frozen=True)
class StartingModel:
  """A finished run from whose model another run starts."""

  run: str  # The end of its folder, TASK/METHOD/seed_S.
  task: str  # The folder of its task.
  same_population: bool  # Whether both may have clients in common: `may_share`.
  fingerprint: str  # That of its weights.
  epsilon: float | None  # What it spent; None for a run without privacy.
  delta: float | None  # That of `epsilon`; None for a run without privacy.


def initial_weights(start: StartingModel) -> str:
  """States what the guarantee of a run leaves out of the run from which it starts.

  Args:
    start: The model from which the run starts.

  Returns:
    One or more sentences.
  """
  if start.epsilon is None and start.same_population:
    return (
      f"The initial weights: {start.run} was trained on the same population without privacy. The"
      " weights may reveal any data of its training clients, and so may all that follows from them:"
      " for a client of both runs there is no guarantee."
    )
  if start.epsilon is None:
    return (
      f"The initial weights: {start.run} was trained on another population ({start.task}) without"
      " privacy. The guarantee does not cover its training clients."
    )
  return (
    f"The initial weights: {start.run} has spent a budget of its own, epsilon ="
    f" {start.epsilon:.4g} at delta = {start.delta:.4g}, which is not included. For the clients"
    " that both runs share, the two epsilons add up, and so do the two deltas."
  )


def not_covered(
  release: releases.Release,
  starts: Sequence[StartingModel] = (),
  flags: Mapping[str, str] | None = None,
) -> dict[str, str]:
  """States the limits of the guarantee of a run with some flags.

  Args:
    release: What a round releases.
    starts: The models from which the run starts, the latest first.
    flags: The run's flags, texts by name; None without a run.

  Returns:
    Sentences by name, in the order of reading.
  """
  return {
    **{f"initial_weights_{i}": initial_weights(start) for i, start in enumerate(starts, 1)},
    **of_flags(flags or {}),
    **_NOT_COVERED,
    **(_OF_KNOWN_COHORTS if release.cohort.is_one_mechanism else {}),
    **(_OF_PUBLIC_LISTS if release.cohort.list_is_public else {}),
  }


def mechanism(release: releases.Release, flags: Mapping[str, str] | None = None) -> str:
  """States the releases of a round and their noise.

  Args:
    release: What a round releases, with its noise.
    flags: The run's flags, texts by name; None without a run.

  Returns:
    One or more sentences.
  """
  parts = [part.words(judged(flags or {})) for part in release.parts]
  together = ""
  if len(parts) > 1:
    together = (
      ", on the same cohort, together like one with noise multiplier"
      f" {release.effective_noise_multiplier:.4g}"
    )
  over_rounds = ""
  if len(release.coefficients) > 1:
    over_rounds = (
      f" The noise is correlated over rounds ({len(release.coefficients)} bands of a Toeplitz"
      " matrix), so that later noise cancels earlier noise; the multipliers are those of the"
      " independent noise from which it is made. All rounds together are one Gaussian mechanism."
    )
  return f"Gaussian mechanism in every round: {' and '.join(parts)}{together}.{over_rounds}"


def neighboring(release: releases.Release) -> str:
  """States the change of the data that the guarantee hides.

  Args:
    release: What a round releases.

  Returns:
    A sentence.
  """
  return f"Neighbouring data sets: {release.neighboring_relation}."


def sampling(release: releases.Release) -> str:
  """States the sampling of cohorts that the guarantee presumes.

  Args:
    release: What a round releases.

  Returns:
    A sentence.
  """
  m, n = release.cohort.expected, release.cohort.population
  if release.has_coin:
    return (
      f"Sampling: Poisson, with a private coin; each of {n} clients is contacted in each round with"
      f" probability {release.contact_probability:.4g}, independently, and adds its data with"
      f" probability {m / release.contacted:.4g}, by a coin that it tosses itself; nobody learns"
      " who does or how many."
    )
  return f"Sampling: {release.cohort.words()}"


def noise_shares(release: releases.Release) -> str | None:
  """States the sources of noise if clients make any; None if the server makes all of it.

  Args:
    release: What a round releases.

  Returns:
    One or two sentences, or None.
  """
  if release.num_shares is None:
    return None
  who = (
    "other clients, who send no data, make those that a cohort lacks"
    if isinstance(release.noise, cohorts.Helpers)
    else "the server makes those that a cohort lacks"
  )
  cut = ""
  if release.overflow_probability:
    cut = " Larger cohorts lose clients at random; epsilon includes what that changes."
  return (
    f"Noise of {release.num_shares} clients in every round, however many there are: each makes its"
    f" share, and {who}.{cut}"
  )


def secure_sums(release: releases.Release) -> str:
  """States which sums are secure, of integers with the clients' noise, and which are not.

  Args:
    release: What a round releases.

  Returns:
    A sentence.
  """
  summed = {part.summed: part.noise_by_server for part in release.parts if part.summed}
  secure, others = (
    " and ".join(word for word, by_server in summed.items() if by_server == is_other)
    for is_other in (False, True)
  )
  rest = f"; the server makes the noise of {others}" if others else ""
  return f"Secure sums of noisy integers: {secure or 'none'}{rest}."


def adversary(release: releases.Release) -> str:
  """States the adversary of the main number.

  Args:
    release: What a round releases.

  Returns:
    A sentence.
  """
  seen = [part.seen for part in release.ranked]
  known = "and the cohorts" if release.cohort.is_public else "but no cohort"
  return f"Adversary: whoever sees the {' and '.join(seen)} of all rounds, {known}."


def guarantee(release: releases.Release, flags: Mapping[str, str] | None = None) -> dict[str, str]:
  """States what epsilon is about.

  Args:
    release: What a round releases.
    flags: The run's flags, texts by name; None without a run.

  Returns:
    Sentences by name, in the order of reading.
  """
  sentences = {
    "mechanism": mechanism(release, flags),
    "neighboring": neighboring(release),
    "sampling": sampling(release),
    "noise_shares": noise_shares(release),
    "adversary": adversary(release),
  }
  return {name: sentence for name, sentence in sentences.items() if sentence is not None}
