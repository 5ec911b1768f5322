"""One run: its config, its training, and the folder that it leaves.

    from tff_superquantile.experiments import run

    finished = run.train(
      run.RunConfig(method=run.Superquantile(theta=0.25), num_rounds=100)
    )

A config is composed of parts (`parts/`), which are public names here, too. `METHODS` has a row for
each algorithm. `find_runs` reads the runs of an output directory.
"""

from tff_superquantile import lazy

# Type checkers and editors see the names in the stub beside this file, too.
__all__, __getattr__, __dir__ = lazy.attach_stub(__name__, __file__)
