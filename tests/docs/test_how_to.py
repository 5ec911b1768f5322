"""What the how-to pages and the README tell people to type exists, and what they quote is said."""

import ast
import functools
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from helpers import commands
from helpers import flat
from helpers import pages
from helpers import run_folders
import pytest

from privacy import account
from privacy import accounting
from privacy import ledger
from tff_superquantile.experiments.plan import presets

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs/how_to").glob("*.md"))]
_BUDGET_PAGE = _ROOT / "docs/how_to/compute_a_budget.md"
# The modules, and their first arguments, of experiments that are no sweeps.
_COMMAND_OF = {
  "private_quantile": ("paper.studies", "private_quantile"),
  "sampling_noise": ("paper.studies", "sampling_noise"),
  "tailbench": ("benchmarks.tailbench",),
  "convergence": ("paper.convergence",),
  "nonconvex": ("paper.nonconvex",),
  "paper": ("paper.statements",),
  "doctor": ("tff_superquantile.doctor",),
  "download": ("tff_superquantile.experiments.download",),
}
_SWEEP = "tff_superquantile.experiments.sweep"
_REPORT = "tff_superquantile.experiments.report"
_CLUSTER = "tff_superquantile.experiments.cluster"
_ACCOUNT = "privacy.account"
# Commands whose first arguments are files: of a run or task, or an export and its rows.
_NUM_FOLDERS = {
  "tff_superquantile.experiments.audit_canaries": 0,
  "tff_superquantile.experiments.private_evaluation": 1,
  "tff_superquantile.experiments.evaluate": 1,
  "tff_superquantile.experiments.export": 1,
  "tff_superquantile.experiments.export.personalize": 2,
  "tff_superquantile.experiments.references": 1,
}
_PYTHONS = (pages.PYTHON, "python3")
_FLAGS_OF_ALL = {"help", "flagfile"}
# Not ours: what is given to them is not checked.
_OTHERS = {
  *("cd", "curl", "git", "hf", "mkdir", "pip", "sbatch", "ssh", "tar", "true", "unzip", "xargs"),
  *("for", "do", "done"),  # Of a loop, whose commands are looked at one by one.
  "./preprocess.sh",
}
_IMAGE = "tff_superquantile"
_DOCKER_FLAGS = {"--rm", "-it", "-v", "--user", "--shm-size", "--platform", "--memory", "--cpus"}


# Reading pages.


def _commands():
  return [
    pytest.param(words, id=f"{page.stem}: {' '.join(words)}")
    for page in _PAGES
    for words in pages.commands(page)
  ]


# What exists.


@functools.cache
def _flags_of(module, *command):
  """The flags of a module by name: their choices, or None, as its --help lists them."""
  with tempfile.TemporaryDirectory() as folder:
    result = commands.carry_out(module, *command, "--help", folder=pathlib.Path(folder))
  assert result.code == 0 and result.out, result.err
  found = {}
  for name, choices in re.findall(
    r"^ +(?:-h, )?--([a-z_0-9]+)(?: (\S+\|\S+))?", result.out, re.MULTILINE
  ):
    found[name] = None if not choices or "MODULE" in choices else choices.split("|")
  return found


def _check_flags(arguments, module, *command):
  flags = _flags_of(module, *command)
  if any(re.fullmatch(r"--\w+=\w+:\w+", argument) for argument in arguments):
    return  # Of a part from outside, which has flags of its own: test_additions carries it out.
  for argument in arguments:
    assert argument.startswith("--"), f"{argument} is no flag"
    name, _, value = argument[2:].partition("=")
    if name in _FLAGS_OF_ALL:
      continue
    assert name in flags or name.removeprefix("no") in flags, f"{module} has no --{name}"
    choices = flags.get(name)
    # "..." and capitals stand for anything.
    if choices and not re.fullmatch(r"[A-Z_]+|\.\.\.", value):
      assert value in choices, f"--{name}={value} is none of {choices}"


def _check_experiment(arguments):
  experiment = "default"
  if arguments and not arguments[0].startswith("-"):
    experiment, *arguments = arguments
  if experiment == "download":
    assert arguments.pop(0) in ("emnist", "sent140", "shakespeare", "all")
  if experiment in _COMMAND_OF:
    _check_flags(arguments, *_COMMAND_OF[experiment])
  else:
    assert experiment in presets.PRESETS
    _check_flags(arguments, _SWEEP)


def _check_account(arguments, capsys):
  code = account.run(arguments)
  out, err = capsys.readouterr()
  if arguments[0] == "audit":  # The flags are right, and there is no such run here.
    assert (code, out) == (account.USAGE_ERROR, "") and err.startswith("Error: Found no folder")
  else:
    assert (code, err) == (account.SUCCESS, "")


