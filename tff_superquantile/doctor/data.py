"""Checks which data sets are there, as the tasks describe them."""

from __future__ import annotations

import tasks
from tasks import data_set as data_set_lib
from tasks.sent140 import glove as glove_lib
from tff_superquantile.doctor import report


def _data_sets() -> dict[str, data_set_lib.DataSet]:
  """Returns the data sets of all tasks, by name."""
  found = [tasks.get_task(name).data_set for name in tasks.task_names()]
  return {data_set.name: data_set for data_set in found if data_set is not None}


def check_data_dir(data_dir: str) -> report.Finding:
  """Checks whether the path that the user named holds one of the data sets."""
  found, reasons = [], []
  for name, data_set in _data_sets().items():
    try:
      data_set.describe(data_dir)
      found.append(name)
    except ValueError as error:
      reasons.append(f"{name}: {str(error).rstrip('.')}.")
  if found:
    return report.ok(f"holds {' and '.join(found)}")
  return report.fail(
    f"Found no data set in --data_dir={data_dir}; expected one of {', '.join(_data_sets())}.",
    "\n".join([*reasons, "Name another directory or file, or get the data again."]),
  )


def check_data_set(data_set: str, data_dir: str, cache_dir: str) -> report.Finding:
  """Checks whether a data set is where the user says, or where it is downloaded to.

  Args:
    data_set: Its name.
    data_dir: Where the user says; "" for nowhere.
    cache_dir: Where it may have been downloaded to.

  Returns:
    The finding, a note if it is not there.
  """
  known = _data_sets()[data_set]
  place = data_dir or known.find_downloaded(cache_dir)
  if place:
    try:
      return report.ok(known.describe(place))
    except ValueError as error:
      if not data_dir:
        return report.fail(f"Found that {error}.", f"Delete {place}; it is downloaded again.")
  return report.note(f"not in {data_dir}" if data_dir else "not here", known.remedy)


def check_word_vectors(glove: str, data_dir: str) -> report.Finding:
  """Checks whether GloVe's word vectors are where the user says, or beside the data.

  Args:
    glove: The file that the user named; "" for none.
    data_dir: The data; "" for nowhere.

  Returns:
    The finding: a failure if the file that the user named cannot be used, a note if there is none.
  """
  remedy = f"Get {glove_lib.FILE_NAME} from {glove_lib.SOURCE} and name it with --glove."
  if not glove and not data_dir:
    return report.note("not here", remedy)
  try:
    path = glove_lib.find_file(glove, data_dir)
  except ValueError as error:
    if glove:
      return report.fail(f"Found no file --glove={glove}; expected word vectors.", remedy)
    return report.note(str(error).partition(";")[0], remedy)
  dimension = glove_lib.peek_dimension(path)
  if not dimension:
    return report.fail(
      f"Found {path}, whose first line is not a word and numbers; expected GloVe's text.", remedy
    )
  return report.ok(f"{dimension} numbers a word, {path}")
