"""Parts from outside: what is refused, and what a private run takes of them."""

import json

import pytest

from privacy import parts
from privacy import statements
from privacy.settings import part
import tasks
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.export import formats
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import private

# What is refused.

_HEAD = """\
import dataclasses
from privacy.settings import flag
from tff_superquantile.experiments import run
from tff_superquantile.experiments.config import methods

@dataclasses.dataclass(frozen=True, kw_only=True)
"""
_METHOD = "class Mine({base}):\n{body}"
_BUILD = "  def build(self, run):\n    return None\n"
_SHARE = "  def share(self, max_loss):\n    return abs\n"
_RELATIVE = "  def relative_share(self):\n    return None\n"


def _method(base="Method", body=_BUILD, head=_HEAD):
  base = base if "." in base else f"run.{base}"
  return head + _METHOD.format(base=base, body=body)


@pytest.mark.parametrize(
  "code, said",
  [
    ("1 / 0", r"whose import raised ZeroDivisionError in \S+mine.py, line 1: division by zero"),
    ("class Mine(", r"whose import raised SyntaxError: .* \(mine.py, line 1\); mend it"),
    ("import missing_library", "whose import raised ModuleNotFoundError in .*line 1: No module"),
    ("from . import other", "whose import raised ImportError in .*line 1: attempted relative"),
    ("raise SystemExit(0)", "whose import raised SystemExit"),
    ("", r"which is not there; expected a subclass of Method in \S+mine.py\."),
    (_method().replace("Mine", "Yours"), r"not there; .*mine.py, such as Yours\."),
    ("Mine = 1", "which is no Method"),
    ("class Mine: pass", "which is no Method"),
    (_method(body="  title = 'Mine'\n"), "which lacks build"),
    (
      _method(body=f"  seed: float = flag.field(1.0, 'A.')\n{_BUILD}"),
      "Found --seed of Mine, which",
    ),
    (
      _method(
        body=f"  cap: float = flag.field(1.0, 'A.')\n{_BUILD}", head=_HEAD.rpartition("@")[0]
      ),
      "which lacks @dataclasses.dataclass",
    ),
  ],
)
def test_what_is_no_method_is_refused(code, said, write):
  with pytest.raises(ValueError, match=said):
    run_config.from_values(algorithm=write(code))
  assert "mine:Mine" not in methods.METHODS


def test_a_class_may_have_the_name_of_another(write):
  name = write(_method("FedAvg", "  pass\n").replace("Mine", "FedAvg")).replace("Mine", "FedAvg")
  config = run_config.from_values(algorithm=name, client_split="by_id")
  assert config.algorithm == "mine:FedAvg" and config.method.title == "FedAvg"
  assert run_config.from_values(algorithm="fed_avg").algorithm == "fed_avg"
  assert run_config.from_flags(config.to_flags()) == config
  assert run_config.RunConfig(method=type(config.method)()).algorithm == "mine:FedAvg"


def test_defaults_of_a_flag_from_outside_are_nobody_elses(write):
  name = write(_method(body=f"  cap: float = flag.field(1.5, 'Cap.', short='cap')\n{_BUILD}"))
  config = run_config.from_values(algorithm=name, cap=2.0, client_split="by_id")
  assert config.to_flags()["cap"] == "2.0"
  assert run_config.from_flags(config.to_flags()) == config
  assert "cap" not in run_config.from_values(algorithm="fed_avg").to_flags()
  with pytest.raises(ValueError, match="Found --cap=2.0 with --algorithm=fed_avg; it belongs to"):
    run_config.from_values(algorithm="fed_avg", cap=2.0)


_OTHER_SUM = "  def build_private(self, run):\n    return None\n"
_NOTHING = "  RELEASED = ()\n"


@pytest.mark.parametrize(
  "base, body, said",
  [
    ("OwnLossMethod", _SHARE, None),
    ("RelativeMethod", _RELATIVE, None),
    ("FedAvg", "  pass\n", None),
    ("Superquantile", "  pass\n", None),
    ("Method", _BUILD, "in a private run; use one of fed_avg"),
    ("OwnLossMethod", _SHARE + _OTHER_SUM, "with build_private of its own"),
    ("FedAvg", _OTHER_SUM, "with build_private of its own"),
    # Whatever it says of itself, and of where it is from.
    ("OwnLossMethod", _NOTHING + _SHARE + _OTHER_SUM, "with build_private of its own"),
    ("RelativeMethod", _NOTHING + _RELATIVE + _BUILD, "with build of its own"),
    ("FedAvg", _NOTHING + _BUILD, "with build of its own"),
    ("methods.PrivateMethod", _NOTHING + _BUILD, "with build of its own"),
    ("FedAvg", f"  __module__ = 'privacy.parts'\n{_OTHER_SUM}", "with build_private of its own"),
    ("OwnLossMethod", _SHARE.replace("return", "return lambda loss: 100 *"), None),
    ("OwnLossMethod", f"{_SHARE}  weighted_updates = False\n", "with weighted_updates of its own"),
    ("RelativeMethod", f"{_RELATIVE}  threshold: None = None\n", "with threshold of its own"),
    (
      "OwnLossMethod",
      f"{_SHARE}  @property\n  def threshold(self): pass\n",
      "with threshold of its own",
    ),
  ],
)
def test_a_private_run_takes_methods_that_leave_the_release_alone(base, body, said, write):
  name = write(_method(base, body))
  config = run_config.from_values(algorithm=name, epsilon=3.0, clip_norm=0.1)
  if said is None:
    assert build.resolve(config, tasks.get_task("synthetic")).algorithm == name
    return
  with pytest.raises(ValueError, match=said):
    build.resolve(config, tasks.get_task("synthetic"))