def _check_docker(verb, arguments):
  if arguments[0] == "--platform=linux/amd64":
    del arguments[0]
  if verb == "build":
    assert arguments == ["-t", _IMAGE, "."] and (_ROOT / "Dockerfile").exists()
    return
  while arguments[0].startswith("-"):
    name = arguments.pop(0).partition("=")[0]
    assert name in _DOCKER_FLAGS
    if name == "-v":
      arguments.pop(0)
  assert (verb, arguments.pop(0)) == ("run", _IMAGE)
  _, *words = pages.as_module(["./run_experiments.sh", *arguments])
  if words[:1] == ["-m"]:
    _check_flags(words[2:], words[1])
  else:
    _check_experiment(words)


_WORDS_OF_WHEEL = _ROOT / "tests" / "helpers" / "glove_from_wheel.py"
_PAGE_OF_DATA = _ROOT / "docs" / "how_to" / "get_data.md"


@pytest.mark.parametrize("words", _commands())
def test_command_exists(words, capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # Where files are written.
  program, *arguments = words
  if program == "./run_experiments.sh":
    _check_experiment(arguments)
  elif program in _PYTHONS and arguments[0] == "-m" and arguments[1] == _ACCOUNT:
    _check_account(arguments[2:], capsys)
  elif program in _PYTHONS and arguments[0] == "-m" and arguments[1] in _NUM_FOLDERS:
    end = 2 + _NUM_FOLDERS[arguments[1]]
    assert not any(argument.startswith("--") for argument in arguments[2:end])
    _check_flags(arguments[end:], arguments[1])
  elif program == ".venv/bin/pip" and arguments[0] == "install":
    (requirement,) = arguments[1:]
    assert requirement in (_ROOT / "setup.cfg").read_text(encoding="utf-8")
  elif program == ".venv/bin/pip":
    assert " ".join(["pip", *arguments]) in _WORDS_OF_WHEEL.read_text(encoding="utf-8")
  elif program in _PYTHONS and arguments[0].endswith(".py"):
    assert _ROOT / arguments[0] == _WORDS_OF_WHEEL and len(arguments) == 3
    assert f"`{arguments[1].split('-')[0].replace('_', '-')}`" in _PAGE_OF_DATA.read_text()
  elif program in _PYTHONS:
    assert arguments[0] == "-m"
    _check_flags(arguments[2:], arguments[1])
  elif program == ".venv/bin/tensorboard":
    assert [argument.partition("=")[0] for argument in arguments] == ["--logdir"]
  elif program == "docker":
    _check_docker(arguments[0], arguments[1:])
  elif program in ("./run_tests.sh", "scripts/build_docs.sh"):
    assert (_ROOT / program).exists() and arguments in ([], ["--quick"])
  else:
    assert program in _OTHERS


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_flags_in_the_text_exist(page):
  text = page.read_text(encoding="utf-8")
  known = {*_FLAGS_OF_ALL, *(flag.lstrip("-") for flag in _DOCKER_FLAGS)}
  for command in ((_SWEEP,), (_REPORT,), *_COMMAND_OF.values()):
    known.update(_flags_of(*command))
  for command in ("calibrate", "spend", "compose", "audit"):
    known.update(_flags_of(_ACCOUNT, command))
  for command in (*_NUM_FOLDERS, *(f"{_CLUSTER}.{name}" for name in ("scheduler", "worker"))):
    known.update(_flags_of(command))
  assert set(re.findall(r"`--([a-z_-]+)", text)) <= known


# What is shown.


def _assert_shown(shown, output):
  """Asserts that lines are in the output one after the other, `...` standing for any lines."""
  output = [line.rstrip() for line in output.splitlines()]
  position, gap = 0, False
  for line in shown.rstrip("\n").split("\n"):
    if line.strip() == "...":
      gap = True
    elif gap:
      assert line in output[position:], f"{line!r} is not in the output from line {position} on"
      position, gap = output.index(line, position) + 1, False
    else:
      assert position < len(output) and line == output[position]
      position += 1
  assert gap or position == len(output)


def _shown_answers():
  """(arguments, output) of each budget that the page shows with its answer."""
  command = None
  for language, content, follows in pages.fenced(_BUDGET_PAGE.read_text(encoding="utf-8")):
    if language == "text" and follows and command and command[2] == _ACCOUNT:
      yield pytest.param(command[3:], content, id=" ".join(command[2:5]))
    commands = pages.split(content) if language == "sh" else []
    command = commands[0] if len(commands) == 1 else None


def _private_run():
  """The flags of the private run of the page."""
  text = _BUDGET_PAGE.read_text(encoding="utf-8")
  (words,) = [
    words
    for language, content, _ in pages.fenced(text)
    if language == "sh"
    for words in pages.split(content)
    if any(word.startswith("--clip_norm") for word in words) and words[2] != _ACCOUNT
  ]
  return dict(word[2:].split("=") for word in words[3:])


def _write_private_run(folder):
  """What the private run of the page leaves, as far as an audit reads it; returns its noise."""
  flags = {name: float(value) for name, value in _private_run().items()}
  num_rounds, delta = int(flags["num_rounds"]), 1e-5
  budget = dict(
    population=2500,
    clients_per_round=100,
    num_rounds=num_rounds,
    threshold_kind="geometric",
  )
  whole = flat.calibrate(flags["epsilon"], delta, rho_ratio=None, **budget)
  ratio = float(f"{flat.default_rho_ratio(whole, 210, threshold_kind='geometric'):.3g}")
  release = flat.calibrate(flags["epsilon"], delta, rho_ratio=ratio, **budget)
  entry = ledger.build_ledger(
    accounting.Accountant(release, delta),
    claim_epsilon=flags["epsilon"],
    clip_norm=flags["clip_norm"],
    num_rounds_planned=num_rounds,
    rounds_done=num_rounds,
  )
  run_folders.write(folder, entry, num_rounds, **flags)
  return release


@pytest.mark.parametrize("arguments, shown", _shown_answers())
def test_answer_is_as_shown(arguments, shown, capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  if arguments[0] == "audit":
    _write_private_run(tmp_path / arguments[1])
  assert account.run(arguments) == account.SUCCESS
  _assert_shown(shown, capsys.readouterr().out)


def test_answers_are_shown():
  verbs = {param.values[0][0] for param in _shown_answers()}
  assert verbs == {"calibrate", "spend", "audit", "compose"}


def test_noise_of_the_private_run_is_as_shown(tmp_path):
  release = _write_private_run(tmp_path / "run")
  text = _BUDGET_PAGE.read_text(encoding="utf-8")
  assert f"Noise multiplier of the updates: {flat.of(release).update_noise_multiplier:.4g}" in text
  assert f"geometric threshold: {flat.of(release).threshold_noise_multiplier:.4g}" in text
  noise = (
    flat.of(release).update_noise_multiplier
    * math.sqrt(210)
    / (0.5 * flat.of(release).clients_per_round)
  )
  assert f"round's mean is about {noise:.2g} times as long" in text


@pytest.mark.parametrize("shown", ["a\nb\n", "a\nb\nd\n", "a\n...\nd\n", "b\nc\n"])
def test_shown_output_is_compared(shown):
  with pytest.raises(AssertionError):
    _assert_shown(shown, "a\nb\nc\n")


def _first_comparison(page):
  """(code before it, arguments of the script, output) of the first comparison with its output."""
  code, command, shown = "", [], []
  for language, content, _ in pages.fenced(
    (_ROOT / "docs/how_to" / page).read_text(encoding="utf-8")
  ):
    if language == "text" and command:
      shown.append(content)
    elif language == "python":
      code += content
    elif language == "sh" and shown:
      break
    elif language == "sh":
      command = pages.split(content)[0] if content.count("./run_experiments.sh") == 1 else []
  return code, command[1:], "...\n".join([*shown, ""])


@pytest.mark.slow
@pytest.mark.parametrize("page", ["own_data.md", "run_one_experiment.md"])
def test_comparison_is_as_shown(page, tmp_path, monkeypatch, shared_dir):
  code, arguments, shown = _first_comparison(page)
  monkeypatch.chdir(tmp_path)
  for path in (shared_dir / "data").glob("*.json"):
    (tmp_path / path.name).symlink_to(path)
  exec(code, {})
  name = "default" if arguments[0].startswith("-") else arguments.pop(0)
  result = subprocess.run(
    [sys.executable, "-m", _SWEEP, f"--experiment={name}", *arguments],
    env={**os.environ, "PYTHONPATH": str(_ROOT)},
    capture_output=True,
    text=True,
    check=True,
  )
  _assert_shown(shown, result.stdout)


# What is quoted.

_LEAST_LETTERS = 12


@functools.cache
def _said():
  """Pieces of all texts in the sources between what is filled in."""
  pieces = set()
  for folder in ("paper", "privacy", "tasks", "tff_superquantile"):
    for path in (_ROOT / folder).rglob("*.py"):
      for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
          pieces.add(node.value)
  for path in (_ROOT / "scripts/venv.sh", _ROOT / "run_experiments.sh"):
    shell = re.sub(r'" \\\n\s*"', " ", path.read_text(encoding="utf-8"))
    pieces.update(re.split(r'"|\$\w+|\$\{[^}]*\}', shell))
  return [piece for piece in pieces if len(piece.strip()) >= _LEAST_LETTERS]


def _quoted():
  for page in _PAGES:
    section = page.read_text(encoding="utf-8").partition("## What can go wrong")[2]
    for message in re.findall(r"^\| `([^`|]*)`", section, re.MULTILINE):
      yield pytest.param(message, id=f"{page.stem}: {message[:40]}")


@pytest.mark.parametrize("message", _quoted())
def test_quoted_message_is_one(message):
  """Each part of a message is within a text of the sources, or has one within it."""
  parts = [part.strip() for part in message.split("...")]
  parts = [part for part in parts if len(part) >= _LEAST_LETTERS]
  assert parts
  for part in parts:
    assert any(part in piece or piece.strip() in part for piece in _said()), part
