"""Weights of classes in the loss that training minimises, for classes of which there is little."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import task as task_lib
from tff_superquantile.client_work import local_model
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run.hooks import hook
from tff_superquantile.simulation import client_files

BALANCED = "balanced"


def balanced(labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns w_c = n / (k n_c), float32 [num_classes], of labels [n]: n_c of c, of k classes."""
  counts = np.bincount(labels, minlength=num_classes)
  is_any = counts > 0
  weights = np.ones(num_classes, np.float32)
  weights[is_any] = len(labels) / (is_any.sum() * counts[is_any])
  return weights


def weighted(
  model: tff.learning.models.FunctionalModel, weights: np.ndarray
) -> tff.learning.models.FunctionalModel:
  """Returns a model whose loss of a batch of n examples is sum_i w_(y_i) loss_i / n."""
  loss_fn = local_model.with_autograph(model.loss)

  def loss(output: Any, label: Any, sample_weight: Any = None) -> tf.Tensor:
    own = tf.gather(weights, tf.cast(tf.reshape(label, [-1]), tf.int32))
    own = own if sample_weight is None else own * tf.cast(sample_weight, own.dtype)
    return loss_fn(output=output, label=label, sample_weight=own) * tf.reduce_mean(own)

  return tff.learning.models.FunctionalModel(
    initial_weights=model.initial_weights,
    predict_on_batch_fn=model.predict_on_batch,
    loss_fn=loss,
    metrics_fns=(
      model.initialize_metrics_state,
      model.update_metrics_state,
      model.finalize_metrics,
    ),
    input_spec=model.input_spec,
  )


def of_run(
  config: run_config.RunConfig, splits: Mapping[str, client_files.ClientFiles]
) -> np.ndarray | None:
  """Returns the weights of classes in a run's loss, float32 [num_classes]; None for none.

  The frequencies are those of the training clients. In a private run they are those of the test and
  validation clients, as its classes are: frequencies of training clients would be a release that no
  accounting covers.
  """
  if config.local.class_weights != BALANCED:
    return None
  others = [files for split, files in splits.items() if split != "train"]
  counted = others if config.is_private else [splits["train"]]
  labels = np.concatenate([files.load()[1] for files in counted])
  return balanced(labels, max(files.num_classes for files in splits.values()))


class ClassWeights(hook.Hook):
  """Trains a model whose loss weighs classes, as `of_run`."""

  @staticmethod
  def takes_part(config: run_config.RunConfig) -> bool:
    return config.local.class_weights == BALANCED

  @staticmethod
  def check(config: run_config.RunConfig, task: task_lib.Task) -> None:
    if task.label_scale is not None:
      raise ValueError(
        f"Found --class_weights={BALANCED} for {config.task.name}, whose labels are numbers; leave"
        " it out."
      )

  def prepare(self) -> hook.Job:
    weights = of_run(self.job.config, self.job.splits)
    assert weights is not None  # `takes_part` sees to it.
    print(
      "Weights of the classes in the training loss:",
      ", ".join(f"{weight:.3g}" for weight in weights),
      flush=True,
    )
    return dataclasses.replace(self.job, trained=weighted(self.job.model, weights))
