"""Parts of a run's config: values that check themselves. Each field is a flag, or a part again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import functools
import typing
from typing import Any, TypeVar

from privacy.settings import flag as flag_lib
from privacy.settings import plugins

_CHOICE = "choice"
_T = TypeVar("_T", bound="Part")


# Returns the kind of a part that a run has by its other flags; None for no such part.
DefaultKind = Callable[[Mapping[str, Any]], str | None]


@dataclasses.dataclass(frozen=True)
class Choice:
  """A part in several kinds."""

  # The classes, by the value of the flag, or by words that say when they are chosen.
  kinds: Mapping[str, type[Part]]
  default_kind: DefaultKind  # Chooses where the flag has no value.
  # The flag that chooses, without its choices; None where others do.
  own_flag: flag_lib.Flag | None = None
  # Its choices, those for other runs among them; rows may be added to them.
  values: Mapping[str, type[Part]] = dataclasses.field(default_factory=dict)
  without: str = ""  # The words for a run without the part.
  chooser: str = ""  # The name of the flag that chooses, if another part has it.
  are_keys_flags: bool = False  # Whether each kind's key is the name of a flag, which chooses it.

  @property
  def flag(self) -> flag_lib.Flag | None:
    """The flag that chooses; None where others do."""
    if self.own_flag is None:
      return None
    return dataclasses.replace(self.own_flag, choices=tuple(self.values or self.kinds))

  def kind_name(self, values: Mapping[str, Any]) -> str | None:
    """Returns which kind some values of flags choose; raises a `ValueError` if it is none."""
    flag = self.flag
    if flag is None or self.flag_value(values) is None:
      return self.default_kind(values)
    value: str = flag.checked(self.flag_value(values))
    if value not in self.kinds:
      kinds = ", ".join(self.kinds)
      raise ValueError(f"Found --{flag.name}={value} for a method without it; use one of {kinds}.")
    return value

  def flag_value(self, values: Mapping[str, Any]) -> str | None:
    """Returns the value of the flag that chooses."""
    own = self.own_flag
    return None if own is None else values.get(own.name, own.default)

  def words(self, key: str | None) -> str:
    """Returns how a sentence names a kind."""
    if key is None:
      return self.without
    return f"with {self.phrase(key)}"

  def phrase(self, key: str) -> str:
    """Returns the flag and the value that choose a kind."""
    if self.are_keys_flags:
      return f"--{key}"
    name = self.chooser if self.own_flag is None else self.own_flag.name
    return f"--{name}={key}" if name else key

  def owners(self, name: str) -> str:
    """Returns to which kinds a flag belongs, for a sentence."""
    kinds = [key for key, kind in self.kinds.items() if name in flags(kind)]
    is_by_flag = self.chooser or self.own_flag is not None
    return self.phrase(", ".join(kinds)) if is_by_flag else " or ".join(map(self.phrase, kinds))


def choice(
  name: str,
  kinds: Mapping[str, type[Part]],
  description: str,
  *,
  default_kind: DefaultKind | None = None,
  values: Mapping[str, type[Part]] | None = None,
  default: Any = None,
  **options: Any,
) -> Any:
  """Returns a field that is a part in several kinds, of which a flag chooses.

  `default_kind` chooses where the flag is None; `default` is then that of the field alone, a part.
  Without it `default` is the name of a kind, that of flag and field, and None for the first one.
  `values` are all choices of the flag, if other parts have it with further kinds.
  """
  if default_kind is not None:
    own_flag = flag_lib.Flag(description, name=name, **options)
    chosen = Choice(kinds, default_kind, own_flag, values or {}, f"without --{name}")
    return dataclasses.field(default=default, metadata={_CHOICE: chosen})
  first = default or next(iter(kinds))
  own_flag = flag_lib.Flag(description, name=name, default=first, **options)
  chosen = Choice(kinds, lambda _: first, own_flag)
  return dataclasses.field(default=kinds[first](), metadata={_CHOICE: chosen})


def chosen_by(
  default_kind: DefaultKind,
  kinds: Mapping[str, type[Part]],
  default: Any = None,
  chooser: str = "",
) -> Any:
  """Returns a field that is a part in several kinds, which `default_kind` chooses by their flags.

  `chooser` is the flag of another part by which it does, if it is one.
  """
  chosen = Choice(kinds, default_kind, chooser=chooser)
  return dataclasses.field(default=default, metadata={_CHOICE: chosen})


def optional(kinds: Mapping[str, type[Part]], without: str) -> Any:
  """Returns a field that is a part or None: the first of `kinds`, by flags, whose flag is given."""
  default_kind = functools.partial(first_given, kinds)
  chosen = Choice(kinds, default_kind, without=without, are_keys_flags=True)
  return dataclasses.field(default=None, metadata={_CHOICE: chosen})


def first_given(kinds: Mapping[str, type[Part]], values: Mapping[str, Any]) -> str | None:
  """Returns the first of kinds, each by a flag's name, whose flag has a value; None for none."""
  return next((name for name in kinds if values.get(name) not in (None, "")), None)


