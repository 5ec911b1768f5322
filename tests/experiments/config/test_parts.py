"""The parts of a run's config: what can be written down, and what their flags make of them."""

import itertools
import json
import math
import pathlib
import re
import subprocess
import sys
import types

from helpers import finished_runs
import pytest

from privacy import audit
from privacy import parts
from privacy.settings import part
import tasks
from tff_superquantile.experiments import run
from tff_superquantile.experiments.config import methods
from tff_superquantile.experiments.config import names
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.config import thresholds
from tff_superquantile.experiments.run import build
from tff_superquantile.experiments.run import private
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run import runner

_ROOT = pathlib.Path(__file__).parents[3]
_CLIP = run.FixedClip(norm=0.1)
_DEFAULTS = tasks.get_task("synthetic").defaults


def _resolved(config):
  return build.resolve(config, tasks.get_task("synthetic"))


@pytest.mark.parametrize(
  "config",
  [
    run.RunConfig(),
    run.RunConfig(method=run.QFedAvg(q=2), server=run.Adam(), keep=run.Best(patience=3)),
    run.RunConfig(
      method=run.Superquantile(threshold=run.Reweighting(smoothing=0.05)),
      local=run.Local(learning_rate=0.3, schedule=run.Cosine()),
    ),
    run.RunConfig(cohort=run.Poisson(size=20)),
    run.RunConfig(task=run.Request(num_train_clients=30, validation_fraction=0.1)),
    run.RunConfig(method=run.SemiVRed(beta=1), privacy=run.Budget(epsilon=3, clip=_CLIP)),
    run.RunConfig(
      method=run.Superquantile(threshold=run.Tree(num_bins=32)),
      privacy=run.Budget(
        epsilon=3, clip=run.AdaptiveClip(clip_quantile=0.4), relation="replace_one"
      ),
    ),
    run.RunConfig(
      method=run.Superquantile(threshold=run.Tree(noise_multiplier=2.0)),
      privacy=run.Noise(
        update_noise_multiplier=1.5, clip=_CLIP, shares=run.PrivateCoin(contacted=300)
      ),
    ),
  ],
)
def test_parts_are_what_flags_make_of_them(config):
  """As resolved: then a threshold that nobody asked for is there, too."""
  assert _resolved(config) == _resolved(run_config.from_flags(config.to_flags()))


_TREE = dict(threshold="tree")


@pytest.mark.parametrize(
  "values, chosen",
  [
    (dict(epsilon=3.0), _TREE),
    (dict(epsilon=3.0, num_bins=16, rho_ratio=0.3), _TREE),
    (dict(epsilon=3.0, noise_shares="helpers"), _TREE),
    (dict(update_noise_multiplier=2.0, threshold_noise_multiplier=3.0), _TREE),
    (dict(epsilon=3.0, theta=1.0), {}),
    (dict(epsilon=3.0, algorithm="fed_avg"), {}),
    (dict(epsilon=3.0, algorithm="gifair", fairness_strength=0.3, num_bins=16), {}),
    (dict(epsilon=3.0, threshold="tree", update_sum="distributed"), {}),
  ],
)
def test_secure_stands_for_two_other_flags(values, chosen):
  config = run_config.from_values(secure=True, clip_norm=0.1, **values)
  other = {**values, **chosen, "clip_norm": 0.1, "update_sum": "distributed"}
  assert config == run_config.from_values(**other)
  assert _resolved(config) == _resolved(run_config.from_values(**other))
  assert run_config.from_values(secure=False, **values) == run_config.from_values(**values)


