"""One small file per client, read inside the graph that a round runs on that client.

A simulated round is handed client ids, not data: the client's own graph reads its examples from the
client's file (one read, two decodes), so nothing is embedded in a graph or sent between processes.
The file is the client's `x` followed by its `y`, raw and little-endian; what the bytes mean is the
same for all clients of a directory and stands in its `index.json`, with a checksum of each file and
one of the index itself.

`write_client_files` makes such a directory, `open_client_files` opens it, and
`build_examples_fn` turns it into what the clients of a round call.
"""

from tff_superquantile.simulation.client_files.files import HANDLE_TYPE
from tff_superquantile.simulation.client_files.files import WITHOUT_EXAMPLES
from tff_superquantile.simulation.client_files.files import ClientFiles
from tff_superquantile.simulation.client_files.reading import build_examples_fn
from tff_superquantile.simulation.client_files.reading import open_client_files
from tff_superquantile.simulation.client_files.writing import open_or_write_client_files
from tff_superquantile.simulation.client_files.writing import write_client_files

__all__ = (
  "ClientFiles",
  "HANDLE_TYPE",
  "WITHOUT_EXAMPLES",
  "build_examples_fn",
  "open_client_files",
  "open_or_write_client_files",
  "write_client_files",
)
