"""What a page says first: a decision in few words, the numbers that it rests on, what is next."""

from __future__ import annotations

import dataclasses

from tff_superquantile.experiments.pages import tables

MOST_WORDS = 25  # More are not read before the numbers.


@dataclasses.dataclass(frozen=True)
class Answer:
  """An answer to the question that an experiment asks. All texts are plain.

  Attributes:
    words: The answer, at most `MOST_WORDS` words.
    reasons: Sentences that say why, below the box.
    box: The numbers behind the words, of two or three models on the same clients and rows; or None.
    command: What to run next, to be pasted into a shell; or "".
    caveats: Sentences on what the numbers leave open, which a browser folds.
  """

  words: str
  reasons: tuple[str, ...] = ()
  box: tables.Table | None = None
  command: str = ""
  caveats: tuple[str, ...] = ()

  @property
  def text(self) -> str:
    """The words in a line, and all other sentences in a second one."""
    return "\n".join(filter(None, [self.words, " ".join([*self.reasons, *self.caveats])]))
