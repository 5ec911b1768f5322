"""Divides the cores among runs."""

from collections.abc import Sequence


def shares(cores: Sequence[int], num_runs: int, num_workers: int | None) -> list[Sequence[int]]:
  """Returns the cores of each run that may be at work at once.

  Runs of a sweep take about as long as one another. If there is one more than there are cores, it
  would have the machine for itself at the end, and use one core: all of them are done earlier if
  they share. With two runs a core and more there are too many for that in memory, and little is
  lost at the end.

  Args:
    cores: Their numbers.
    num_runs: How many runs there are.
    num_workers: Runs at once, at most one a core; None to decide by the number of runs.

  Returns:
    The numbers of each one's cores.
  """
  at_once = min(num_workers or len(cores), num_runs, len(cores))
  shares = [cores[i::at_once] for i in range(at_once)]
  if num_workers is None and len(cores) < num_runs < 2 * len(cores):
    num_more = num_runs - len(cores)
    shares += [cores[i::num_more] for i in range(num_more)]
  return shares
