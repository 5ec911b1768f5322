"""Reads word vectors from GloVe's text files (Pennington et al. 2014)."""

from collections.abc import Mapping
import contextlib
import logging
import math
import os

import numpy as np

from tasks import downloads

_LOG = logging.getLogger("tff_superquantile.tasks")

FILE_NAME = "glove.6B.50d.txt"
DOWNLOAD = downloads.Download(
  what="GloVe's word vectors",
  urls=(
    "https://nlp.stanford.edu/data/glove.6B.zip",
    "https://huggingface.co/stanfordnlp/glove/resolve/main/glove.6B.zip",
  ),
  sha256="617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
  size=862_182_613,
  members=(FILE_NAME,),
  room=172_000_000,
  flag="glove",
)
REMEDY = "./run_experiments.sh download sent140 gets it, and --glove names another"


def find_file(path: str, data_path: str, cache_dir: str) -> str:
  """Returns the file of word vectors at `path`, or if that is "", the paper's `FILE_NAME`."""
  if path:
    if not os.path.isfile(path):
      raise ValueError(f"There is no file {path} of word vectors; {REMEDY}.")
    return path
  directory = data_path if os.path.isdir(data_path) else os.path.dirname(data_path)
  beside = os.path.join(directory, FILE_NAME)
  if data_path and os.path.isfile(beside):
    return beside
  downloaded = DOWNLOAD.find(cache_dir)
  if downloaded is None:
    raise ValueError(f"There is no {FILE_NAME} beside {data_path} or in {cache_dir}; {REMEDY}.")
  return downloaded


def _is_number(text: bytes) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _parse_line(line: bytes, dimension: int) -> list[float]:
  """Returns the d finite numbers of a line `word v_1 ... v_d`; any number of them for d = 0."""
  texts = line.split(b" ")[1:]
  dimension = dimension or len(texts)
  if not 0 < dimension <= len(texts):
    raise ValueError(f"has {len(texts)} numbers")
  # A few words of GloVe's largest files have spaces in them, so the numbers are the last texts.
  if any(map(_is_number, texts[:-dimension])):
    raise ValueError(f"has more than {dimension} numbers")
  try:
    vector = [float(text) for text in texts[-dimension:]]
  except ValueError:
    raise ValueError("has something other than numbers after its word") from None
  if not all(map(math.isfinite, vector)):
    raise ValueError("has a number that is not finite")
  return vector


def read_words(path: str) -> dict[str, int]:
  """Numbers the words of a file of word vectors from 0, in their order."""
  dimension = 0
  words: dict[str, int] = {}
  with open(path, "rb") as f:
    for line in f:
      word, _, numbers = line.rstrip(b" \r\n").partition(b" ")
      dimension = dimension or (numbers.count(b" ") + 1 if word else 0)
      if word and numbers.count(b" ") == dimension - 1:
        with contextlib.suppress(UnicodeDecodeError):
          words.setdefault(word.decode("utf-8"), len(words))
  return words


def read_vectors(path: str, vocabulary: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
  """Reads vectors float32 [words, d], and bool [words], false where a word is unknown, and zero.

  The file is read line by line and nothing but these words' vectors is kept, but every line is
  checked: a download that was cut short is found out. It is GloVe's text file: a line a word, `word
  v_1 ... v_d`, with single spaces and the first line's d. A word that is there twice has its first
  vector. `vocabulary` numbers the words, from 0; a file that knows none is refused.
  """
  _LOG.info("Reading word vectors from %s.", path)
  # Bytes: the real files hold characters that Python takes for spaces or ends of lines.
  numbers = {word.encode("utf-8", "surrogatepass"): i for word, i in vocabulary.items()}
  known = np.zeros(len(vocabulary), bool)
  vectors: np.ndarray | None = None
  dimension = 0
  with open(path, "rb") as f:
    for line_number, line in enumerate(f, start=1):
      line = line.rstrip(b" \r\n")
      if not line:
        continue
      try:
        vector = _parse_line(line, dimension)
      except ValueError as e:
        expected = f"{dimension}, as in the first line" if dimension else "some"
        raise ValueError(
          f"{path}: line {line_number} {e}; expected a word and {expected}, finite, after single"
          " spaces: unpack or download the file again."
        ) from None
      if vectors is None:
        dimension = len(vector)
        vectors = np.zeros((len(vocabulary), dimension), np.float32)
      is_one_word = line.count(b" ") == dimension
      number = numbers.get(line.partition(b" ")[0]) if is_one_word else None
      if number is not None and not known[number]:
        known[number] = True
        vectors[number] = vector
  if vectors is None or not known.any():
    raise ValueError(
      f"{path} has none of the {len(vocabulary)} words of the data; expected a text file of GloVe's"
      f" in the data's language, such as {FILE_NAME} of {DOWNLOAD.urls[0]}."
    )
  return vectors, known
