"""Builds the clients' half of a round: loss, threshold, gate, local training, report."""

from tff_superquantile.client_work.local_training import ClientHooks
from tff_superquantile.client_work.local_training import LocalTraining
from tff_superquantile.client_work.optimizers import as_tff_optimizer
from tff_superquantile.client_work.process import LearningRateFn
from tff_superquantile.client_work.round import build_client_work

__all__ = (
  "ClientHooks",
  "LearningRateFn",
  "LocalTraining",
  "as_tff_optimizer",
  "build_client_work",
)
