"""A flag of a run, and the checks of its value by itself."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

METADATA = "flag"  # The key of a field's metadata that has its `Flag`.
# The largest whole number, and why none is larger.
_MOST_OF_OTHERS = (2**31 - 1, "TensorFlow counts in 32 bits")


@dataclasses.dataclass(frozen=True)
class Flag:
  """A flag.

  Attributes:
    help: Its text in `--help`.
    choices: Its values, if these are not all of its type.
    synonyms: Values of earlier versions, and which of the choices each one is now.
    least: The least value of a number.
    most: The largest value of a whole number, and why none is larger.
    word: A word that may stand in a number's place.
    name: Its name; "" for that of the field.
    kind: int, float or str.
    default: Its default. A value of None stands for that of the field.
    may_idle: Whether it may be given where nothing has it: the runs of an experiment share flags.
    is_required: Whether a run whose part has it needs a value.
    short: Its name in the names of folders; "" for a flag that they leave out.
    symbol: Its name for people.
    words: The values that names of runs tell, in words for people.
    is_incidental: Whether it does not change the results: a run continues under other values.
    before: The text of what runs did whose flags do not have it; None where it tells nothing.
  """

  help: str
  choices: tuple[str, ...] = ()
  synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict)
  least: float | None = None
  most: tuple[int, str] = _MOST_OF_OTHERS
  word: str | None = None
  name: str = ""
  kind: type = str
  default: Any = None
  may_idle: bool = False
  is_required: bool = False
  short: str = ""
  symbol: str = ""
  words: Mapping[str, str] = dataclasses.field(default_factory=dict)
  is_incidental: bool = False
  before: str | None = None

  def checked(self, value: Any) -> Any:
    """Returns a value, as a number of the flag's type.

    Raises:
      TypeError: If it is not of the flag's type.
      ValueError: If it is out of its range.
    """
    if value is None and self.default is None or self.word is not None and value == self.word:
      return value
    if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
      value = float(value)
    if not isinstance(value, self.kind) or isinstance(value, bool):
      raise TypeError(
        f"Found {self.name} = {value!r}, of type {type(value).__name__}; expected"
        f" {self.kind.__name__}{f', {self.word}' if self.word else ''}"
        f"{' or None' if self.default is None else ''}."
      )
    value = dict[Any, Any](self.synonyms).get(value, value)
    if self.choices and value not in self.choices:
      choices = ", ".join(self.choices)
      raise ValueError(f"Found {self.name} = {value!r}; expected one of {choices}.")
    if self.least is not None and not value >= self.least:  # This refuses NaN, too.
      raise ValueError(f"Found {self.name} = {value}; expected at least {self.least}.")
    most, reason = self.most
    if isinstance(value, int) and value > most:
      raise ValueError(f"Found {self.name} = {value}; expected at most {most}: {reason}.")
    return value

  def parse(self, text: str) -> Any:
    """Returns the value of a text.

    Raises:
      ValueError: If it is none.
    """
    try:
      return text if text == self.word else self.kind(text)
    except ValueError:
      raise ValueError(
        f"Found --{self.name}={text} among a run's flags; expected a number."
      ) from None


def field(default: Any, description: str, *, flag_default: Any = ..., **options: Any) -> Any:
  """Returns a field that is a flag.

  Args:
    default: The default of the field; `...` if its part cannot do without a value.
    description: The flag's help.
    flag_default: The flag's default where the kinds of a part have several, None.
    **options: Other attributes of the `Flag`.
  """
  given = default if flag_default is ... else flag_default
  is_required, known = given is ..., None if given is ... else given
  one = Flag(description, default=known, is_required=is_required, **options)
  if default is ...:
    return dataclasses.field(metadata={METADATA: one})
  return dataclasses.field(default=default, metadata={METADATA: one})
