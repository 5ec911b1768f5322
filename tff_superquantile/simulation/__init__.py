"""Running federated computations on one machine: context, cohorts, the training loop."""
