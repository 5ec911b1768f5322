"""Builds networks with LSTMs: for sequences of vectors, and for those of characters."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tasks.models import classifiers
from tasks.models import networks


def _orthogonal(seed: int, layer: int, shape: tuple[int, int]) -> np.ndarray:
  """Draws initial weights [rows, columns] with orthonormal rows, uniformly; rows <= columns."""
  normal = np.random.default_rng([seed, layer]).standard_normal(shape[::-1])
  q, r = np.linalg.qr(normal)
  # Signs as those of R: else the distribution would depend on the algorithm (Mezzadri 2007).
  return (q * np.sign(np.diag(r))).T.astype(np.float32)


def _lstm_weights(seed: int, layer: int, num_features: int, hidden_size: int) -> list[np.ndarray]:
  """Draws an LSTM's weights of x, of h, and biases, from the generators `layer` and the next."""
  bias = np.zeros(4 * hidden_size, np.float32)
  bias[hidden_size : 2 * hidden_size] = 1.0  # The forget gates begin open.
  return [
    networks.glorot_uniform(seed, layer, (num_features, 4 * hidden_size)),
    _orthogonal(seed, layer + 1, (hidden_size, 4 * hidden_size)),
    bias,
  ]


class _Step(NamedTuple):
  """What a step of an LSTM computes, [sequences, ...] each; `gates` are sigmoids of all four."""

  gates: tf.Tensor
  candidate: tf.Tensor
  cell: tf.Tensor
  tanh_of_cell: tf.Tensor
  output: tf.Tensor


def _take_step(of_inputs: tf.Tensor, cell: tf.Tensor) -> _Step:
  """Takes a step from W x_t + U h_{t-1} + b, [sequences, 4 hidden_size], and c_{t-1}."""
  hidden_size = cell.shape[1]
  gates = tf.sigmoid(of_inputs)
  candidate = tf.tanh(of_inputs[:, 2 * hidden_size : 3 * hidden_size])
  i, f, _, o = tf.split(gates, 4, axis=1)
  cell = f * cell + i * candidate
  tanh_of_cell = tf.tanh(cell)
  return _Step(gates, candidate, cell, tanh_of_cell, o * tanh_of_cell)