def kind_name(kinds: Mapping[str, type[_T]], part: Part) -> str:
  """Returns the name of a part's class among kinds, or else that of its nearest base."""
  if isinstance(kinds, plugins.Registry):
    return kinds.name_of(type(part))
  names = {kind: name for name, kind in kinds.items()}
  return next(names[base] for base in type(part).__mro__ if base in names)


class Part:
  """A frozen dataclass whose fields are flags (`flag.field`), `choice`s and parts.

  A field whose default is None and whose type is not has a value when the part is `fill`ed.
  """

  def __post_init__(self) -> None:
    """Checks each field by itself; numbers get the type of their field."""
    own = flags_by_field(type(self))
    for field in _fields(type(self)):
      value = getattr(self, field.name)
      if field.name in own and not (value is None and field.default is None):
        object.__setattr__(self, field.name, own[field.name].checked(value))
    for field in _fields(type(self)):
      if _CHOICE in field.metadata:
        value, kinds = getattr(self, field.name), field.metadata[_CHOICE].kinds
        if isinstance(kinds, plugins.Registry) and isinstance(value, kinds.kind):
          kinds.name_of(type(value))  # It may be one from outside.
        elif value is not field.default and not isinstance(value, tuple(kinds.values())):
          expected = ", ".join(kind.__name__ for kind in kinds.values())
          raise TypeError(f"Found {field.name} = {value!r}; expected one of {expected}.")


def _fields(kind: type[Part]) -> tuple[dataclasses.Field[Any], ...]:
  return dataclasses.fields(typing.cast(Any, kind))


# It takes long, as it evaluates all annotations of a class.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
_flags_by_field: dict[type[Part], Mapping[str, flag_lib.Flag]] = {}


def flags_by_field(kind: type[Part]) -> Mapping[str, flag_lib.Flag]:
  """Returns the flags of a part by their fields' names, without those of parts within it."""
  if kind in _flags_by_field:
    return _flags_by_field[kind]
  by_field: dict[str, flag_lib.Flag] = {}
  for field in _fields(kind):
    if flag_lib.METADATA in field.metadata:
      flag, hint = field.metadata[flag_lib.METADATA], _hints(kind)[field.name]
      of_union = [arg for arg in typing.get_args(hint) if arg is not type(None)]
      first, *others = of_union or [hint]
      by_field[field.name] = dataclasses.replace(
        flag, name=flag.name or field.name, kind=first, others=tuple(others)
      )
  _flags_by_field[kind] = by_field
  return by_field


def _part_of(kind: type[Part], name: str) -> type[Part] | None:
  """Returns the class of a field that is a part in one kind; None for another field."""
  hint = _hints(kind)[name]
  return hint if isinstance(hint, type) and issubclass(hint, Part) else None


def flags(kind: type[Part]) -> dict[str, flag_lib.Flag]:
  """Returns all flags of a part and of the parts within it, by name, in the order of its fields."""
  by_name: dict[str, flag_lib.Flag] = {}
  own = flags_by_field(kind)
  for field in _fields(kind):
    inner: list[type[Part]] = []
    if field.name in own:
      by_name.setdefault(own[field.name].name, own[field.name])
    elif _CHOICE in field.metadata:
      chosen: Choice = field.metadata[_CHOICE]
      if chosen.flag is not None:
        by_name.setdefault(chosen.flag.name, chosen.flag)
      inner = list(chosen.kinds.values())
    elif (part := _part_of(kind, field.name)) is not None:
      inner = [part]
    for inner_kind in inner:
      for name, flag in flags(inner_kind).items():
        by_name.setdefault(name, flag)
  return by_name


