"""Follows TensorFlow graphs op by op."""
