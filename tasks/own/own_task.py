"""The task of a table of the user's own.

A fifth of the clients, chosen by the seed, are to test on. Model, cohort and learning rate follow
from the table.
"""

import dataclasses
import functools
import math

import tensorflow_federated as tff

from tasks import models
from tasks import own_flags
from tasks import splits
from tasks import task
from tasks.own import encoding as encoding_lib
from tasks.own import summary
from tasks.own import table
from tff_superquantile.simulation import client_files

_TEST_FRACTION = 0.2
_HIDDEN_SIZES = {"linear": 0, "mlp": 64}
_COHORT = 100
_LEARNING_RATE = 0.1


def _open(request: task.Request) -> tuple[splits.Pools, summary.Summary]:
  """Opens all clients of a table, by the split of this task."""
  least = request.min_examples_per_client or _OWN.min_examples
  request = dataclasses.replace(request, min_examples_per_client=least)
  return table.open_clients(request, functools.partial(_OWN.split_clients, request=request))


def _adapt(request: task.Request) -> task.Task:
  """Returns the task of the table that a request names.

  The gradient of a linear model's loss is L-Lipschitz with L <= E|(x, 1)|^2, and half of that for
  classes. A feature adds 1 to E|x|^2 if it is standardised, at most 1 if it is one-hot: so that the
  learning rate 1 / (features + 1), or 0.1 where this is less, is at most 1 / L over all clients.
  A client whose rows are far from the others' has a larger L, and beyond 2 / L its steps grow
  without bound: so 2 / L of the client with the largest L is another bound.
  """
  if request.columns and not request.data_dir:
    return _of_columns(encoding_lib.from_text(request.columns), request)
  pools, facts = _open(request)
  num_classes = len(facts.encoding.label.classes)
  largest_l = facts.largest_mean_square / (2 if num_classes else 1)
  defaults = dict(
    _OWN.defaults,
    clients_per_round=min(_COHORT, facts.num_train),
    client_learning_rate=min(_LEARNING_RATE, 1 / (1 + len(facts.encoding.features)), 2 / largest_l),
    # Before training every loss is log(classes); of numbers the mean loss is 1/2.
    max_loss=max(1.5, math.log(max(1, num_classes))),
  )
  return dataclasses.replace(
    _of_columns(facts.encoding, request),
    open_clients=lambda request: pools,
    defaults=defaults,
    description=facts.text(),
    metric="balanced_error" if facts.is_skewed else None,
    remarks=facts.drift,
    data_digest=facts.digest,
  )


def _of_columns(encoding: encoding_lib.Encoding, request: task.Request) -> task.Task:
  """Returns the task of all tables with these columns, without clients."""
  label = encoding.label

  def build_model(
    seed: int, clients: client_files.ClientFiles
  ) -> tff.learning.models.FunctionalModel:
    return models.build_table_model(
      seed,
      clients.input_spec,
      num_classes=len(label.classes),
      hidden_size=_HIDDEN_SIZES[request.flags_of(own_flags.TableFlags).model or "linear"],
    )

  return dataclasses.replace(
    _OWN,
    build_model=build_model,
    adapt=None,
    labels=label.classes,
    label_scale=None if label.classes else (label.mean, label.std),
    preprocessing=lambda request: encoding.preprocessing(),
    error="misclassification" if label.classes else "rmse",
    columns=encoding.to_text(),
  )


_OWN = task.Task(
  name="own",
  build_model=lambda seed, clients: models.build_table_model(
    seed, clients.input_spec, num_classes=clients.num_classes
  ),
  model_takes_clients=True,
  open_clients=lambda request: _open(request)[0],
  split=splits.Split(
    _TEST_FRACTION, num_shuffled=lambda num_clients: max(1, round(_TEST_FRACTION * num_clients))
  ),
  adapt=_adapt,
  flags=own_flags.TableFlags,
  min_examples=1,
  most_rounds=2000,
  defaults=dict(
    num_rounds=200,
    clients_per_round=_COHORT,
    client_learning_rate=_LEARNING_RATE,
    batch_size=32,
    l2=1e-4,
    rounds_per_evaluation=10,
    max_loss=1.5,
  ),
)

TASKS = (_OWN,)
