"""Seeds of a client's noise must not tell the order of its examples, which its update shows."""

from helpers import problems
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_superquantile import noise_source
from tff_superquantile.client_work import local_training
from tff_superquantile.simulation import client_files
from tff_superquantile.simulation import seeds

_NUM_EXAMPLES, _NUM_CLIENTS = 9, 200
_KEY = bytes(range(16))


def _order_from(words):
  """The order that TensorFlow's shuffle makes of Philox words, by Fisher and Yates."""
  order = list(range(_NUM_EXAMPLES))
  for i, word in enumerate(words[: _NUM_EXAMPLES - 1]):
    j = i + int(word) % (_NUM_EXAMPLES - i)
    order[i], order[j] = order[j], order[i]
  return order


def _words(stream_seeds):
  return np.concatenate([np.asarray(seed) for seed in stream_seeds]).view(np.uint32)


def test_the_seeds_of_the_noise_do_not_tell_the_order_of_the_examples(tmp_path):
  x = np.arange(_NUM_EXAMPLES, dtype=np.float32)[:, np.newaxis]
  y = np.arange(_NUM_EXAMPLES, dtype=np.int32)
  files = client_files.write_client_files(str(tmp_path / "clients"), [("c", x, y)])
  examples_fn = client_files.build_examples_fn(files, shuffle=True)
  training = local_training.LocalTraining(
    problems.linear_model(),
    tff.learning.optimizers.build_sgdm(0.1),
    seed_fn=lambda handle: handle["seed"],
  )
  streams = (local_training.THRESHOLD_STREAM, local_training.UPDATE_STREAM)
  num_told, without_purpose = 0, 0
  for round_num in range(_NUM_CLIENTS):
    handle = files.handle("c", seeds.client_seed(_KEY, round_num, "c"))
    handle = {name: tf.constant(value) for name, value in handle.items()}
    order = examples_fn(handle)[1].numpy().tolist()
    of_noise = [training.client(handle, stream).seed for stream in streams]
    num_told += _order_from(_words(of_noise)) == order
    without_purpose += _order_from(_words(noise_source.split(handle["seed"], 2))) == order
  # The attack works on seeds that are split as they are; 9! orders are too many to guess one.
  assert (num_told, without_purpose) == (0, _NUM_CLIENTS)
