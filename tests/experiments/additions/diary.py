"""A tracker as somebody adds it: a line of JSON for each thing that it gets. One file."""

import json


class Diary:
  """A run in OUTPUT_DIR/diary.jsonl: a `trackers.Tracker`."""

  def __init__(self, subject, known_id):
    self._path = subject.output_dir / "diary.jsonl"
    self.id = known_id or subject.name
    self._write("opened", known=known_id is not None, flags=len(subject.params))

  def log(self, rows):
    for round_num, values in rows:
      self._write("row", round=round_num, values=sorted(values))

  def finish(self, numbers, round_num):
    self._write("finished", round=round_num, error=numbers["test.error.mean"])

  def interrupt(self):
    self._write("interrupted")

  def _write(self, what, **values):
    with open(self._path, "a") as file:
      file.write(json.dumps({"id": self.id, "what": what, **values}) + "\n")
