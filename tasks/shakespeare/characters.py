"""Numbers characters, and cuts a text into sequences with the character that follows each."""

import re
import string

import numpy as np

SEQUENCE_LENGTH = 80  # LEAF's.
STRIDE = 10  # Characters from the beginning of a sequence to that of the next one.

# LEAF's 80 characters, in its order.
LETTERS = f"\n !\"&'(),-.{string.digits}:;>?{string.ascii_uppercase}[]{string.ascii_lowercase}}}"
UNKNOWN = 0  # The number of every other character; LEAF's are numbered from 1.
NAMES = (
  "unknown",
  *({"\n": "newline", " ": "space"}.get(letter, letter) for letter in LETTERS),
)

_NUMBER_OF_CODE = np.full(128, UNKNOWN, np.uint8)
_NUMBER_OF_CODE[[ord(letter) for letter in LETTERS]] = np.arange(1, len(LETTERS) + 1)
_SPACES = re.compile("  +")


def encode(text: str) -> np.ndarray:
  """Returns the numbers of a text's characters, uint8 [characters]."""
  codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
  return np.where(codes < 128, _NUMBER_OF_CODE[np.minimum(codes, 127)], UNKNOWN).astype(np.uint8)


def cut(text: str) -> tuple[np.ndarray, np.ndarray]:
  """Cuts a role's text into sequences x uint8 [n, 80] and their next characters y int32 [n].

  As LEAF does, it takes ends of lines for spaces and several spaces for one. LEAF begins a sequence
  at every character, so that neighbours share 79 of 80. Here it is every tenth, for a tenth of the
  time. n is 0 for a text of at most 80.
  """
  numbers = encode(_SPACES.sub(" ", text.replace("\n", " ")))
  if len(numbers) <= SEQUENCE_LENGTH:
    return np.zeros((0, SEQUENCE_LENGTH), np.uint8), np.zeros(0, np.int32)
  windows = np.lib.stride_tricks.sliding_window_view(numbers, SEQUENCE_LENGTH + 1)[::STRIDE]
  return windows[:, :-1].copy(), windows[:, -1].astype(np.int32)
