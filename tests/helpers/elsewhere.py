"""Blocks of a cohort that copies compute, as another process would, and all that it is sent."""

import pickle


class Elsewhere:
  """Maps as another process would: with a copy of the function, of blocks, and of the results."""

  def __init__(self):
    self.messages = []

  def _copy(self, value):
    self.messages.append(pickle.dumps(value))
    return pickle.loads(self.messages[-1])

  def __call__(self, function, blocks):
    copy = self._copy(function)
    assert copy is not function and copy._function is not function._function
    # Whoever computes first, the results come in the order of the blocks.
    results = {
      i: self._copy(copy(self._copy(block))) for i, block in reversed([*enumerate(blocks)])
    }
    return (results[i] for i in sorted(results))

  # Who computes the cohorts of a run, as `experiments.run.runner.Machines`.

  def check(self, config):
    """Takes any run."""

  def begin(self, directory, threads):
    """Is ready."""
    return self
