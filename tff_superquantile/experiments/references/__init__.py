"""Reference models: what the methods of an experiment must beat, and what they could reach.

`fitting` computes the constant answer, the fit of all training clients' pooled examples and the
clients' own models, `kept` has them in a file a seed beside the runs, and `making` makes these
files; `evidence.in_reports` turns them into rows of tables and a sentence. None is federated.
"""
