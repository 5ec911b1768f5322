"""Runs on many machines, by Dask: a scheduler, workers anywhere, and the pool's face for a sweep.

`door` is the scheduler's file, `scheduler` and `worker` are commands, `driver` has the face,
`hands` carries out what a worker is asked, each run in a process of `child`, and `facts` says what
all machines must have in common. Messages have flags and what runs say of their ends.
"""