def _slopes(steps: _Step) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Returns derivatives of all steps, from stacked results [T, sequences, ...].

  Those of the cells are by outputs, [T, sequences, hidden_size], and by the cells before, the
  same; those of i, f, g and o are by c_t, c_t, c_t and h_t, [T, sequences, 4 hidden_size].
  """
  i, f, _, o = tf.split(steps.gates, 4, axis=2)
  before = tf.concat([tf.zeros_like(steps.cell[:1]), steps.cell[:-1]], axis=0)
  partners = tf.concat([steps.candidate, before, i, steps.tanh_of_cell], axis=2)
  of_gates = steps.gates * (1.0 - steps.gates)
  of_candidate = 1.0 - tf.square(steps.candidate)
  hidden_size = i.shape[2]
  own = [of_gates[:, :, : 2 * hidden_size], of_candidate, of_gates[:, :, 3 * hidden_size :]]
  return o * (1.0 - tf.square(steps.tanh_of_cell)), f, partners * tf.concat(own, axis=2)


def _lstm(weights: Sequence[Any], rows: tf.Tensor, num_steps: int, *, last: bool) -> tf.Tensor:
  """Returns the outputs h_1, ..., h_T of an LSTM, [T sequences, hidden_size], or the `last` one.

  With gates i, f, g, o of [x_t, h_{t-1}], c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g) and
  h_t = sigmoid(o) tanh(c_t) from zero states (Hochreiter and Schmidhuber 1997). The weights are
  those of x, of h, and the biases, with the gates in this order; `rows` are the x_t, [T sequences,
  features], those of a step together. The T steps are unrolled in the graph.

  The gradient is written down: what steps do not hand on to each other is computed for all at once,
  in 0.4 of the ops that TensorFlow's own gradient has.
  """

  @tf.custom_gradient
  def outputs(rows: Any, x_weights: Any, h_weights: Any, bias: Any) -> Any:
    hidden_size = h_weights.shape[0]
    # One product for all steps.
    of_x = tf.reshape(tf.matmul(rows, x_weights) + bias, [num_steps, -1, 4 * hidden_size])
    nothing = tf.zeros([tf.shape(of_x)[1], hidden_size])
    steps: list[_Step] = []
    h = c = nothing
    for of_x_t in tf.unstack(of_x):
      steps.append(_take_step(of_x_t + tf.matmul(h, h_weights), c))
      h, c = steps[-1].output, steps[-1].cell

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
      of_outputs, of_cells, of_gates = map(
        tf.unstack, _slopes(_Step(*(tf.stack(values) for values in zip(*steps))))
      )
      by_output = [] if last else tf.split(upstream, num_steps)
      by_h, by_c = upstream if last else nothing, nothing
      by_inputs: list[tf.Tensor] = []
      for t in reversed(range(num_steps)):
        if not last:
          by_h += by_output[t]
        by_c += by_h * of_outputs[t]
        by_inputs.insert(0, tf.concat([by_c, by_c, by_c, by_h], axis=1) * of_gates[t])
        by_h = tf.matmul(by_inputs[0], h_weights, transpose_b=True)
        by_c *= of_cells[t]
      by_all = tf.concat(by_inputs, axis=0)
      before = tf.concat([nothing, *(step.output for step in steps[:-1])], axis=0)
      return (
        tf.matmul(by_all, x_weights, transpose_b=True),
        tf.matmul(rows, by_all, transpose_a=True),
        tf.matmul(before, by_all, transpose_a=True),
        tf.reduce_sum(by_all, axis=0),
      )

    return h if last else tf.concat([step.output for step in steps], axis=0), gradient

  return outputs(rows, *weights)


def build_lstm(
  seed: int, input_spec: tuple[tf.TensorSpec, tf.TensorSpec], *, hidden_size: int
) -> classifiers.Classifier:
  """Builds the paper's RNN: an LSTM on sequences of vectors, whose last output is classified.

  The logit is <h_T, w> + b, see `_lstm`. All T steps are taken, also those of padding. For a batch
  of 10 sequences of 20 vectors of dimension 50, a step of training takes 0.60 ms on one core, and
  0.80 with TensorFlow's own gradient of the unrolled graph.

  Args:
    seed: That of the initial weights.
    input_spec: Of x, float32 [None, steps, features], and of y, int32 [None], 0 or 1.
    hidden_size: The units of the LSTM.

  Returns:
    The model. Its weights are of the gates in the order i, f, g, o, as Keras has them: of x
    [features, 4 hidden_size], of h [hidden_size, 4 hidden_size], biases [4 hidden_size]; then w
    [hidden_size, 1] and b [1]. At first they are Glorot uniform for x and for the logit, orthogonal
    for h; biases are zero, but one in the forget gates.

  Raises:
    ValueError: If x is not of that shape.
  """
  classifiers.count_features(input_spec[0])
  if input_spec[0].shape.rank != 3 or input_spec[0].shape[1] < 1:
    raise ValueError(
      f"Found an input of shape {input_spec[0].shape}; the LSTM needs [None, steps, features]."
    )
  num_steps, num_features = input_spec[0].shape[1:]
  weights = (
    *_lstm_weights(seed, 0, num_features, hidden_size),
    networks.glorot_uniform(seed, 2, (hidden_size, 1)),
    np.zeros(1, np.float32),
  )

  def logit(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    rows = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, num_features])
    h = _lstm(weights[:3], rows, num_steps, last=True)
    return tf.squeeze(tf.matmul(h, weights[3]) + weights[4], axis=1)

  def keras_layers() -> Sequence[tf.keras.layers.Layer]:
    return [
      tf.keras.layers.LSTM(hidden_size, name="lstm"),
      tf.keras.layers.Dense(1, name="dense"),
      tf.keras.layers.Reshape(()),
    ]

  loss_fn = classifiers.mean_binary_cross_entropy
  return classifiers.build_classifier(
    weights, logit, input_spec, keras_layers, loss_fn, has_linear_gradient=True
  )


def build_character_lstm(
  seed: int,
  input_spec: tuple[tf.TensorSpec, tf.TensorSpec],
  *,
  num_characters: int,
  embedding_size: int,
  hidden_size: int,
) -> classifiers.Classifier:
  """Builds LEAF's model of the next character: an embedding, two LSTM layers, a dense layer.

  The second layer reads the outputs of the first, and its last output h_T scores the characters: W
  h_T + b. See `_lstm`.

  Args:
    seed: That of the initial weights.
    input_spec: Of x, float32 [None, steps], the numbers of characters, and of y, int32 [None], the
      number of the next one.
    num_characters: The number of characters.
    embedding_size: The numbers by which a character is embedded.
    hidden_size: The units of each LSTM layer.

  Returns:
    The model. Its weights are of the embedding [num_characters, embedding_size], at first uniform
    in [-0.05, 0.05] as Keras'; of each LSTM as in `build_lstm`; then W [hidden_size,
    num_characters] and b [num_characters].

  Raises:
    ValueError: If x is not of that shape.
  """
  if input_spec[0].shape.rank != 2 or classifiers.count_features(input_spec[0]) < 1:
    raise ValueError(
      f"Found an input of shape {input_spec[0].shape}; characters are [None, steps]."
    )
  num_steps = input_spec[0].shape[1]
  embedding = np.random.default_rng([seed, 0]).uniform(
    -0.05, 0.05, (num_characters, embedding_size)
  )
  weights = (
    embedding.astype(np.float32),
    *_lstm_weights(seed, 1, embedding_size, hidden_size),
    *_lstm_weights(seed, 3, hidden_size, hidden_size),
    networks.glorot_uniform(seed, 5, (hidden_size, num_characters)),
    np.zeros(num_characters, np.float32),
  )

  def logits(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    numbers = tf.reshape(tf.transpose(tf.cast(x, tf.int32)), [-1])
    # A product, whose gradient is dense, as an update is: that of `tf.gather` would be sparse.
    rows = tf.matmul(tf.one_hot(numbers, num_characters), weights[0])
    first = _lstm(weights[1:4], rows, num_steps, last=False)
    h = _lstm(weights[4:7], first, num_steps, last=True)
    return tf.matmul(h, weights[7]) + weights[8]

  def keras_layers() -> Sequence[tf.keras.layers.Layer]:
    return [
      tf.keras.layers.Embedding(num_characters, embedding_size, name="embedding"),
      tf.keras.layers.LSTM(hidden_size, return_sequences=True, name="lstm_1"),
      tf.keras.layers.LSTM(hidden_size, name="lstm_2"),
      tf.keras.layers.Dense(num_characters, name="dense"),
    ]

  return classifiers.build_classifier(
    weights, logits, input_spec, keras_layers, has_linear_gradient=True
  )
