"""Runs federated computations in this process, a whole cohort at once.

How a computation becomes a cohort's, in order. Imports point down this list, and never up.

- `cohort_context` gets computations from TFF, with arguments. It makes a program of each, once.
  If the engine does not know something (`UnsupportedError`), another context computes it.
- `programs` keeps one program for equal computations: its traces are for all.
- `stages/` cuts a computation at its aggregations. It computes cohorts in blocks, and is in the
  place of `whole`: `plans` says what is computed where, `functions` makes TensorFlow functions of
  it, `block_functions` makes what any process can carry out of these, and `staged` has it mapped
  over the blocks and adds up what they give.
- `computation` has TFF's compiler make a list of calls, and makes functions of a cohort: `whole`,
  for which the whole cohort is one block, or one a stage. It turns an argument into arrays, and
  makes Python's values of the results.
- `interpreter` evaluates the calls in a trace, a graph for cohorts of all sizes. A broadcast or
  zip costs nothing.
- `language` says what the building blocks of TFF's language mean, for `engine/runtime` too.
- `aggregations` have three steps: a partial value of a block, a merge of two of them, and a
  finish at the server. They find the clients of a trace in `Clients`.
- `traces` traces a function of a cohort at least twice. The first trace computes nothing, and
  finds what clients read (`Discovery`). Later ones are given what was read.
- `mapping` calls a component, which is a TensorFlow graph, for each client; once if all clients
  would get the same.
- `reading` reads what clients hold in files and data sets, and keeps it in memory.
- `components` reads each component once: as a function to call, or taken apart into expressions.
- `rows` makes ops of expressions for all clients at once, if what they read has one shape.
- `emission` makes TensorFlow ops of expressions, in the graph of the cohort.
- `values` has the leaves of a value: a tensor each, with the clients along its first dimension if
  it is at the clients.
- `graphs/` knows graphs, and nothing of federated computations. `inlining` makes expressions of a
  graph (`expressions`, `walks`): function calls are gone, `variables` are values, and a loop over
  a data set is one over positions in it (`data_sets`, `shuffles`, `elements`). `ops` says what is
  stateful, and `sessions` has a session for each call of a graph with queues or tables.

What is promised of effects, shapes and of what clients share is in the docstrings of `inlining`,
`emission` and `mapping`.
"""

from tff_superquantile.engine.cohort.cohort_context import AsyncCohortContext
from tff_superquantile.engine.cohort.cohort_context import CohortContext

__all__ = ("AsyncCohortContext", "CohortContext")