@pytest.mark.parametrize("algorithm", methods.METHODS)
@pytest.mark.parametrize("server, schedule", [("sgd", "step"), ("yogi", "linear")])
@pytest.mark.parametrize("epsilon", [None, 3.0])
def test_flags_txt_makes_the_same_config(algorithm, server, schedule, epsilon):
  required = {one.name: 2.5 for one in methods.parameters(methods.METHODS[algorithm])}
  required = {n: v for n, v in required.items() if run_config.flags()[n].is_required}
  private_flags = {} if epsilon is None else dict(epsilon=epsilon, clip_norm="adaptive")
  config = run_config.from_values(
    algorithm=algorithm,
    server_optimizer=server,
    learning_rate_schedule=schedule,
    client_split="by_id",
    **required,
    **private_flags,
  )
  assert run_config.from_flags(config.to_flags()) == config
  assert part.build(run.RunConfig, config.values()) == config
  assert run_config.differences(config.to_flags(), config) == []


_KEPT = json.loads((finished_runs.KEPT / "configs.json").read_text())


@pytest.mark.parametrize("kept", _KEPT, ids=lambda kept: kept["folder"])
def test_flags_and_names_are_those_of_before_there_were_parts(kept):
  asked = run_config.from_values(**kept["given"])
  resolved = _resolved(asked)
  defaults = {name: str(value) for name, value in run_config.defaults().items()}
  flags = {n: text for n, text in resolved.to_flags().items() if text != defaults[n]}
  assert flags == kept["flags"]
  name = names.Name(names.folder(asked), asked)
  assert [name, name.label] == [kept["folder"], kept["label"]]
  assert [name.fed_avg, name.without_epsilon] == [kept["fed_avg"], kept["without_epsilon"]]
  # As flags.txt has them.
  written = {**{n: text for n, text in defaults.items() if text != "None"}, **kept["flags"]}
  assert names.label(run_config.from_flags(written)) == kept["resolved_label"]
  assert run_config.differences(written, resolved) == []


@pytest.mark.parametrize("left_out, is_older", [("exact_siblings", True), ("stop", False)])
def test_a_folder_of_an_earlier_version_is_one_sentence(left_out, is_older, tmp_path):
  path = tmp_path / "synthetic/fed_avg/seed_0"
  path.mkdir(parents=True)
  config = run_config.from_values(algorithm="fed_avg")
  texts = {n: text for n, text in config.to_flags().items() if n != left_out}
  (path / "flags.txt").write_text("".join(f"--{n}={text}\n" for n, text in texts.items()))
  if not is_older:
    assert run.find_runs(tmp_path)[0].config.method == run.FedAvg()
    return
  said = f"Found a run of a version before 0.4 in {path}; expected 0.4 or later: "
  for read in (
    lambda: run.find_runs(tmp_path)[0].config,
    lambda: run_folder.find_finished(path),
    lambda: audit.audit_folder(path),
    lambda: runner.train(run_config.from_values(algorithm="fed_avg", output_dir=str(tmp_path))),
  ):
    with pytest.raises(ValueError, match=said):
      read()


@pytest.mark.parametrize("method", [run.Superquantile, run.FedAvgSub])
@pytest.mark.parametrize("theta", [2, 0, -0.5, math.nan, math.inf])
def test_a_tail_fraction_is_refused_where_it_is_given(method, theta):
  with pytest.raises(ValueError, match="the tail fraction must lie in"):
    run.RunConfig(method=method(theta=theta))


def test_a_part_from_outside_that_has_gone_leaves_its_folder_s_name(tmp_path):
  path = tmp_path / "synthetic/mine/seed_0"
  path.mkdir(parents=True)
  texts = {**run.RunConfig().to_flags(), "algorithm": "gone:Method"}
  (path / "flags.txt").write_text("".join(f"--{n}={text}\n" for n, text in texts.items()))
  (found,) = run.find_runs(tmp_path)
  assert found.config is None and found.method.label == "mine"


