"""Says which data are here: the data sets of the tasks, and word vectors."""

from __future__ import annotations

from collections.abc import Iterator

import tasks
from tasks.sent140 import glove as glove_lib
from tff_superquantile.doctor import machine


def check_data(data_dir: str, cache_dir: str) -> Iterator[machine.Finding]:
  """Yields what is in the path that the user named, or else which data sets were downloaded."""
  data_sets = [tasks.get_task(name).data_set for name in tasks.task_names()]
  known = {data_set.name: data_set for data_set in data_sets if data_set is not None}
  contents, reasons = [], []
  for name, data_set in known.items():
    place = data_dir or data_set.downloads[0].find(cache_dir)
    try:
      state = data_set.describe(place) if place else ""
    except ValueError as error:
      reasons.append(f"{name}: {str(error).rstrip('.')}.")
      if not data_dir:
        remedy = f"Delete {place}; it is loaded anew."
        yield machine.Finding("FAIL", name, f"Found that {error}.", remedy)
      continue
    contents.append(f"{name}: {state}")
    if not data_dir:
      status = ("ok", name, state) if place else ("note", name, "not here", data_set.remedy)
      yield machine.Finding(*status)
  if data_dir and contents:
    yield machine.Finding("ok", "--data_dir", " and ".join(contents))
  elif data_dir:
    yield machine.Finding(
      "FAIL",
      "--data_dir",
      f"Found no data set in --data_dir={data_dir}; expected one of {', '.join(known)}.",
      "\n".join([*reasons, "Name another directory or file, or get the data again."]),
    )


def check_word_vectors(glove: str, data_dir: str, cache_dir: str) -> Iterator[machine.Finding]:
  """Yields whether GloVe's word vectors are where the user says, beside the data or downloaded."""
  name, remedy = "word vectors", f"{glove_lib.REMEDY}."
  try:
    path = glove_lib.find_file(glove, data_dir, cache_dir)
  except ValueError:
    path = ""
  dimension = glove_lib.peek_dimension(path) if path else 0
  if dimension:
    yield machine.Finding("ok", name, f"{dimension} numbers a word, {path}")
  elif glove or path:
    state = f"Found no word vectors in {path or glove}; expected GloVe's text."
    yield machine.Finding("FAIL", name, state, remedy)
  else:
    yield machine.Finding("note", name, "not here", remedy)
