"""What the engine raises for what it does not know; it lies below all of the engine's modules."""

import logging
import re

import tensorflow as tf

# Ends the sentences about what this process cannot compute.
TFFS_OWN = "TFF's own runtime is set by tff.backends.native.set_sync_local_cpp_execution_context()."


class UnsupportedError(Exception):
  """Signals that the engine cannot do something that TFF's own runtime may do."""


# TensorFlow's sentence begins after the places where ops were made, and ends before its own places
# and before Python's traceback.
_BEFORE = re.compile(
  r"Graph execution error:\s+|Detected at node .*\s+|<stack traces unavailable>\s+|Node: .*\s+"
  r'|in user code:\s*\n|( *)File ".*\n(\1 +.*\n|\s*\n)*'
)
_AFTER = re.compile(r"\n\t \[\[| \[Op:|\nTraceback \(most recent call last\):")
_FUNCTIONS = re.compile(r"\{\{function_node [^{}]*\}\} ")
# What the graphs of `elements` fail with.
TOO_MANY = "Found a data set of more than 2**20 elements; expected fewer, such as batches of them."
TOO_LONG = (
  "Found a data set that takes more than 512 MB if each element takes as much as the longest one;"
  " expected elements of about one length."
)
NOT_HELD = (TOO_MANY, TOO_LONG)
_NO_BATCH = "Batch size must be greater than zero"
_SAID: set[str] = set()


def sentence(error: Exception) -> str:
  """Returns what TensorFlow says is wrong, without where the engine made the op."""
  message = error.message if isinstance(error, tf.errors.OpError) else str(error)
  if _NO_BATCH in message:  # See `elements`.
    return (
      "Found a data set without an end (its cardinality() is tf.data.INFINITE_CARDINALITY), or"
      " batches of no examples; expected one that ends, by take() or by repeat() of a number."
    )
  for own in NOT_HELD:
    if own in message:
      return own
  message = message.strip()
  while place := _BEFORE.match(message):
    message = message[place.end() :]
  return _FUNCTIONS.sub("", _AFTER.split(message)[0]).strip()


def warn_once(logger: logging.Logger, message: str, *args: object) -> None:
  """Logs a warning, the first time in this process, whatever its arguments are."""
  if message not in _SAID:
    _SAID.add(message)
    logger.warning(message, *args)
