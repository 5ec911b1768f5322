"""Tables of the user's own, as a run loads them."""

import pathlib

import tasks
from tasks import request as request_lib


def load(path, **changes):
  """The task of a table, and the clients of each split; the cache is beside the table."""
  asked = dict(client_column="site", label_column="outcome", data_dir=str(path))
  asked["cache_dir"] = str(pathlib.Path(path).parent / "cache")
  request = request_lib.of(name="own", **{**asked, **changes})
  one = tasks.get_task("own").for_request(request)
  return one, one.load_clients(request)
