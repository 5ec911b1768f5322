"""The secret key of a private run, from which its cohorts and its noise follow."""

import contextlib
import pathlib
import secrets

from tff_superquantile import atomic_files
from tff_superquantile import noise_source

_FILE = "noise_key"


def load(folder: pathlib.Path, key_file: str, has_begun: bool) -> bytes:
  """Returns the key of a private run, and keeps it for the run's resumption.

  It is in `checkpoints/noise_key` alone, readable by the owner alone, and nothing else that the run
  writes tells anything about it, but for the checkpoints beside it.

  Args:
    folder: The run's folder.
    key_file: `--noise_key_file`; empty to draw a key from the operating system's entropy.
    has_begun: Whether the run has done something already, with a key that must be there.

  Returns:
    16 bytes.

  Raises:
    ValueError: If a file cannot be read, is no key, or is not the run's.
  """
  given = _read_key(pathlib.Path(key_file), "--noise_key_file") if key_file else None
  path = folder / "checkpoints" / _FILE
  if path.exists():
    kept = _read_key(path, "the run's key")
    if given not in (None, kept):
      raise ValueError(
        f"Found another key in {key_file} than in {path}, with which the run began; give that one,"
        " or none."
      )
    return kept
  if has_begun and given is None:
    raise ValueError(
      f"Found no {path}, the key of a private run that has begun; it cannot go on without. Bring it"
      " back, give it by --noise_key_file, or choose another --output_dir."
    )
  key = given or secrets.token_bytes(noise_source.KEY_BYTES)
  path.parent.mkdir(mode=0o700, exist_ok=True)
  path.parent.chmod(0o700)
  atomic_files.write(path, key.hex() + "\n", mode=0o600)
  return key


def remove(folder: pathlib.Path) -> None:
  """Removes the key of a run that has not begun, and its folder if there is nothing else in it."""
  (folder / "checkpoints" / _FILE).unlink(missing_ok=True)
  with contextlib.suppress(OSError):
    (folder / "checkpoints").rmdir()


def _read_key(path: pathlib.Path, name: str) -> bytes:
  try:
    with open(path, "rb") as stream:
      text = stream.read(1024)
    key = bytes.fromhex(text.decode("ascii").strip())
  except OSError as error:
    raise ValueError(f"Found that {name} {path} cannot be read ({error.strerror}).") from None
  except ValueError:
    key = b""
  if len(key) != noise_source.KEY_BYTES:
    raise ValueError(
      f"Found no key in {path}; expected {2 * noise_source.KEY_BYTES} hexadecimal digits, such as"
      f" `openssl rand -hex {noise_source.KEY_BYTES}` prints."
    )
  return key
