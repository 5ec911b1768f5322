"""Tables of what a flag chooses by name, in which names stand for parts of others, too.

Such a name is MODULE:CLASS, of a file that Python finds, or that of an entry point of the table's
group. A part from outside is imported when it is first asked for, and is then a row like all.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import importlib
import importlib.metadata
import inspect
import re
import traceback
import types
from typing import Any

from privacy.settings import command_line


class Registry(dict[str, Any]):
  """What a flag chooses, by name; `table[name]` imports what is not there yet."""

  def __init__(
    self, flag: str, group: str, kind: type, entries: Mapping[str, Any], *, of_classes: bool = True
  ):
    """Makes a table of subclasses of `kind`, or instances if not `of_classes`.

    `group` is the last word of the group of entry points, and `entries` are the project's own.
    """
    super().__init__(entries)
    self.own = frozenset(entries)
    self.kind = kind
    self._flag, self._group = flag, f"tff_superquantile.{group}"
    self._of_classes = of_classes

  def __missing__(self, name: str) -> Any:
    return self._import(name, self._target(name))

  def load(self, name: str | None) -> bool:
    """Imports what a name from outside stands for; returns whether that is new."""
    is_new = name is not None and name not in self and self._target(name) != ""
    return is_new and self[name or ""] is not None

  def name_of(self, row: Any) -> str:
    """Returns the name of a row; a class that has none yet becomes one as MODULE:CLASS."""
    name = next((name for name, own in self.items() if own is row), "")
    if not name:
      name = f"{row.__module__}:{row.__qualname__}"
      self._import(name, name)
    return name

  def _target(self, name: str) -> str:
    """Returns the MODULE:CLASS for which a name stands; "" if it is none."""
    if ":" in name:
      return name
    points = importlib.metadata.entry_points(group=self._group, name=name)
    targets = sorted({f"{point.module}:{point.attr}" for point in points})
    if len(targets) > 1:
      raise ValueError(
        f"Found --{self._flag}={name} in {len(targets)} packages; expected one of"
        f" {', '.join(targets)}."
      )
    return "".join(targets)

  def _import(self, name: str, target: str) -> Any:
    head, is_target = f"Found --{self._flag}={name}", re.fullmatch(r"([\w.]+):([\w.]+)", target)
    if is_target is None:
      hint = f" ({command_line.did_you_mean(name, self)}), "
      own = f"one of {', '.join(sorted(self))}{hint}" if self else ""
      raise ValueError(
        f"{head}; expected {own}MODULE:NAME in a file of yours, or an entry point of {self._group}."
      )
    module = _import_module(head, is_target[1])
    row: Any = module
    for part in is_target[2].split("."):
      row = getattr(row, part, None)
    if reason := self._objection(row):
      names = [key for key, value in vars(module).items() if self._is_from(module, value)]
      place = getattr(module, "__file__", None) or module.__name__
      raise ValueError(
        f"{head}, which {reason}; expected {'a subclass' if self._of_classes else 'one'} of"
        f" {self.kind.__name__} in {place}{', such as ' * bool(names)}{', '.join(names)}."
      )
    self[name] = row
    return row

  def _objection(self, row: Any) -> str:
    """Returns why something is no row; "" if it is one."""
    if row is None:
      return "is not there"
    if not self._of_classes:
      return "" if isinstance(row, self.kind) else f"is no {self.kind.__name__}"
    if not (isinstance(row, type) and issubclass(row, self.kind)):
      return f"is no {self.kind.__name__}"
    if missing := sorted(vars(row).get("__abstractmethods__", ())):
      return f"lacks {' and '.join(missing)}"
    if any(isinstance(value, dataclasses.Field) for value in vars(row).values()):
      return "lacks @dataclasses.dataclass(frozen=True, kw_only=True)"
    return ""

  def _is_from(self, module: types.ModuleType, value: Any) -> bool:
    is_own = getattr(value, "__module__", module.__name__) == module.__name__
    return (is_own or not self._of_classes) and not self._objection(value)


def names(text: str | None) -> list[str]:
  """Returns the names in the value of a flag that takes several, each once."""
  return list(dict.fromkeys(filter(None, map(str.strip, (text or "").split(",")))))


def changed(kind: type, own: type, names: Iterable[str]) -> list[str]:
  """Returns which attributes of a class are not those of `own`, a base of it that is known."""

  def home(name: str) -> type:
    homes = (
      base for base in kind.__mro__ if name in {**vars(base), **inspect.get_annotations(base)}
    )
    return next(homes)

  return [name for name in names if home(name) not in own.__mro__]


def _import_module(head: str, name: str) -> types.ModuleType:
  try:
    return importlib.import_module(name)
  except (Exception, SystemExit) as error:
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
      raise ValueError(
        f"{head}, but no module {error.name}; expected one that Python finds: run the command in"
        " its folder, or name that folder in PYTHONPATH."
      ) from None
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" in {frame.filename}, line {frame.lineno}"
    raise ValueError(
      f"{head}, whose import raised {type(error).__name__}{place}: {error}; mend it."
    ) from error
