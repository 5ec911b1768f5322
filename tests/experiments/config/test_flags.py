"""Each flag of a run refuses what its declaration does not allow, wherever a part has it."""

import dataclasses
import math

import numpy as np
import pytest

from privacy import checks
from privacy.settings import flag as flag_lib
from privacy.settings import part
import tasks
from tasks import own_flags
from tff_superquantile.experiments import run
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import personal
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import build

# What rules refuse beyond kinds, choices and the least and largest values.
_OF_RULES = {
  None: (),
  flag_lib.positive: (0.0, math.inf, math.nan),
  flag_lib.below_one: (1.0, math.nan),
  checks.scale: (0.0, 1e300, math.nan),
  checks.not_negative: (-0.1, math.inf, math.nan),
  run_config.check_folder_name: ("",),
  personal.positive_or_chosen: (0, -1, "no such"),
  methods.tail_fraction: (0.0, 1.5, math.nan),
  own_flags.parse_partition: ("", "dirichlet:", "dirichlet:0", "dirichlet:nan", "feature:", "x:1"),
}


def _parts(kind):
  """A part's class and those of all parts within it, in all their kinds."""
  yield kind
  for field in dataclasses.fields(kind):
    if "choice" in field.metadata:
      for inner in field.metadata["choice"].kinds.values():
        yield from _parts(inner)
    elif (inner := part._part_of(kind, field.name)) is not None:
      yield from _parts(inner)


def _wrong(flag):
  yield from (True, object(), b"x")
  if flag.choices:
    yield "no such"
  if flag.least is not None:
    yield flag.kind(flag.least - 1)
  if flag.kind is int:
    yield from (flag.most[0] + 1, 0.5)
  yield from _OF_RULES[flag.rule]


def _good(flag):
  if flag.kind is str:
    return flag.choices[0] if flag.choices else "x"
  return flag.kind(1 if flag.least is None or flag.least < 1 else flag.least)


_FLAGS = {
  (flag.name, kind.__name__): (kind, field)
  for kind in _parts(run.RunConfig)
  for field, flag in part.flags_by_field(kind).items()
}


@pytest.mark.parametrize("kind, field", _FLAGS.values(), ids=map("-".join, _FLAGS))
def test_values_that_the_declaration_does_not_allow_are_refused(kind, field):
  own = part.flags_by_field(kind)
  required = {
    one.name: _good(own[one.name]) if one.name in own else "x"
    for one in dataclasses.fields(kind)
    if one.default is one.default_factory is dataclasses.MISSING
  }
  for wrong in _wrong(own[field]):
    if isinstance(wrong, float) and float not in (own[field].kind, *own[field].others):
      continue
    with pytest.raises((TypeError, ValueError), match=f"^Found .*{own[field].name}"):
      kind(**{**required, field: wrong})
      raise AssertionError(f"{field} = {wrong!r} was taken")


def test_no_flag_has_two_meanings():
  """Where several kinds have a flag, its help, default and range are one."""
  found = {}
  for kind in _parts(run.RunConfig):
    for one in part.flags_by_field(kind).values():
      found.setdefault(one.name, set()).add((one.kind, one.default, one.least))
  several = {name for name, meanings in found.items() if len(meanings) > 1}
  assert several == {"clip_norm"}  # A number, or the word that it adapts.


def test_every_kind_of_a_part_is_a_public_name():
  kinds = set(_parts(run.RunConfig))
  assert {"Cyclic", "Tree", "Adam", "FixedClip"} <= {one.__name__ for one in kinds}
  assert [one for one in kinds if getattr(run, one.__name__, None) is not one] == []


def test_the_walk_finds_parts_within_parts():
  names = {"num_rounds", "theta", "num_bins", "epsilon", "clip_norm", "folds"}
  assert {name for name, _ in _FLAGS} >= names and len(_FLAGS) > 100


@pytest.mark.parametrize("name", methods.METHODS)
def test_a_method_takes_the_flags_of_its_own_and_no_others(name):
  known = {
    flag.name: flag
    for kind in methods.METHODS.values()
    for flag in part.flags_by_field(kind).values()
  }
  own = part.flags(methods.METHODS[name])
  needed = {flag: _good(known[flag]) for flag in own if flag in known and known[flag].is_required}
  for left_out in needed:
    rest = {flag: value for flag, value in needed.items() if flag != left_out}
    with pytest.raises(ValueError, match=f"Found --algorithm={name} without --{left_out}; give"):
      build.resolve(run_config.from_values(algorithm=name, **rest), tasks.get_task("synthetic"))
  for other, flag in known.items():
    if other not in own and flag.default is None:  # A default tells of nobody who asked for it.
      said = f"Found --{other}=.* with --algorithm={name}; it belongs to --algorithm="
      with pytest.raises(ValueError, match=said):
        run_config.from_values(algorithm=name, **needed, **{other: _good(flag)})


def test_numbers_of_numpy_are_numbers():
  config = run_config.RunConfig(num_rounds=np.int64(5), max_loss=np.float32(1.5))
  assert (config.num_rounds, type(config.num_rounds)) == (5, int)
  assert (config.max_loss, type(config.max_loss)) == (1.5, float)
  for wrong in (True, np.bool_(True), np.float64(5.0), "5"):
    with pytest.raises(TypeError, match="Found --num_rounds=.* expected int"):
      run_config.RunConfig(num_rounds=wrong)


def test_a_kind_that_need_not_be_asked_for_says_whether_it_was():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Kind(part.Part):
    pass

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Whole(part.Part):
    kind: Kind = part.choice("kind", {"one": Kind}, "A kind.", default_kind=lambda _: "one")

  assert part.build(Whole, {"kind": "one"}).kind == Kind()
  with pytest.raises(TypeError, match="Found Kind without a field is_explicit: bool = True;"):
    part.build(Whole, {})
