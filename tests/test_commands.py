"""The front: each command of the table describes itself, and turns mistakes into sentences."""

import configparser
import importlib.util
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys

import pytest

from privacy.settings import command_line
import tff_superquantile
from tff_superquantile import commands
from tff_superquantile.experiments import failures

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# All in one process: {command: (exit code of --help, its page)}, and what it has imported.
_HELP = """
import contextlib, io, json, sys
import tff_superquantile
from tff_superquantile import commands
pages = {}
for name in ["", *commands.COMMANDS]:
  with contextlib.redirect_stdout(io.StringIO()) as page:
    try:
      code = commands.main(["--help"] if not name else [name, "--help"])
    except SystemExit as error:
      code = error.code
  pages[name] = [code, page.getvalue()]
print(json.dumps([pages, sorted({"tensorflow", "matplotlib", "jax"} & sys.modules.keys())]))
"""


def _python(*arguments, folder=_ROOT, **kwargs):
  path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
  return subprocess.run(
    [sys.executable, *arguments],
    **{"stdout": subprocess.PIPE, **kwargs},
    stderr=subprocess.PIPE,
    text=True,
    check=False,
    cwd=folder,
    env={**os.environ, "PYTHONPATH": path},
  )


@pytest.fixture(scope="module")
def pages():
  done = _python("-c", _HELP)
  assert (done.returncode, done.stderr) == (0, "")
  return json.loads(done.stdout)


def test_help_starts_no_tensorflow(pages):
  assert pages[1] == []


def test_the_list_has_all_commands(pages):
  code, page = pages[0][""]
  assert code == 0
  for name, command in commands.COMMANDS.items():
    assert re.search(rf"^  {name} +{re.escape(command.sentence)}$", page, re.M)
  assert _python("-m", "tff_superquantile").stdout == page
  reference = (_ROOT / "docs/reference/experiments.md").read_text(encoding="utf-8")
  rows = [f"| `{name}` | {command.sentence} |" for name, command in commands.COMMANDS.items()]
  assert "\n|---|---|\n" + "\n".join(rows) + "\n\n" in reference
  config = configparser.ConfigParser()
  config.read(_ROOT / "setup.cfg")
  (script,) = config["options.entry_points"]["console_scripts"].split("\n")[1:]
  assert script == f"superquantile = {commands.__name__}:{commands.main.__name__}"


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_each_command_describes_itself(pages, name):
  code, page = pages[0][name]
  assert code == 0 and page.startswith(f"usage: superquantile {name} ")
  description = importlib.import_module(commands.COMMANDS[name].module).__doc__
  assert description.strip() in page
  # As users start it without the script.
  module = commands.COMMANDS[name].module.removesuffix(".__main__")
  assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize("arguments", [["--no_such_flag=1"], ["--no_such_flag", "1"], ["x"] * 9])
@pytest.mark.parametrize("name", commands.COMMANDS)
def test_a_wrong_argument_is_one_sentence(name, arguments, capsys):
  assert commands.main([name, *arguments]) == command_line.USAGE_ERROR
  printed = capsys.readouterr()
  assert printed.out == ""
  assert re.fullmatch(r"Error: Found .*; expected .*\n", printed.err), printed.err


@pytest.mark.parametrize("arguments", [["--help"], ["install_tff", "--help"]])
def test_a_reader_may_go(arguments):
  reading, writing = os.pipe()
  os.close(reading)
  done = _python("-m", "tff_superquantile", *arguments, stdout=writing)
  os.close(writing)
  assert (done.returncode, done.stderr) == (0, "")


