"""The commands of the how-to pages, carried out one after the other, with sizes that are small.

What the pages say of budgets, and two comparisons, is compared word by word in test_how_to.
"""

import json
import pathlib
import re
import shutil

from helpers import commands
from helpers import pages
import numpy as np
import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_HOW_TO = _ROOT / "docs" / "how_to"
_KEPT = _ROOT / "tests/experiments/kept_results/synthetic"
_RUNS = "tff_superquantile.experiments."
_TABLE = ("--data_dir=vehicle.csv", "--client_column=sensor", "--label_column=label")
# Of other modules: budgets (test_how_to), the doctor and downloads (tests of their own).
_NOT_OF_RUNS = re.compile(r"-m (privacy\.account|tff_superquantile\.(doctor|install_tff))\b")
# Data that are not ours to have, or runs on these; files of the page's reader, in test_additions.
_NEEDS = re.compile(r"emnist|sent140|shakespeare|/data/|/shared/|\w=\w+:[A-Z]|\bRUN\b|RUN_DIR|TASK")
_PAGES = [page for page in sorted(_HOW_TO.glob("*.md")) if page.stem != "add_a_part"]


def _of_runs(page):
  """Commands on runs, as (words after the module's package): what this file carries out."""
  for words in pages.commands(page):
    line = " ".join(words)
    if words[:2] == [pages.PYTHON, "-m"] and words[2].startswith(_RUNS):
      if not _NOT_OF_RUNS.search(line) and not _NEEDS.search(line):
        yield [words[2].removeprefix(_RUNS), *words[3:]]


def _write_tables(folder):
  """The tables of the page on own data, one of later clients, and rows as an export takes them."""
  rng = np.random.default_rng(0)
  names = [f"x{i}" for i in range(4)]
  for file, first in (("vehicle.csv", 0), ("later.csv", 50)):
    lines = [",".join(["sensor", "label", *names])]
    for sensor in range(first, first + 23):
      for x in rng.normal(size=[8, 4]):
        label = 1 if x[sensor % 2] > 0 else -1
        lines.append(",".join([f"s{sensor}", str(label), *map("{:.3f}".format, x)]))
    (folder / file).write_text("\n".join(lines) + "\n")
  without_clients = (f"{x:.3f},{'ill' if x > 0 else 'well'}" for x in rng.normal(size=300))
  (folder / "central.csv").write_text("\n".join(["x0,outcome", *without_clients]) + "\n")
  x = rng.normal(size=[12, 20]).astype(np.float32)
  np.savez(folder / "my_rows.npz", x=x, y=np.full(12, 3))


@pytest.fixture
def lab(tmp_path, cache_dir):
  """A folder with finished runs where the pages have theirs, and with the tables that they name."""
  shutil.copytree(_KEPT, tmp_path / "results/synthetic")
  _write_tables(tmp_path)
  lab = commands.Lab(tmp_path, cache_dir)
  yield lab
  lab.close()


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


def _small(module, arguments, lab):
  """The arguments of a command with small sizes, which are its last."""
  if module != "train":
    return arguments
  names = {argument.partition("=")[0] for argument in arguments}
  small = [*([] if "--task=own" in arguments else lab.small([])), "--num_rounds=2"]
  small += ["--averaged_rounds=2"] if "--averaged_rounds" in names else []
  # Beside the runs that are there, which have other sizes.
  small += [] if "--output_dir" in names else ["--output_dir=trained"]
  return [*arguments, *small, "--rounds_per_evaluation=1"]


def _train_on_folds(lab):
  flags = ("--task=own", *_TABLE, "--folds=5", "--theta=0.5", f"--cache_dir={lab.cache_dir}")
  assert lab.bare("train", *flags, "--num_rounds=2").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in _PAGES if list(_of_runs(p))], ids=lambda p: p.stem)
def test_each_command_of_the_page_does_its_work(page, lab):
  if page.stem == "own_data":  # Whose comparison test_how_to carries out.
    _train_on_folds(lab)
  failed = {}
  for module, *arguments in _of_runs(page):
    result = lab.bare(module, *_small(module, arguments, lab))
    if result.code:
      failed[" ".join([module, *arguments])] = result.err.strip().splitlines()[-1:]
  assert not failed, json.dumps(failed, indent=1)


def test_most_commands_on_runs_are_carried_out():
  """Nothing is left out but for what it needs: the rule above names it."""
  everything = [
    " ".join(words)
    for page in _PAGES
    for words in pages.commands(page)
    if words[:2] == [pages.PYTHON, "-m"] and words[2].startswith(_RUNS)
  ]
  carried_out = sum(len(list(_of_runs(page))) for page in _PAGES)
  assert carried_out >= 18 and len(everything) - carried_out <= 8, (carried_out, everything)
