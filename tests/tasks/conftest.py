"""What the tests of tables share."""

from helpers import own_tables
from helpers import pools
import pytest


@pytest.fixture
def ask(tmp_path):
  """Asks for the task of a file of this content, or of a folder of {name: content}."""

  def ask(content, name="visits.csv", **changes):
    path = tmp_path / name
    files = content if isinstance(content, dict) else {"": content}
    for inner, of_file in files.items():
      file = path / inner if inner else path
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_bytes(of_file if isinstance(of_file, bytes) else of_file.encode())
    one, splits = own_tables.load(path, **{"seed": 1, **changes})
    return one, pools.by_client(splits)

  return ask
