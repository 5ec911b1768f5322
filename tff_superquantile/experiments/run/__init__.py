"""One run: its config, its training, and the folder that it leaves.

    from tff_superquantile.experiments import run

    finished = run.train(
      run.RunConfig(method=run.Superquantile(theta=0.25), num_rounds=100)
    )

A config is composed of parts (`parts/`), which are public names here, too. `METHODS` has a row for
each algorithm. `find_runs` reads the runs of an output directory.
"""

import typing

from tff_superquantile import lazy

if typing.TYPE_CHECKING:  # Type checkers and editors see the names that are loaded on first use.
  from privacy.cohorts import Complement as Complement
  from privacy.cohorts import Cyclic as Cyclic
  from privacy.cohorts import Diurnal as Diurnal
  from privacy.cohorts import FixedSize as FixedSize
  from privacy.cohorts import Helpers as Helpers
  from privacy.cohorts import Poisson as Poisson
  from privacy.cohorts import PrivateCoin as PrivateCoin
  from privacy.cohorts import Spaced as Spaced
  from privacy.parts import AdaptiveClip as AdaptiveClip
  from privacy.parts import Exact as Exact
  from privacy.parts import FixedClip as FixedClip
  from privacy.parts import Geometric as Geometric
  from privacy.parts import PrimalDual as PrimalDual
  from privacy.parts import Reweighting as Reweighting
  from privacy.parts import Tree as Tree
  from tff_superquantile.experiments.run.parts.engines import InProcess as InProcess
  from tff_superquantile.experiments.run.parts.engines import Ray as Ray
  from tff_superquantile.experiments.run.parts.kept import Best as Best
  from tff_superquantile.experiments.run.parts.kept import Last as Last
  from tff_superquantile.experiments.run.parts.kept import Start as Start
  from tff_superquantile.experiments.run.parts.local_training import Cosine as Cosine
  from tff_superquantile.experiments.run.parts.local_training import Linear as Linear
  from tff_superquantile.experiments.run.parts.local_training import LocalTraining as LocalTraining
  from tff_superquantile.experiments.run.parts.local_training import Step as Step
  from tff_superquantile.experiments.run.parts.methods import METHODS as METHODS
  from tff_superquantile.experiments.run.parts.methods import Aaggff as Aaggff
  from tff_superquantile.experiments.run.parts.methods import AgnosticFedAvg as AgnosticFedAvg
  from tff_superquantile.experiments.run.parts.methods import FedAvg as FedAvg
  from tff_superquantile.experiments.run.parts.methods import FedAvgSub as FedAvgSub
  from tff_superquantile.experiments.run.parts.methods import FedProx as FedProx
  from tff_superquantile.experiments.run.parts.methods import Gifair as Gifair
  from tff_superquantile.experiments.run.parts.methods import PropFair as PropFair
  from tff_superquantile.experiments.run.parts.methods import QFedAvg as QFedAvg
  from tff_superquantile.experiments.run.parts.methods import SemiVRed as SemiVRed
  from tff_superquantile.experiments.run.parts.methods import Superquantile as Superquantile
  from tff_superquantile.experiments.run.parts.methods import TiltedErm as TiltedErm
  from tff_superquantile.experiments.run.parts.privacy import Budget as Budget
  from tff_superquantile.experiments.run.parts.privacy import Noise as Noise
  from tff_superquantile.experiments.run.parts.servers import Adagrad as Adagrad
  from tff_superquantile.experiments.run.parts.servers import Adam as Adam
  from tff_superquantile.experiments.run.parts.servers import Sgd as Sgd
  from tff_superquantile.experiments.run.parts.servers import Yogi as Yogi
  from tff_superquantile.experiments.run.parts.tasks import Emnist as Emnist
  from tff_superquantile.experiments.run.parts.tasks import Other as Other
  from tff_superquantile.experiments.run.parts.tasks import Own as Own
  from tff_superquantile.experiments.run.parts.tasks import Sent140 as Sent140
  from tff_superquantile.experiments.run.parts.tasks import Shakespeare as Shakespeare
  from tff_superquantile.experiments.run.parts.tasks import Synthetic as Synthetic
  from tff_superquantile.experiments.run.run_config import RunConfig as RunConfig
  from tff_superquantile.experiments.run.run_folder import Run as Run
  from tff_superquantile.experiments.run.run_folder import find_runs as find_runs
  from tff_superquantile.experiments.run.run_folder import group_by_method as group_by_method
  from tff_superquantile.experiments.run.runner import train as train

__all__, __getattr__, __dir__ = lazy.attach(
  __name__,
  (),
  {
    "/privacy.cohorts": (
      *("Complement", "Cyclic", "Diurnal", "FixedSize", "Helpers", "Poisson", "PrivateCoin"),
      "Spaced",
    ),
    "/privacy.parts": (
      *("AdaptiveClip", "Exact", "FixedClip", "Geometric", "PrimalDual", "Reweighting", "Tree"),
    ),
    "parts.engines": ("InProcess", "Ray"),
    "parts.kept": ("Best", "Last", "Start"),
    "parts.local_training": ("Cosine", "Linear", "LocalTraining", "Step"),
    "parts.methods": (
      *("METHODS", "Aaggff", "AgnosticFedAvg", "FedAvg", "FedAvgSub", "FedProx", "Gifair"),
      *("PropFair", "QFedAvg", "SemiVRed", "Superquantile", "TiltedErm"),
    ),
    "parts.privacy": ("Budget", "Noise"),
    "parts.servers": ("Adagrad", "Adam", "Sgd", "Yogi"),
    "parts.tasks": ("Emnist", "Other", "Own", "Sent140", "Shakespeare", "Synthetic"),
    "run_config": ("RunConfig",),
    "run_folder": ("Run", "find_runs", "group_by_method"),
    "runner": ("train",),
  },
)
