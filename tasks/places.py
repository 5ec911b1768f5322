"""A client's place, from which it follows whether it is trained on, tested on or held out.

A place, in [0, 1), follows from the client's id, a seed and a purpose alone:

    place = BLAKE2b(id; key = SHA-256(the seed's digits), person = purpose) / 2^64

of 64 bits, rounded down to the 53 that a double holds. Which clients there are besides does not
matter: a client that comes or goes moves nobody else.
"""

from collections.abc import Mapping
import hashlib

from privacy.settings import command_line
from tff_superquantile.simulation import client_files

EVERYBODY = "measure all clients by --split=all"  # A remedy where a split has none.
# The purposes; places for one are independent of those for another.
TEST, VALIDATION, FOLD, EXAMPLES = "test", "validation", "fold", "examples"


def place(client_id: str, seed: int, purpose: str) -> float:
  """Returns the place of a client, in [0, 1), for a purpose of at most 16 letters."""
  key = hashlib.sha256(str(seed).encode()).digest()
  # A lone surrogate gets a place, too; it is reported when the files are written.
  text = client_id.encode("utf-8", "surrogatepass")
  digest = hashlib.blake2b(text, digest_size=8, key=key, person=purpose.encode()).digest()
  return (int.from_bytes(digest, "big") >> 11) / 2**53


def _places(
  pool: client_files.ClientFiles, seed: int, purpose: str
) -> Mapping[str, tuple[float, str]]:
  return {client_id: (place(client_id, seed, purpose), client_id) for client_id in pool.client_ids}


def sort(pool: client_files.ClientFiles, seed: int) -> client_files.ClientFiles:
  """Returns the clients in the order of their places for `TEST`, which is random."""
  places = _places(pool, seed, TEST)
  return pool.subset(sorted(pool.client_ids, key=places.__getitem__))


def divide(
  pool: client_files.ClientFiles, fraction: float, seed: int, purpose: str, *, fills_sides: bool
) -> list[client_files.ClientFiles]:
  """Returns the clients whose places for a purpose are not below a fraction, and the others.

  With `fills_sides`, a side that would be empty gets the client with the nearest place.
  """
  places = _places(pool, seed, purpose)
  below = {client_id for client_id, (place, _) in places.items() if place < fraction}
  if fills_sides and len(places) > 1:
    below = below or {min(places, key=places.__getitem__)}
    if len(below) == len(places):
      below.remove(max(places, key=places.__getitem__))
  above = [client_id for client_id in pool.client_ids if client_id not in below]
  return [pool.subset(above), pool.subset([i for i in pool.client_ids if i in below])]


def take_fold(
  pool: client_files.ClientFiles, num_folds: int, seed: int
) -> list[client_files.ClientFiles]:
  """Divides clients into those of the other folds and those of the run's own, seed mod K."""
  if len(pool.client_ids) < num_folds:
    raise command_line.Mistake(
      f"Found {num_folds} folds for {len(pool.client_ids)} clients{pool.remark}; expected at most"
      " a fold a client, which leaves one client out at a time",
      "lower --folds",
      EVERYBODY,
    )
  division, fold = divmod(seed, num_folds)
  places = _places(pool, division, FOLD)
  own = set(sorted(pool.client_ids, key=places.__getitem__)[fold::num_folds])
  return [
    pool.subset([client_id for client_id in pool.client_ids if (client_id in own) == is_own])
    for is_own in (False, True)
  ]
