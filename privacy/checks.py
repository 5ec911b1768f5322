"""Checks arguments; each check returns the number as a Python number."""

import math
import numbers
import reprlib
from typing import Any

# float32, whose range is 1e-38 to 3e38, holds the products and squares of such numbers.
LEAST_SCALE, MOST_SCALE = 1e-9, 1e9
# Double precision does not tell larger whole numbers apart.
_MOST_WHOLE = 2**53


def of_type(name: str, value: Any, types: Any, expected: str) -> None:
  """Raises a TypeError unless `value` is of one of `types`.

  Args:
    name: The argument's name, for the error.
    value: The argument; truth values are refused.
    types: A class or a tuple of classes.
    expected: What was expected, in words.

  Raises:
    TypeError: If it is of another type.
  """
  if isinstance(value, bool) or not isinstance(value, types):
    actual = f"{name} = {reprlib.repr(value)}, of type {type(value).__name__}"
    raise TypeError(f"Found {actual}; expected {expected}.")


def number(name: str, value: Any) -> float:
  """Returns any kind of real scalar as a finite Python float, or raises a ValueError.

  Args:
    name: The argument's name, for the error.
    value: A number, a NumPy scalar, a tensor [] or a text that `float` reads; no truth value.

  Returns:
    The number.

  Raises:
    ValueError: If it is no number, or not finite.
  """
  # dp_accounting silently drops mechanisms whose noise multiplier is an int, a NumPy scalar or a
  # tensor when they are composed below a sampling event. So only floats may get that far.
  try:
    if isinstance(value, bool):
      raise TypeError
    plain = float(value)
  except (TypeError, ValueError, OverflowError):
    raise ValueError(f"Found {name} = {value!r}; expected a number.") from None
  if not math.isfinite(plain):
    raise ValueError(f"Found {name} = {plain}; expected a finite number.")
  return plain


def positive(name: str, value: Any) -> float:
  """Returns a positive, finite number as a Python float, or raises a ValueError.

  Args:
    name: The argument's name, for the error.
    value: A real scalar.

  Returns:
    The number.

  Raises:
    ValueError: If it is not positive, not finite or a text that is no number.
  """
  plain = float(value)
  if not 0.0 < plain < math.inf:
    raise ValueError(f"Found {name} = {plain}; expected a positive number.")
  return plain


def scale(name: str, value: Any) -> float:
  """Returns a number from `LEAST_SCALE` to `MOST_SCALE`, or raises a ValueError.

  Args:
    name: The argument's name, for the error.
    value: A real scalar.

  Returns:
    The number as a Python float.

  Raises:
    ValueError: If it is out of the range.
  """
  plain = positive(name, value)
  if not LEAST_SCALE <= plain <= MOST_SCALE:
    raise ValueError(
      f"Found {name} = {plain:g}; expected a number from {LEAST_SCALE:g} to {MOST_SCALE:g}."
    )
  return plain


def not_negative(name: str, value: Any) -> float:
  """Returns a number from 0 to `MOST_SCALE`, or raises a TypeError or a ValueError.

  Args:
    name: The argument's name, for the error.
    value: A `numbers.Real`, no truth value.

  Returns:
    The number as a Python float.

  Raises:
    TypeError: If it is no real number.
    ValueError: If it is NaN or out of the range.
  """
  of_type(name, value, numbers.Real, "a number")
  if not 0.0 <= value <= MOST_SCALE:  # This refuses NaN, too.
    raise ValueError(f"Found {name} = {value}; expected a number from 0 to {MOST_SCALE:g}.")
  return float(value)


def fraction(name: str, value: Any) -> float:
  """Returns a number in (0, 1), or raises a ValueError.

  Args:
    name: The argument's name, for the error.
    value: Any real scalar.

  Returns:
    The number as a Python float.

  Raises:
    ValueError: If it is no number, or not between 0 and 1, both excluded.
  """
  plain = number(name, value)
  if not 0.0 < plain < 1.0:
    raise ValueError(f"Found {name} = {plain:g}; expected a number between 0 and 1, both excluded.")
  return plain


def whole(name: str, value: Any, least: int) -> int:
  """Returns a whole number from `least` to 2^53 as a Python int, or raises a ValueError.

  Args:
    name: The argument's name, for the error.
    value: A real scalar; 3.0 is whole.
    least: The least number that is allowed.

  Returns:
    The number as a Python int.

  Raises:
    ValueError: If it is no number, not whole or out of the range.
  """
  plain = number(name, value)
  if plain != int(plain) or plain < least:
    raise ValueError(f"Found {name} = {plain:g}; expected a whole number of at least {least}.")
  if plain > _MOST_WHOLE:
    raise ValueError(f"Found {name} = {plain:g}; expected at most 2^53.")
  return int(plain)


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
  """Returns `value` if it is one of `choices`, or raises a ValueError.

  Args:
    name: The argument's name, for the error.
    value: The text.
    choices: All that are allowed.

  Returns:
    The text as it is.

  Raises:
    ValueError: If it is none of them.
  """
  if value not in choices:
    raise ValueError(f"Found {name} = {value!r}; expected one of {', '.join(choices)}.")
  return value