def values(part: Part) -> dict[str, Any]:
  """Returns the values of the flags that a part and the parts within it have, by name."""
  by_name: dict[str, Any] = {}
  own = flags_by_field(type(part))
  for field in _fields(type(part)):
    value = getattr(part, field.name)
    if field.name in own:
      flag = own[field.name]
      by_name[flag.name] = flag.default if value is None else value
      continue
    if _CHOICE in field.metadata:
      chosen: Choice = field.metadata[_CHOICE]
      if chosen.flag is not None:
        is_explicit = value is not None and getattr(value, "is_explicit", True)
        by_name[chosen.flag.name] = kind_name(chosen.kinds, value) if is_explicit else None
    if isinstance(value, Part):
      by_name.update(values(value))
  return by_name


def build(
  kind: type[_T], values: Mapping[str, Any], is_strict: bool = True, is_filled: bool = False
) -> _T:
  """Builds a part of its flags' values; those of kinds not chosen are refused if `is_strict`."""
  own = flags_by_field(kind)
  fields: dict[str, Any] = {}
  for field in _fields(kind):
    if field.name in own:
      flag = own[field.name]
      value = values.get(flag.name, flag.default)
      if value is not None or flag.is_required:
        fields[field.name] = value
    elif _CHOICE in field.metadata:
      chosen: Choice = field.metadata[_CHOICE]
      name = chosen.kind_name(values)
      if is_strict:
        _refuse_others(chosen, name, values)
      part = None if name is None else build(chosen.kinds[name], values, is_strict, is_filled)
      is_usual = chosen.flag is not None and chosen.flag_value(values) is None
      if part is not None and is_usual and not is_filled:
        if not hasattr(part, "is_explicit"):
          raise TypeError(
            f"Found {type(part).__name__} without a field is_explicit: bool = True; expected it of"
            f" all kinds of {field.name}, which a run may have without its flag: add it."
          )
        part = dataclasses.replace(typing.cast(Any, part), is_explicit=False)
      fields[field.name] = part
    elif (inner := _part_of(kind, field.name)) is not None:
      fields[field.name] = build(inner, values, is_strict, is_filled)
  return kind(**fields)


def check_complete(part: Part, chosen_by: str = "") -> None:
  """Raises a `ValueError` for a None, in a part or within it, that its field's type lacks."""
  kind = type(part)
  for name, flag in flags_by_field(kind).items():
    if getattr(part, name) is None and type(None) not in typing.get_args(_hints(kind)[name]):
      where = f"{chosen_by} without" if chosen_by else "no"
      raise ValueError(f"Found {where} --{flag.name}; expected a value.")
  for field in _fields(kind):
    if isinstance(inner := getattr(part, field.name), Part):
      chosen: Choice | None = field.metadata.get(_CHOICE)
      is_named = chosen and chosen.own_flag
      name = chosen.phrase(kind_name(chosen.kinds, inner)) if chosen and is_named else ""
      check_complete(inner, name)


def _refuse_others(chosen: Choice, name: str | None, values: Mapping[str, Any]) -> None:
  """Raises a `ValueError` for a flag of kinds that were not chosen, but for one that may idle."""
  own = {} if name is None else flags(chosen.kinds[name])
  for kind in chosen.kinds.values():
    for other, flag in flags(kind).items():
      if other in own or values.get(other, flag.default) == flag.default:
        continue
      if flag.may_idle:
        flag.checked(values[other])
      else:
        raise ValueError(
          f"Found --{other}={values[other]} {chosen.words(name)}; it belongs to"
          f" {chosen.owners(other)}."
        )


def check_used(part: Part, given: Mapping[str, Any]) -> None:
  """Raises a `ValueError` for a flag that was given, and that no part within this one has."""
  used = values(part)
  for name in (name for name in given if name not in used):
    for field in _fields(type(part)):
      chosen: Choice | None = field.metadata.get(_CHOICE)
      if chosen and any(name in flags(kind) for kind in chosen.kinds.values()):
        inner = getattr(part, field.name)
        kind = None if inner is None else kind_name(chosen.kinds, inner)
        raise ValueError(
          f"Found --{name}={given[name]} {chosen.words(kind)}, which has no use for it; it belongs"
          f" to {chosen.owners(name)}: leave it out."
        )


def fill(part: _T, defaults: Mapping[str, Any]) -> _T:
  """Returns a part with defaults of flags in place of None, where there are any."""
  by_flag = {n: defaults.get(n) if value is None else value for n, value in values(part).items()}
  by_flag = {name: value for name, value in by_flag.items() if value is not None}
  return build(type(part), by_flag, is_filled=True)
