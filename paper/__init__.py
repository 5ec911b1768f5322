"""What judges the paper and makes its results anew; the library knows nothing of it.

Commands of a clone of the project, each with --help:

    ./run_experiments.sh paper         statements/: what the paper says, each with a verdict
    ./run_experiments.sh convergence   convergence/: its convergence theorem, in numbers
    ./run_experiments.sh nonconvex     nonconvex/: its non-convex theorem, in numbers
    python -m paper.account            its privacy accounting, which is NOT a guarantee
"""
