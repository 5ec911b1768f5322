"""Reference models: a constant answer, and fits of a task's own model by L-BFGS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import math
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize
import tensorflow as tf
import tensorflow_federated as tff
import threadpoolctl
import tqdm

from tff_superquantile import evaluation
from tff_superquantile.client_work import local_model
from tff_superquantile.evaluation import clients as clients_lib
from tff_superquantile.evaluation import prediction
from tff_superquantile.experiments.run import run_files
from tff_superquantile.measures import measure

_MOST_ENTRIES = 2**22  # Of inputs, and of scores, in one pass; the gradient is of all examples.
_MOST_STEPS = 200
# With fewer examples a weight a loss may have no minimum, and then the way decides the fit.
_EXAMPLES_A_WEIGHT, _RIDGE = 10, 1e-3
_PLAIN = np.eye(1)  # The basis of all weights as they are.


class Constant(NamedTuple):
  """The answer that is the same for every example.

  Attributes:
    label: The most frequent class, the first of several, or the mean of numbers.
    shares: The probabilities of the classes, (count + 1) / (n + number of classes), so that none is
      zero; None for numbers.
  """

  label: float
  shares: np.ndarray | None

  @property
  def kind(self) -> str:
    """The error of the tasks that have such labels."""
    return measure.NUMBERS if self.shares is None else measure.CLASSES

  def results(self, examples: evaluation.ClientExamples) -> evaluation.Measured:
    """Returns the clients' measures: of classes -log of the label's share, of numbers squares."""
    return evaluation.measured(*self.predict(examples), self.kind)

  def predict(
    self, examples: evaluation.ClientExamples
  ) -> tuple[evaluation.ClientMetrics, measure.Predictions]:
    """Returns the clients' losses and errors, and the predictions, as an evaluator does."""
    y = np.reshape(examples.y, -1)
    if self.shares is None:
      squares = (np.asarray(y, np.float64) - self.label) ** 2
      losses, errors = squares / 2.0, squares
      values: np.ndarray = np.full(len(y), self.label)
      labels = y.astype(np.float64)
    else:
      labels = y.astype(np.int64)
      losses, errors = -np.log(self.shares[labels]), (y != self.label).astype(float)
      values = np.tile(self.shares, (len(y), 1))
    sizes = np.diff(examples.offsets)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    with np.errstate(invalid="ignore", divide="ignore"):
      loss, error = (np.bincount(owner, v, len(sizes)) / sizes for v in (losses, errors))
    error = np.sqrt(error) if self.shares is None else error
    of_clients = evaluation.ClientMetrics(examples.client_ids, sizes, loss, error)
    return of_clients, measure.Predictions(values, labels)


def constant(y: np.ndarray, num_classes: int | None) -> Constant:
  """Returns the constant answer that fits n > 0 labels best; `num_classes` is None for numbers."""
  y = np.reshape(y, -1)
  if num_classes is None:
    return Constant(float(np.mean(y, dtype=np.float64)), None)
  counts = np.bincount(y.astype(np.int64), minlength=num_classes)
  return Constant(float(counts.argmax()), (counts + 1.0) / (counts.sum() + num_classes))


def own_constants(split: evaluation.SplitExamples, num_classes: int | None) -> evaluation.Measured:
  """Returns the results of each client's own constant answer, chosen and tested as `local` is."""
  held_in, held_out = split.held_in, split.held_out
  answers = [constant(held_in.of_client(i)[1], num_classes) for i in range(len(held_in.client_ids))]
  of_clients = [answer.predict(held_out.take([i])) for i, answer in enumerate(answers)]
  return clients_lib.joined(held_in.client_ids, of_clients, answers[0].kind)


def is_linear(model: tff.learning.models.FunctionalModel) -> bool:
  """Returns whether a model's weights are a matrix and perhaps an intercept.

  Its loss then is convex, so that it has one minimum, which any good optimizer finds.
  """
  trainable, non_trainable = model.initial_weights
  shapes = [np.shape(weights) for weights in trainable]
  if non_trainable or not 1 <= len(shapes) <= 2 or len(shapes[0]) > 2:
    return False
  return len(shapes) == 1 or shapes[1] in ((), shapes[0][1:] or (1,), (1,))


