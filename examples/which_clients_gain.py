"""Trains FedAvg and the superquantile on the same cohorts, and shows what each client gains.

    .venv/bin/python examples/which_clients_gain.py

The clients are those of scikit-learn's digits: 60 clients of mostly neighbouring digits, of whom
every fifth holds its tablet sideways.
"""

import numpy as np
import pandas as pd
from sklearn import datasets
import tensorflow as tf
import tensorflow_federated as tff

import tff_superquantile as tsq

NUM_CLIENTS, COHORT, NUM_ROUNDS = 60, 20, 60


def clients_of_digits():
  """Deals the images to clients; returns their data sets to train on, and to test on."""
  rng, digits = np.random.default_rng(0), datasets.load_digits()
  images, labels = (digits.images / 16).astype(np.float32), digits.target.astype(np.int32)
  by_label = np.argsort(labels + rng.normal(scale=5.0, size=len(labels)), kind="stable")
  train, test = [], []
  for i, part in enumerate(rng.permutation(NUM_CLIENTS)):
    rows = rng.permutation(np.array_split(by_label, NUM_CLIENTS)[part])
    x = np.rot90(images[rows], axes=(1, 2)) if i % 5 == 0 else images[rows]
    data = tf.data.Dataset.from_tensor_slices((x.reshape(-1, 64), labels[rows]))
    train.append(data.skip(10).batch(5))
    test.append(data.take(10).batch(5))
  return train, test


def main():
  """Prints the errors of the clients that FedAvg serves worst, and those of all in numbers."""
  tsq.set_simulation_context()  # Rounds in this process, the whole cohort at once.
  train, test = clients_of_digits()
  model = tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.Dense(10, input_shape=[64], kernel_initializer="zeros")]),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    train[0].element_spec,
  )
  evaluate = tsq.build_evaluator(model, tsq.evaluation.examples_of_datasets(test))
  errors = {}
  for name, theta in (("FedAvg", 1.0), ("theta 0.5", 0.5)):
    sgd = tff.learning.optimizers.build_sgdm(0.5)
    process = tsq.build_superquantile_fed_avg(model, theta, sgd)
    sampler, state = np.random.default_rng(1), process.initialize()
    for _ in range(NUM_ROUNDS):
      cohort = sampler.choice(NUM_CLIENTS, COHORT, replace=False)
      state, _ = process.next(state, [train[i] for i in cohort])
    errors[name] = evaluate(process.get_model_weights(state)).error
  table = pd.DataFrame(errors).sort_values("FedAvg")
  print(table.tail(12))  # The clients that FedAvg serves worst.
  print(pd.DataFrame({name: tsq.describe(table[name]) for name in table}).round(3))


if __name__ == "__main__":
  main()