@pytest.mark.parametrize(
  "write, said",
  [
    (lambda: run.Superquantile(thetta=0.5), "thetta"),
    (lambda: run.QFedAvg(), "q"),
    (lambda: run.Budget(clip=_CLIP), "epsilon"),
    (lambda: run.FedAvg(threshold=run.Exact()), "threshold"),
    (lambda: run.RunConfig(theta=0.5), "theta"),
    (lambda: run.RunConfig(method="superquantile"), "expected one of FedAvg, FedAvgSub"),
    (lambda: run.RunConfig(method=run.Superquantile), "expected one of FedAvg, FedAvgSub"),
    (lambda: run.RunConfig(server=run.Best()), "expected one of Sgd, Adam"),
    (lambda: run.Superquantile(threshold="tree"), "expected one of Exact"),
    (lambda: run.Superquantile(theta="a half"), "expected float"),
    (lambda: run.Sgd(learning_rate=True), "expected float"),
  ],
)
def test_what_is_wrong_cannot_be_written_down(write, said):
  with pytest.raises(TypeError, match=said):
    write()


@pytest.mark.parametrize(
  "flags, said",
  [
    (dict(threshold_step=-1.0), "threshold_step = -1.0; expected a"),
    (dict(algorithm="fed_avg", num_bins=10**10), "--num_bins=10000000000; expected at most"),
  ],
)
def test_flags_that_nothing_has_are_checked_by_themselves(flags, said):
  run_config.from_values(**{name: flag.default for name, flag in run_config.flags().items()})
  with pytest.raises(ValueError, match=said):
    run_config.from_values(**flags)


def test_noise_of_nothing_is_refused():
  with pytest.raises(ValueError, match="give one of them"):
    _resolved(run.RunConfig(privacy=run.Noise()))


def test_a_private_run_has_noise_wherever_something_is_released(monkeypatch):
  """Whatever part was left out: nothing is released without noise, and that of the release."""
  monkeypatch.setattr(build, "build_options", lambda *of_run: {})
  monkeypatch.setattr(run.Superquantile, "build_private", lambda method, inputs: inputs)
  files = types.SimpleNamespace(client_ids=range(2500))
  kinds = (None, run.Geometric(), run.Tree(), run.PrimalDual())
  clips = (_CLIP, run.AdaptiveClip())
  for threshold, clip in itertools.product(kinds, clips):
    config = run.RunConfig(
      method=run.Superquantile(threshold=threshold), privacy=run.Budget(epsilon=5, clip=clip)
    )
    resolved = _resolved(config)
    config, release = private.calibrate(resolved, 2500, 610, {})
    noise = config.privacy.noise_multipliers(config.method.threshold)
    assert len(noise) == 2 + isinstance(clip, run.AdaptiveClip)
    assert all(z is not None and z > 0 for z in noise.values())
    assert release == private.build_release(config, 2500, 610)
    assert release.noise_multipliers == noise
    # The process takes its noise from there: this config has none.
    inputs = build.build_process(resolved, None, files, release, bytes(16))
    summed = inputs.work["private"]
    of_clip = getattr(summed.clip_norm, "count_noise_multiplier", None)
    assert [inputs.threshold.z, summed.noise_multiplier, of_clip][: len(noise)] == [*noise.values()]


def test_whoever_computes_with_a_part_has_a_builder_for_each_class():
  assert set(thresholds.BUILDERS) == set(parts.THRESHOLDS.values())


_RIGHT = """
from tff_superquantile.experiments import run
from tff_superquantile.experiments.config import run_config

config = run.RunConfig(
  method=run.Superquantile(theta=0.25, threshold=run.Tree(num_bins=32)),
  privacy=run.Budget(epsilon=5.0, clip=run.FixedClip(norm=0.1)),
)
theta: float = run.Superquantile(theta=0.25).theta
resolved = run_config.with_defaults(config)
num_rounds: int = resolved.num_rounds
rate: float = resolved.local.learning_rate * resolved.local.schedule.factor(0.0, 1, None)
"""
_WRONG = """
run.Superquantile(thetta=0.25)
run.RunConfig(theta=0.25)
run.RunConfig(method=run.Tree())
config.thetta
"""
# What --strict says of a user's file, beyond what pyproject.toml says of all. With the flag itself
# mypy would take nothing from its cache, which this project's own check has just filled.
_STRICT = """
# mypy: disallow-any-generics, disallow-subclassing-any, disallow-untyped-calls
# mypy: disallow-untyped-defs, disallow-incomplete-defs, disallow-untyped-decorators
# mypy: warn-return-any, no-implicit-reexport, extra-checks
"""
# What a page leaves out, as its reader knows it.
_UNTYPED = ("no-untyped-def", "no-untyped-call")


