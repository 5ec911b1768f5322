"""What a report says first of the paper's experiments, and the command that it offers."""

import re
import shlex

from helpers import finished_runs
import numpy as np
import pytest

import tasks
from tff_superquantile import atomic_files
from tff_superquantile.experiments.evidence import decision
from tff_superquantile.experiments.evidence import grouped
from tff_superquantile.experiments.evidence import of_the_paper
from tff_superquantile.experiments.pages import answer
from tff_superquantile.experiments.pages import tables
from tff_superquantile.experiments.references import kept
from tff_superquantile.experiments.report import comparison
from tff_superquantile.experiments.run import asked
from tff_superquantile.experiments.run import run_folder

_THETAS = ("superquantile_theta_0.5", "superquantile_theta_0.25")
_SPREAD = np.linspace(0.2, 0.4, 41)


def _fabricate(folder, task):
  """Three methods on a task; own models are far ahead."""
  methods = {"fed_avg": _SPREAD, _THETAS[0]: _SPREAD - 0.02, _THETAS[1]: 0.1 + 0.6 * _SPREAD}
  references = {kept.CONSTANT: _SPREAD + 0.3, kept.LOCAL: _SPREAD / 10}
  finished_runs.fabricate(
    folder, methods, references, place=task, task=task, rounds=np.full(30, 0.3)
  )
  return grouped.by_method(run_folder.find_runs(folder))


@pytest.mark.parametrize("task", of_the_paper.TASKS)
def test_the_answer_is_what_each_theta_moves_and_not_to_leave_federated_learning(tmp_path, task):
  found = decision.decide(_fabricate(tmp_path, task))
  (said,) = found.answers
  assert found.key == "paper" and "Personalise" not in found.text and "federate:" not in found.text
  p90, mean = (100 * (f(0.1 + 0.6 * _SPREAD) - f(_SPREAD)) for f in (_p90, np.mean))
  words = f"Superquantile θ = 0.25 moves p90 by {p90:+.1f}, the worst tenth by"
  assert words.replace("-", "−") in said.words
  assert said.words.endswith(f"the mean by {mean:+.1f} points.".replace("-", "−"))
  assert len(said.words.split()) <= answer.MOST_WORDS
  assert [row.name for row in said.box.rows[1:]] == ["θ = 0.5", "θ = 0.25"]


def _p90(errors):
  return np.percentile(errors, 90)


@pytest.mark.parametrize("task", ["synthetic", "emnist_linear", "sent140_lstm"])
def test_each_number_of_the_paper_is_in_a_table_below(tmp_path, task):
  _fabricate(tmp_path, task)
  content = comparison.report(tmp_path, task)
  (said,) = content.answers
  (sentence,) = (reason for reason in said.reasons if "he paper" in reason)
  (below,) = (
    block
    for block in content.blocks
    if isinstance(block, tables.Table) and block.title == "In the paper"
  )
  there = " ".join(cell.text for row in below.rows for cell in row.cells)
  numbers = re.findall(r"\d+\.\d+(?= %| to| points)", sentence)
  assert len(numbers) >= 3 and all(number in there for number in numbers)


def test_rounds_of_the_paper_are_those_of_the_tasks():

  for name, task in of_the_paper.TASKS.items():
    assert task.num_rounds == tasks.get_task(name).defaults["num_rounds"]


def test_the_next_command_has_the_paths_that_were_typed(tmp_path):
  groups = _fabricate(tmp_path / "results of mine", "synthetic")
  folder = tmp_path / "results of mine" / "synthetic"
  assert decision.decide(groups).answers[0].command == ""  # Nobody knows what was typed.
  asked.write(folder, "default", {"quick": True, "output_dir": "results of mine", "thetas": [0.5]})
  command = decision.decide(groups).answers[0].command
  assert shlex.split(command) == [
    *("./run_experiments.sh", "default", "--output_dir=results of mine", "--thetas=0.5"),
    *("--num_rounds=1000", "--seeds=0,1,2,3,4"),
  ]
  run = groups.runs[0]
  # Runs with another batch size are others: they do not go on in the same folder.
  assert "'--output_dir=results of mine_batch_size'" in asked.again(run, batch_size=3)
  assert "'--output_dir=results of mine'" in asked.again(run, personalize=10)
  assert asked.again(run) == ""
  atomic_files.write_json(folder / "experiment.json", {"experiment": 3})
  assert asked.again(run, "quick") == ""
