"""What is not of its documented type is refused, before it means something else in silence."""

import numbers
import reprlib
from typing import Any

from privacy import tree_mechanism


def check_type(name: str, value: Any, types: Any, expected: str) -> None:
  """Raises a TypeError unless `value` is of one of `types`.

  Args:
    name: The name of the argument.
    value: What was given for it. True and False are refused, also where numbers are expected.
    types: As for `isinstance`, abstract ones such as `numbers.Real`, too.
    expected: What is expected, in words.
  """
  if isinstance(value, bool) or not isinstance(value, types):
    found = f"{name} = {reprlib.repr(value)}, of type {type(value).__name__}"
    raise TypeError(f"Found {found}; expected {expected}.")


def check_not_negative(name: str, value: Any) -> float:
  """Returns a number >= 0 as a Python float if float32 holds its products.

  Raises:
    TypeError: If it is no number.
    ValueError: If it isn't within 0 and `tree_mechanism.MOST_SCALE`.
  """
  check_type(name, value, numbers.Real, "a number")
  if not 0.0 <= value <= tree_mechanism.MOST_SCALE:  # Also refuses NaN.
    raise ValueError(
      f"Found {name} = {value}; expected a number from 0 to {tree_mechanism.MOST_SCALE:g}."
    )
  return float(value)
