"""Makes the virtual environments of other libraries on first use, outside of the repository."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import uuid

_FOLDER = pathlib.Path(__file__).resolve().parent
_PYTHON = "python3.11"  # The pinned versions are for it.


def _run(command: list[str], what: str, log: pathlib.Path) -> None:
  with open(log, "ab") as f:
    result = subprocess.run(
      command, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, check=False
    )
  if result.returncode:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "nothing")
    raise ValueError(f"Cannot {what}: it said {last.strip()[:300]!r}.")


def python_of(peer: str, peers_dir: str) -> str:
  """Returns the path of the Python of a library's environment, which is made if it is not there.

  The library is that of `requirements-PEER.txt`. The environment appears by a rename when it is
  complete; one that a second process made meanwhile is as good. Its name has a hash of the
  requirements: when they change, it is made anew.
  """
  requirements = _FOLDER / f"requirements-{peer}.txt"
  fingerprint = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
  target = pathlib.Path(peers_dir).expanduser().absolute() / f"{peer}-{fingerprint}"
  python = target / "bin" / "python"
  if python.exists():
    return str(python)
  print(f"Making the environment of {peer} in {target}, once.", file=sys.stderr, flush=True)
  temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.tmp")
  try:
    temporary.mkdir(parents=True)
  except OSError as error:
    raise ValueError(f"Cannot write to {temporary.parent} ({error.strerror}).") from error
  log = temporary / "pip.log"
  base = shutil.which(_PYTHON) or sys.executable
  try:
    _run([base, "-m", "venv", str(temporary)], "make an environment", log)
    new_python = str(temporary / "bin" / "python")
    install = [new_python, "-m", "pip", "install", "-r", str(requirements)]
    _run(install, f"install {requirements.name}", log)
    try:
      os.rename(temporary, target)
    except OSError:
      if not python.exists():
        raise
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  return str(python)