def test_versions_and_help_by_other_words(capsys):
  for words in (["--version"], ["version"]):
    assert commands.main(words) == 0
    assert capsys.readouterr().out == f"tff_superquantile {tff_superquantile.__version__}\n"
  assert commands.main(["help"]) == 0 and commands.main([]) == 0
  listed = capsys.readouterr().out
  assert listed[: len(listed) // 2] == listed[len(listed) // 2 :]
  assert commands.main(["nothing like it"]) == command_line.USAGE_ERROR
  assert capsys.readouterr().err.endswith("'nothing like it'; expected one that --help lists.\n")


def test_an_unknown_command_is_told_the_nearest(capsys):
  assert commands.main(["trian", "--theta=0.5"]) == command_line.USAGE_ERROR
  sentence = "Error: Found no command 'trian'; did you mean 'train'? (--help lists them.)\n"
  assert capsys.readouterr() == ("", sentence)


def test_a_module_in_the_users_folder_hides_nothing_and_is_found(tmp_path):
  (tmp_path / "tasks.py").write_text("raise AssertionError")
  (tmp_path / "mine.py").write_text("raise RuntimeError('of mine')")
  script = "import sys; sys.path.pop(0); from tff_superquantile import commands;"
  arguments = ["train", "--algorithm=mine:Method"]
  done = _python("-c", f"{script} sys.exit(commands.main({arguments}))", folder=tmp_path)
  assert done.returncode == command_line.USAGE_ERROR
  assert "import raised RuntimeError" in done.stderr and "of mine" in done.stderr


def test_modules_with_our_packages_names_are_looked_for_last_or_named(tmp_path):
  for name in ("privacy", "tasks"):
    (tmp_path / f"{name}.py").write_text("raise AssertionError")
  for command in (["account", "noise"], ["train", "--num_rounds=0"]):
    done = _python("-m", "tff_superquantile", *command, folder=tmp_path)
    assert done.returncode == command_line.USAGE_ERROR and done.stderr.startswith("Error: Found ")
  # A program's own folder comes first.
  script = "import sys; sys.path.insert(0, '.'); import tff_superquantile"
  for program, name in ((script, "privacy"), (f"{script}.experiments", "tasks")):
    done = _python("-c", program, folder=tmp_path)
    message = f"ImportError: Found the module {name} in {tmp_path}/{name}.py; expected that of"
    assert message in done.stderr.splitlines()[-1]
    (tmp_path / f"{name}.py").unlink()
  assert _python("-c", f"{script}.experiments", folder=tmp_path).returncode == 0


# Flags.


def _parsed(*arguments, **options):
  parser = command_line.Parser(arguments=arguments)
  command_line.add_flag(parser, "value", **options)
  return parser.parse_args().value


@pytest.mark.parametrize(
  "options, text, value",
  [
    (dict(kind=int), "12", 12),
    (dict(kind=int), "1e6", 10**6),
    (dict(kind=int), "9223372036854775807", 2**63 - 1),  # Not by way of a float.
    (dict(kind=float), "1e-3", 1e-3),
    (dict(kind=str), "", ""),
    (dict(kind=str), "a=b, c", "a=b, c"),
    (dict(kind=str, choices=("a", "b")), "b", "b"),
    (dict(kind=int, are_several=True), "3, 1,2", [3, 1, 2]),
    (dict(kind=str, are_several=True), "", []),
  ],
)
def test_values(options, text, value):
  parsed = _parsed(f"--value={text}", default=None, description="", **options)
  assert parsed == value and type(parsed) is type(value)
  assert _parsed(default=value, description="", **options) == value


@pytest.mark.parametrize(
  "options, text, expected",
  [
    (dict(kind=int), "1.5", "a whole number"),
    (dict(kind=int), "inf", "a whole number"),
    (dict(kind=float), "x", "a number"),
    (dict(kind=int, least=2), "1", "at least 2"),
    (dict(kind=float, least=0), "nan", "at least 0"),
    (dict(kind=str, choices=("a", "b")), "c", "one of a, b"),
    (dict(kind=int, are_several=True), "1,x", "numbers separated by commas"),
    (dict(kind=float, are_several=True), "1,1.0", "at least one number, and none twice"),
    (dict(kind=float, are_several=True), "", "at least one number, and none twice"),
  ],
)
def test_wrong_values(options, text, expected):
  with pytest.raises(ValueError, match=f"^Found --value={re.escape(text)}; expected {expected}"):
    _parsed(f"--value={text}", default=None, description="", **options)


def test_a_negative_number_is_no_flag():
  options = dict(kind=float, default=None, description="")
  for text in ("-3", "-3e-5", "-.5"):
    assert _parsed("--value", text, **options) == _parsed(f"--value={text}", **options)


def test_switches():
  for arguments, value in (((), True), (("--novalue",), False), (("--value",), True)):
    assert _parsed(*arguments, kind=bool, default=True, description="") is value
  with pytest.raises(ValueError, match="^Found --value=no; expected --value alone"):
    _parsed("--value=no", kind=bool, default=False, description="")


def test_a_flag_is_there_once_but_where_a_file_may_have_it_too():
  def parse(*arguments, reads_files=False):
    parser = command_line.Parser(arguments=arguments)
    if reads_files:
      parser.read_files()
    command_line.add_flag(parser, "switch", bool, False, "")
    command_line.add_flag(parser.add_argument_group("more"), "value", int, 0, "")
    parser.add_argument("--every", action="append")
    return parser.parse_args()

  assert parse("--every=a", "--value=1", "--every", "b").every == ["a", "b"]
  for first, second in (("--value=1", "--value=2"), ("--switch", "--noswitch")):
    for again in (first, second):
      with pytest.raises(ValueError, match=f"^Found {first} and {again}; expected one of them"):
        parse(first, "--every=a", again)
    assert parse(first, second, reads_files=True) == parse(second, reads_files=True)
  with pytest.raises(ValueError, match="^Found --value and --value=2; expected one of them"):
    parse("--value", "1", "--value=2")


def test_a_remedy_names_flags_that_the_command_has():
  parser = command_line.Parser(arguments=[])
  command_line.add_flag(parser, "lot", str, "a", "", choices=("a", "b"))
  command_line.add_flag(parser, "quick", bool, False, "")
  assert parser.flags() == ["--help", "--lot", "--quick", "--noquick"]
  ways = "mend it", "pass --lot=a", "pass --lot=c", "pass --lot and --more", "pass --noquick"
  mistake = command_line.Mistake("Found x; expected y", *ways)
  assert str(mistake) == f"Found x; expected y: {', or '.join(ways)}."
  assert pickle.loads(pickle.dumps(mistake)).args == mistake.args
  said = "Found x; expected y: mend it, or pass --lot=a, or pass --noquick."
  assert mistake.sentence(parser.has) == failures.describe(mistake, parser).sentence == said
  assert command_line.Mistake("Found x", "pass --more").sentence(parser.has) == "Found x."
  of_a_run = command_line.Mistake("Found x", "pass --split=all", "pass --missing")
  assert failures.describe(of_a_run).sentence == "Found x: pass --missing."


def test_files_of_flags(tmp_path):
  path = tmp_path / "flags.txt"
  path.write_text("# Mine.\n--a=1 2\n\n--b=\n--a=3\n")
  parser = command_line.Parser(arguments=["--b=0", f"--flagfile={path}", "--a=4"])
  parser.read_files()
  assert parser.arguments == ["--b=0", f"--flagfile={path}", "--a=1 2", "--b=", "--a=3", "--a=4"]
  assert parser.get_default(command_line.OF_FILES) == {"b"}  # Not a.
  assert command_line.read_flags(path.read_text()) == {"a": "1 2,3", "b": ""}
  (tmp_path / "bytes").write_bytes(b"--a=\xff")
  for name, reason in (("none", "No such file"), ("bytes", "no text"), (".", "Is a directory")):
    parser = command_line.Parser(arguments=["--flagfile", str(tmp_path / name)])
    with pytest.raises(ValueError, match=f"^Found --flagfile=.*{reason}.*; expected a file"):
      parser.read_files()
  for line in ("no flag", "-a=1", "a=1", "//", "x" * 99):
    path.write_text(f"# Mine.\n\n  --a=1\n{line}\n")
    shown = re.escape(repr(line if len(line) < 60 else f"{line[:60]}..."))
    with pytest.raises(ValueError, match=f"^Found {shown} in line 4 of .*flags.txt; expected"):
      command_line.Parser(arguments=[f"--flagfile={path}"]).read_files()
  path.write_text("--flagfile=others.txt\n")
  with pytest.raises(ValueError, match=r"^Found --flagfile within .*flags.txt; expected it in"):
    command_line.Parser(arguments=[f"--flagfile={path}"]).read_files()


def test_tables():
  rows = [("", "n", "%"), ("a", "10", "5.0"), ("long", "1", "12.5")]
  assert command_line.table(rows) == "         n     %\n  a     10   5.0\n  long   1  12.5"
  assert command_line.table([("a", "b")], num_left=2, indent="") == "a  b"


def test_without_its_packages_a_command_names_what_to_install(monkeypatch, capsys):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  assert commands.main(["train", "--theta=0.5"]) == command_line.USAGE_ERROR
  assert capsys.readouterr().err.startswith("Error: Found no package tensorflow, which training")
