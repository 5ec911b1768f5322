"""Recomputes the budget that a finished or running experiment has really spent.

The audit reads the files of a run's folder: `privacy.json` (see `ledger`), `flags.txt`,
`rounds.csv` (one row a round, with its number in the first column `round`, 0 for the initial
model), `manifest.json`, the names in `clients/`, what a finished run leaves besides (`weights.npz`,
`metrics.json`), and `evaluations.json` (see `evaluate.entries`). It believes none of them: the
budget follows from the parameters and from the largest number of rounds in the files; the sums to
which clients add noise are derived anew from noise multipliers and numbers of clients; and the
files must agree. manifest.json has the SHA-256 of flags.txt and of the last evaluation, so that no
line of these two can be changed by itself. A run that starts from a model without privacy of what
may be the same clients claims too much. A table of the run's folder that names a client
whom it may train on contradicts it. `experiment` reads the runs of a folder together.

What it cannot see: a change of all files that agree about it, made by somebody who computes the
hashes anew.
"""

from privacy.audit.experiment import audit_folder as audit_folder
from privacy.audit.findings import Audit as Audit