class Fitter:
  """Fits a model to examples, for any number of sets of examples of one kind.

  The objective is that of clients, mean loss + l2 / 2 |w|^2, over all examples of the set, each
  counted once. L-BFGS begins at the model's initial weights and takes at most 200 steps.
  """

  def __init__(
    self,
    model: tff.learning.models.FunctionalModel,
    examples: evaluation.ClientExamples,
    l2: float,
  ):
    """Traces the objective of a model without non-trainable weights; types are as the examples'."""
    self._initial = [np.asarray(weights) for weights in model.initial_weights[0]]
    self._l2 = l2
    self._evaluate = _build_sum_and_gradient(model, examples)

  def fit(
    self,
    x: np.ndarray,
    y: np.ndarray,
    on_step: Callable[[run_files.Weights], Any] | None = None,
    basis: np.ndarray = _PLAIN,
    least_l2: float = 0.0,
    most_steps: int = _MOST_STEPS,
  ) -> run_files.Weights:
    """Returns the weights that fit examples x [n, ...], y [n], n > 0, by steps along a `basis`.

    `on_step` is told the weights after each step.
    """
    l2 = max(self._l2, least_l2)
    passes = list(self._passes(x, y))

    def change(matrix: np.ndarray, flat: np.ndarray) -> np.ndarray:
      return np.reshape(matrix @ flat.reshape(len(matrix), -1), -1)

    def objective(coordinates: np.ndarray) -> tuple[float, np.ndarray]:
      flat = change(basis, coordinates)
      sums = np.sum([self._evaluate(flat, *rows).numpy() for rows in passes], axis=0)
      value = sums[0] / len(y) + l2 / 2.0 * float(flat @ flat)
      return value, change(basis.T, sums[1:] / len(y) + l2 * flat)

    def weights_of(coordinates: np.ndarray) -> run_files.Weights:
      return run_files.Weights(tuple(self._unflatten(change(basis, coordinates))), ())

    solution = optimize.minimize(
      objective,
      change(np.linalg.inv(basis), _flattened(self._initial)),
      jac=True,
      method="L-BFGS-B",
      callback=None if on_step is None else lambda flat: on_step(weights_of(flat)),
      options={"maxiter": most_steps, "ftol": 1e-9, "gtol": 1e-6},
    )
    return weights_of(solution.x)

  @property
  def initial(self) -> run_files.Weights:
    """The weights at which each fit begins."""
    return run_files.Weights(tuple(self._initial), ())

  def loss(self, weights: run_files.Weights, x: np.ndarray, y: np.ndarray) -> float:
    """Returns the sum of the losses of examples x [n, ...], y [n], n > 0."""
    flat = _flattened(weights.trainable)
    return float(sum(self._evaluate(flat, *rows).numpy()[0] for rows in self._passes(x, y)))

  def basis(self, examples: evaluation.ClientExamples) -> np.ndarray:
    """Returns R with R^T G R = I, G the mean of (x, 1) (x, 1)^T and a ridge: it takes fewer steps.

    It is 1 with few examples a weight, or where the model's inputs are not x itself.
    """
    num_examples, num_inputs = len(examples.y), len(self._initial[0])
    num_weights = sum(weights.size for weights in self._initial)
    is_of_x = np.prod(examples.x.shape[1:]) == num_inputs
    if not is_of_x or num_examples < _EXAMPLES_A_WEIGHT * num_weights:
      return _PLAIN
    products: Any = 0.0
    for rows, _ in self._passes(examples.x, examples.y):
      x = np.asarray(examples.decoded(rows), np.float64)
      with_one = [np.ones([len(x), 1])] * (len(self._initial) - 1)  # Of the intercept.
      inputs = np.hstack([x.reshape(len(x), -1), *with_one])
      products += inputs.T @ inputs / num_examples
    products += _RIDGE * np.mean(np.diag(products)) * np.eye(len(products))
    return np.linalg.inv(np.linalg.cholesky(products)).T

  def _passes(self, x: np.ndarray, y: np.ndarray) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Yields the examples in parts, each for one pass."""
    widest = max(math.prod(x.shape[1:]), math.prod(self._initial[0].shape[1:]))
    size = max(1, _MOST_ENTRIES // widest)
    for start in range(0, len(y), size):
      rows = slice(start, start + size)
      yield tf.constant(x[rows]), tf.constant(y[rows])

  def _unflatten(self, flat: np.ndarray) -> list[np.ndarray]:
    cuts = np.cumsum([weights.size for weights in self._initial])[:-1]
    return [
      part.reshape(weights.shape).astype(weights.dtype)
      for part, weights in zip(np.split(flat, cuts), self._initial)
    ]


def _flattened(weights: Sequence[np.ndarray]) -> np.ndarray:
  return np.concatenate([part.reshape(-1) for part in weights]).astype(np.float64)


def _build_sum_and_gradient(
  model: tff.learning.models.FunctionalModel, examples: evaluation.ClientExamples
) -> Any:
  """Traces a function from (weights, x, y) to [the sum of losses, *its gradient].

  Weights and gradient are flat and float64, so that a call hands over few tensors: that takes
  longer than what it computes for a client's examples.
  """
  loss_fn = local_model.with_autograph(model.loss)
  specs = list(prediction.weights_spec(model)[0])
  sizes = [spec.shape.num_elements() for spec in specs]
  flat_spec = tf.TensorSpec([sum(sizes)], tf.float64)

  @tf.function(input_signature=[flat_spec, *examples.specs()], autograph=False)
  def sum_and_gradient(flat: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      tape.watch(flat)
      parts = zip(tf.split(flat, sizes), specs)
      trainable = tuple(tf.cast(tf.reshape(part, w.shape), w.dtype) for part, w in parts)
      output = model.predict_on_batch((trainable, ()), examples.decoded(x), training=False)
      loss = tf.cast(loss_fn(output=output, label=y), tf.float32)
      total = loss * tf.cast(tf.shape(y)[0], tf.float32)
    return tf.concat([tf.cast(total, tf.float64)[tf.newaxis], tape.gradient(total, flat)], axis=0)

  with tf.Graph().as_default():  # As in `evaluation.build_predict`.
    return sum_and_gradient.get_concrete_function()


# More threads than one wait for one another for most of the time: the problems are small.
@threadpoolctl.threadpool_limits.wrap(limits=1)
def pooled(
  model: tff.learning.models.FunctionalModel,
  train: evaluation.ClientExamples,
  test: evaluation.ClientExamples,
  l2: float,
  error: str,
  trained: tff.learning.models.FunctionalModel | None = None,
) -> evaluation.Measured:
  """Fits a model to the examples of all training clients; returns its results on test clients."""
  with tqdm.tqdm(desc="pooled fit", unit="step", delay=2.0, disable=None) as bar:
    fitter = Fitter(trained or model, train, l2)
    weights = fitter.fit(train.x, train.y, lambda _: bar.update(), fitter.basis(train))
  return evaluation.build_evaluator(model, test, error=error).measure(weights)


@threadpoolctl.threadpool_limits.wrap(limits=1)
def local(
  model: tff.learning.models.FunctionalModel,
  split: evaluation.SplitExamples,
  l2: float,
  error: str,
  trained: tff.learning.models.FunctionalModel | None = None,
  prior: float = 0.0,
) -> evaluation.Measured:
  """Fits a model to one half of each client's examples; returns its results on the other.

  Of n examples the l2 is at least prior / n, as if weights were drawn with the variance 1 / prior:
  few examples else leave them without bounds.
  """
  held_in, held_out = split.held_in, split.held_out
  fitter = Fitter(trained or model, held_in, l2)
  evaluator, of_clients = evaluation.build_evaluator(model, held_out, error=error), []
  for i in tqdm.trange(len(held_in.client_ids), desc="own models", delay=2.0, disable=None):
    x, y = held_in.of_client(i)
    weights = fitter.fit(x, y, least_l2=prior / len(y))
    of_clients.append(evaluator.predict_for(weights, *held_out.of_client(i)))
  return clients_lib.joined(held_in.client_ids, of_clients, error)
