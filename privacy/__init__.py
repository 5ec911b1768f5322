"""The releases of a run, their cost, and the noise for a budget. No TensorFlow is needed."""