def _snippets():
  """The Python of README, of docs/how_to and of notebooks, where configs are used, by page.

  Each is a list of pieces: the blocks of a page one by one, the cells of a notebook together.
  """
  found = {}
  for path in [_ROOT / "README.md", *sorted((_ROOT / "docs" / "how_to").glob("*.md"))]:
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)
    found.update({f"{path.stem}_{number}": [block] for number, block in enumerate(blocks)})
  for path in sorted((_ROOT / "docs" / "tutorials").glob("*.ipynb")):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code"]
    found[path.stem] = [source for source in sources if not source.startswith(("%", "!"))]
  return {
    name: pieces
    for name, pieces in found.items()
    if any("from tff_superquantile.experiments import run" in piece for piece in pieces)
  }


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
  """{snippet: {line: what mypy finds there, as by --strict}}, of one call for all of them."""
  folder = tmp_path_factory.mktemp("snippets")
  snippets = {**_snippets(), "wrong": [_RIGHT + _WRONG]}
  found, used = {name: {} for name in snippets}, {}
  for name, pieces in snippets.items():
    (folder / f"{name}.py").write_text("".join([*pieces, _STRICT]), encoding="utf-8")
    # Other cells use what has no types.
    used[name] = [
      bool(re.search(r"\brun\.\w|import run\b", piece))
      for piece in pieces
      for _ in piece.split("\n")[1:]
    ]
  result = subprocess.run(
    [sys.executable, "-m", "mypy", *(str(folder / f"{name}.py") for name in snippets)],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 1, result.stdout + result.stderr
  for line in result.stdout.splitlines():
    match = re.search(r"(\w+)\.py:(\d+): error: (.*?)(  \[([\w-]+)\])?$", line)
    if match and match[1] in found and match[5] not in _UNTYPED:
      if used[match[1]][int(match[2]) - 1]:
        found[match[1]][int(match[2])] = match[3]
  return found


def test_a_users_mistakes_are_found_by_a_type_checker(findings):
  first = _RIGHT.count("\n") + 2
  assert set(findings["wrong"]) == set(range(first, first + 4)), findings["wrong"]


def test_snippets_of_the_pages_are_type_checked(findings):
  assert {"run_one_experiment_0", "read_results_0", "colab", "own_clients"} <= set(findings)
  assert {name: found for name, found in findings.items() if found and name != "wrong"} == {}


def test_nothing_that_a_round_needs_is_none():
  resolved = run_config.with_defaults(run.RunConfig(), _DEFAULTS)
  assert resolved.num_rounds == _DEFAULTS["num_rounds"] and resolved.stop == "never"
  assert resolved.local.schedule.factor(0.0, 1, math) == 1.0
  assert resolved.cohort.is_explicit and resolved.method.threshold.is_explicit
  for name in _DEFAULTS:
    with pytest.raises(ValueError, match=f"Found .* --{name}; expected a value"):
      run_config.with_defaults(run.RunConfig(), {**_DEFAULTS, name: None})


def test_methods_have_usual_values_in_help_and_on_their_page():
  page = (_ROOT / "docs" / "how_to" / "which_method.md").read_text(encoding="utf-8")
  rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
  listed = {algorithm.strip(" `"): [flag, usual] for algorithm, flag, usual, *_ in rows[1:]}
  assert set(listed) == set(methods.METHODS)
  for name, kind in methods.METHODS.items():
    flag, usual = (cell.strip(" `") for cell in listed[name])
    own = {f"--{one.name}": one for one in part.flags_by_field(kind).values()}
    assert not flag or flag in own
    for one in own.values():
      if one.is_required:
        assert flag == f"--{one.name}"
        (said,) = re.findall(r"Usual: ([\d.]+)", one.help)
        assert usual.split()[0] == said
