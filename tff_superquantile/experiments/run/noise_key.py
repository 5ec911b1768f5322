"""The secret key of a private run: where it is kept, and the commitments that bind the run to it.

Cohorts and noise of a private run follow from its key. So a round that is repeated after an
interruption releases nothing new, as long as it is repeated with the same key and the same clients:
with other clients the difference of the two releases has no noise, with another key a round is
released twice. The run's manifest has a commitment to either, which a run that goes on compares.

Cohorts follow from the key alone, noise from the key and what the run computes: the same key in
another configuration, or for other clients, has other noise.
"""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import hashlib
import json
import pathlib
import secrets
from typing import Any

from tff_superquantile import atomic_files
from tff_superquantile import noise_source
from tff_superquantile.experiments.config import run_config
from tff_superquantile.experiments.run import accounts
from tff_superquantile.experiments.run import register
from tff_superquantile.experiments.run import run_files
from tff_superquantile.experiments.run import run_folder
from tff_superquantile.experiments.run.hooks import superseded
from tff_superquantile.simulation import client_files

COMMITMENTS = "commitments"  # The entry of manifest.json.
_KEY_FILE = "noise_key"
_NOISE = "noise"  # The commitment from which, and from the key, a run's noise follows.


class SecretStateManager(superseded.StateManager):
  """Keeps checkpoints for their owner alone: they hold the state of the server's noise."""

  def __init__(self, root_dir: str, **kwargs: Any):
    super().__init__(root_dir, **kwargs)
    self._folder.chmod(0o700)

  async def save(self, program_state: Any, version: int) -> None:
    # The folder is closed to others, so nobody reads the files before they are closed, too.
    await super().save(program_state, version)
    for path in self._folder.rglob("*"):
      path.chmod(0o700 if path.is_dir() else 0o600)


def load(
  run: run_folder.Run, key_file: str, splits: Mapping[str, client_files.ClientFiles]
) -> tuple[bytes, dict[str, str]]:
  """Returns the key of a private run, 16 bytes, and the commitments for its manifest.

  It is kept in `checkpoints/noise_key` alone. The run is in the register already, and its key is
  entered. A run that has flags has begun: it is refused without the key and the clients with which
  it began.
  """
  if run.flags and accounts.rounds_released(run) and not run.manifest:
    raise ValueError(
      f"Found no manifest.json in {run.path}, a private run that has begun; expected the key and"
      " the clients to which it is bound: bring the file back, or choose another --output_dir."
    )
  key = _find(run, key_file)
  commitments = _commit(key, splits)
  if run.flags:
    _check(commitments, run)
  other = register.enter_key(run.path, commitments["noise_key"])
  if other is not None:
    raise ValueError(
      f"Found the noise key of the run in {other}; expected a key for each run, as two that draw"
      " the same cohorts tell of each other's: leave --noise_key_file out, or choose another"
      " --output_dir for a run that is repeated."
    )
  path = run.path / run_folder.CHECKPOINTS / _KEY_FILE
  if not path.exists():
    run_files.make_secret(path.parent)
    atomic_files.write(path, key.hex() + "\n", mode=0o600)
  return key, commitments


def of_noise(
  key: bytes, commitments: dict[str, str], config: run_config.RunConfig, run: run_folder.Run
) -> bytes:
  """Returns the key of a run's noise, 16 bytes, and commits the run to what it follows from."""
  entry = (run.manifest.get(COMMITMENTS) or {}).get(_NOISE) if run.flags else None
  if entry is None:
    # What changes nothing that a run computes; the noise of banded rounds is for their number.
    others = {*run_config.incidentals(), "run_name", "data_dir", "glove", "block_size"}
    others -= {"num_rounds"}
    flags = {name: text for name, text in config.to_flags().items() if name not in others}
    of_run = json.dumps([flags, commitments["clients"]], sort_keys=True).encode()
    entry = hashlib.blake2b(of_run, digest_size=16).hexdigest()
  commitments[_NOISE] = entry
  return noise_source.derive_key(key, f"noise of the run {entry}")


def _find(run: run_folder.Run, key_file: str) -> bytes:
  """Returns the key that is kept or given, or a new one for a run that begins."""
  file_key = read(pathlib.Path(key_file), "--noise_key_file") if key_file else None
  path = run.path / run_folder.CHECKPOINTS / _KEY_FILE
  if path.exists():
    kept = read(path, "the run's key")
    if file_key not in (None, kept):
      raise ValueError(
        f"Found another key in {key_file} than in {path}, with which the run began; give that one,"
        " or none."
      )
    return kept
  if run.flags and file_key is None:
    raise ValueError(
      f"Found no {path}, the key of a private run that has begun; it cannot go on without. Bring it"
      " back, give it by --noise_key_file, or choose another --output_dir."
    )
  return file_key or secrets.token_bytes(noise_source.KEY_BYTES)


def _commit(key: bytes, splits: Mapping[str, client_files.ClientFiles]) -> dict[str, str]:
  """Returns commitments, "noise_key" and "clients", to a run's key and clients: hexadecimal digits.

  They are keyed hashes (BLAKE2b, 128 bits) under keys of their own. Whoever does not have the key
  cannot tell them from random bits, so they say nothing of the clients and may be published. They
  bind the examples of training clients and of the others, whose means may standardise the former.
  """
  clients = hashlib.blake2b(
    key=noise_source.derive_key(key, "commitment to the clients"), digest_size=16
  )
  for split, files in sorted(splits.items()):
    facts = [split, files.x_shape, files.x_dtype, files.x_scale, files.y_dtype, files.num_classes]
    clients.update(json.dumps([*facts, files.num_examples.tolist()]).encode())
    for client_id in files.client_ids:
      content = pathlib.Path(files.path(client_id)).read_bytes()
      clients.update(json.dumps([client_id, len(content)]).encode())
      clients.update(content)
  committed = noise_source.derive_key(key, "commitment to the key")
  return {"noise_key": committed.hex(), "clients": clients.hexdigest()}


def _check(kept: Mapping[str, str], run: run_folder.Run) -> None:
  """Raises a `ValueError` for commitments of another key or other clients than a run's."""
  expected = run.manifest.get(COMMITMENTS) or {}
  if not expected and not accounts.rounds_released(run):
    return
  if not {*kept, _NOISE} <= set(expected):
    raise ValueError(
      f"Found no commitments to key, clients and noise in the manifest.json of {run.path}; expected"
      " those with which the run began: bring the file back, or choose another --output_dir."
    )
  if kept["noise_key"] != expected["noise_key"]:
    raise ValueError(
      f"Found another noise key than that with which the run in {run.path} began; expected the"
      " same, as a round that is released again with other noise costs again: give that key, or"
      " choose another --output_dir."
    )
  if kept["clients"] != expected["clients"]:
    raise ValueError(
      f"Found other clients, or other examples of them, than those with which the run in"
      f" {run.path} began; expected the same, as the same noise on other data would cancel: bring"
      " the data back, or choose another --output_dir."
    )


def remove(folder: pathlib.Path) -> None:
  """Removes the key of a run that has not begun, and its folder if it is empty then."""
  (folder / run_folder.CHECKPOINTS / _KEY_FILE).unlink(missing_ok=True)
  with contextlib.suppress(OSError):
    (folder / run_folder.CHECKPOINTS).rmdir()


def read(path: pathlib.Path, name: str) -> bytes:
  """Returns the key in a file, 16 bytes; a `ValueError` names the file if there is none."""
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
