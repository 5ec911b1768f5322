"""Clients with handwriting in a file of the format of TFF's own."""

import collections
import functools
import os
import tempfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

PIXELS, CLASSES = 784, 10


@functools.cache
def clients(num_clients: int = 20) -> tff.simulation.datasets.ClientData:
  """Returns handwriting in a file of the format of TFF's own, some 100 images a client."""
  rng = np.random.default_rng(0)

  def images(client_id: str) -> tf.data.Dataset:
    size = int(rng.integers(90, 111))
    pixels = rng.random((size, 28, 28)).astype(np.float32)
    labels = rng.integers(0, CLASSES, size).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(label=labels, pixels=pixels))

  path = os.path.join(tempfile.mkdtemp(), "images.sqlite")
  spec = collections.OrderedDict(
    label=tf.TensorSpec([], tf.int32), pixels=tf.TensorSpec([28, 28], tf.float32)
  )
  ids = [f"f{i:04d}" for i in range(num_clients)]
  tff.simulation.datasets.save_to_sql_client_data(ids, images, path)
  return tff.simulation.datasets.load_and_parse_sql_client_data(path, spec)
