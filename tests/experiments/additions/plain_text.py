"""An export format as somebody adds it: the weights as numbers in a text. One file."""

from tff_superquantile.experiments.export import formats


def _write(model, folder):
  """Writes a line a weight: its name, its shape and its numbers."""
  lines = [
    f"{name} {list(array.shape)} {' '.join(map(repr, array.ravel().tolist()))}\n"
    for name, array in model.to_arrays().items()
  ]
  (folder / "model.txt").write_text("".join(lines))


PLAIN_TEXT = formats.Format(
  "the weights as text, for people",
  ("model.txt",),
  _write,
  instead="the network's weights as text",
)