@pytest.mark.parametrize(
  "base, body, is_accounted",
  [
    ("Geometric", "  def build(self, run): return 'exact'\n", True),
    ("OneBit", "  kind, gain = 'mine', 0.1\n", False),
    ("Geometric", "  replace_one_factor = 0.5\n", False),
    ("Geometric", "  @property\n  def z(self): return 9.0\n", False),
    ("Exact", "  pass\n", False),
  ],
)
def test_a_private_threshold_changes_nothing_that_is_accounted_for(base, body, is_accounted, write):
  code = f"from privacy import parts\n\nclass Mine(parts.{base}):\n{body}"
  config = run_config.from_values(threshold=write(code), epsilon=3.0, clip_norm=0.1)
  if is_accounted:
    resolved = build.resolve(config, tasks.get_task("synthetic"))
    assert resolved.values()["threshold"] == "mine:Mine"
    return
  with pytest.raises(ValueError, match="Found --threshold=mine:Mine in a private run; use one of"):
    build.resolve(config, tasks.get_task("synthetic"))


def test_the_projects_own_parts_are_those_that_the_accountant_knows():
  private = {
    name for name in methods.METHODS.own if issubclass(methods.METHODS[name], methods.PrivateMethod)
  }
  assert statements.OWN_PARTS["algorithm"] == private
  assert statements.OWN_PARTS["threshold"] == parts.THRESHOLDS.own
  assert statements.OWN_PARTS["task"] == set(tasks.task_names())


def test_ledgers_say_gaps_of_the_methods_that_judge_by_them():
  found = {}
  for name in sorted(statements.OWN_PARTS["algorithm"]):
    flags = part.flags(methods.METHODS[name])
    needed = {key: 0.5 for key, flag in flags.items() if flag.is_required}
    needed |= {"utility_bound": 20.0} if "utility_bound" in flags else {}
    for by in ("loss", "gap") if "tail_by" in flags else (None,):
      values = {**needed, **({} if by is None else {"tail_by": by})}
      config = run_config.from_values(algorithm=name, **values)
      found[name, by] = config.method.judges_gaps
      said = statements.judged(config.to_flags())
      assert said == ("loss gaps" if config.method.judges_gaps else "losses")
  assert [key for key, is_gap in found.items() if is_gap] == [
    ("eagle", None),
    ("superquantile", "gap"),
  ]


@pytest.mark.parametrize("name", ["algorithm", "threshold", "task", None])
def test_a_private_run_names_its_parts_from_outside(name, write, monkeypatch, tmp_path):
  """As hosp.py, plug.py: a task over the same patients, a method that peeks, a quiet threshold."""
  code = {
    "algorithm": _method("OwnLossMethod", _SHARE),
    "threshold": "from privacy import parts\n\nclass Mine(parts.Geometric): pass\n",
    "task": "import dataclasses, tasks\nMine = tasks.get_task('synthetic')\n",
  }
  values = {} if name is None else {name: write(code[name])}
  config = run_config.from_values(epsilon=3.0, clip_norm=0.1, **values)
  outside = statements.from_outside(config.to_flags())
  assert outside == ([] if name is None else [f"--{name}=mine:Mine"])
  task = build.get_task(config)
  resolved = build.resolve(run_config.with_values(config, num_rounds=2), task)
  resolved, release = private.calibrate(resolved, 1000, 60, {})
  account = accounts.Account(resolved, release, tmp_path, 60)
  account.write(0)
  said = json.loads((tmp_path / "privacy.json").read_text())["not_covered"]
  sentences = [sentence for name, sentence in said.items() if name == "outside"]
  assert len(sentences) == len(outside) and all(outside[0] in text for text in sentences)
  assert all(sentence in account.describe() for sentence in sentences)


def test_an_installed_package_names_its_parts(write, tmp_path):
  def install(package, target):
    folder = tmp_path / f"{package}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    groups = {"methods": ("shorn", target), "exports": ("words", "mine:WORDS")}
    (folder / "entry_points.txt").write_text(
      "".join(f"[tff_superquantile.{g}]\n{n} = {t}\n" for g, (n, t) in groups.items())
    )

  install(
    "first",
    write(
      f"{_method()}\nfrom tff_superquantile.experiments.export import formats\n"
      "WORDS = formats.Format('words', 'words', print)\n"
    ),
  )
  config = run_config.from_values(algorithm="shorn")
  assert config.algorithm == "shorn" and config.method.title == "Mine"
  assert formats.FORMATS.load("words") and formats.FORMATS.pop("words").purpose == "words"
  with pytest.raises(ValueError, match="expected one of fed_avg"):
    run_config.from_values(algorithm="shor")
  install("second", "other:Mine")
  del methods.METHODS["shorn"]
  with pytest.raises(
    ValueError, match="shorn in 2 packages; expected one of mine:Mine, other:Mine"
  ):
    run_config.from_values(algorithm="shorn")
