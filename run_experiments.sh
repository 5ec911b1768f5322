#!/usr/bin/env bash
# Runs an experiment on a fresh machine: makes the environment once, trains, reports. See --help.
set -euo pipefail

show_help() {
  cat <<'HELP'
NAME
    run_experiments.sh - train federated models that serve the worst-off clients, and compare them

SYNOPSIS
    run_experiments.sh [EXPERIMENT] [--quick] [--output_dir=DIR] [FLAG ...]
    run_experiments.sh --help

DESCRIPTION
    Trains FedAvg and superquantile aggregation (Delta-FL) on the same clients, measures the loss
    and the error of every test client, and writes tables and plots that compare the methods. The
    superquantile methods have a tail fraction theta in (0, 1]: each round averages the updates of
    only the clients whose loss is among the largest theta of the round. theta = 1 is FedAvg.

    The first call makes the Python environment .venv beside this script (a minute, 2.6 GB), later
    ones use it.

    The same command continues what was interrupted: finished runs are skipped, killed ones go on
    from their last checkpoint. Ctrl-C is safe at any time.

EXPERIMENTS
    default         The synthetic task, FedAvg against theta 0.5 and 0.25, one seed: under five
                    minutes on 2 cores. Run when no experiment is named.
    synthetic       The same task in the paper's full setting: 1000 rounds, five seeds.
    emnist_linear   EMNIST by writer, linear classifier: FedAvg against theta 0.8, 0.5 and 0.1,
                    3000 rounds, batches of 10, five seeds.
    emnist_convnet  EMNIST by writer, convolutional network: 1000 rounds, batches of 16, five
                    seeds. Hours to days on a CPU.

OPTIONS
    --quick             Shortens any experiment: few rounds, one seed. To see that all works.
    --output_dir=DIR    Where results go, from the current directory. Default: results
    --data_dir=PATH     EMNIST: LEAF's directory with train/ and test/, or TFF's file
                        emnist_all.sqlite or emnist_all.sqlite.lzma. Without it TFF downloads the
                        data.
    --num_workers=N     Runs at the same time.
    --seeds=0,1,2       One run of each method a seed.
    --help, -h          Shows this page.

    Any flag of a single run may follow and then holds for all runs of the experiment, whatever the
    experiment says: --num_rounds=100, --clients_per_round=20, --client_learning_rate=0.1 ... The
    list, once .venv is there:
        .venv/bin/python -m tff_superquantile.experiments.train --help

OUTPUT
    DIR/TASK/report.html            tables and plots, in one file
    DIR/TASK/report.md, report.csv  the tables
    DIR/TASK/METHOD/seed_S/         a run: its flags, a CSV of rounds and one of clients,
                                    TensorBoard events, checkpoints, a manifest of versions

EXIT STATUS
    0    all is well
    1    a run failed
    2    bad flags, bad input, or the environment could not be made; nothing was computed
    130  interrupted

ENVIRONMENT
    PYTHON                 The Python to make .venv with, 3.9 to 3.11. Default: the first of
                           python3.11, python3.10, python3.9, python3 that will do.
    PIP_INDEX_URL, PIP_*   pip's own settings, such as a mirror of the package index.
    TFF_SUPERQUANTILE_MIN_DISK_MB
                           Free space that making .venv insists on. Default: 4096
    TF_CPP_MIN_LOG_LEVEL   How much TensorFlow says, 0 (everything) to 3. Default: 3

EXAMPLES
    ./run_experiments.sh
        First results in minutes: open results/synthetic/report.html.
    ./run_experiments.sh synthetic --seeds=0,1 --output_dir=/data/runs
        Two seeds of the paper's setting.
    ./run_experiments.sh emnist_linear --quick --data_dir=/data/femnist
        A short run on data that are already here.
    ./run_experiments.sh default --num_rounds=100 --batch_size=16
        Other settings than the experiment's.
HELP
}

for argument in "$@"; do
  if [[ "$argument" == --help || "$argument" == -h ]]; then
    show_help
    exit 0
  fi
done

experiment=default
if (($# > 0)) && [[ "$1" != -* ]]; then
  experiment="$1"
  shift
fi

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/scripts/venv.sh"
ensure_venv packages project

export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
# A folder named `tasks` or `privacy` where the user happens to stand is not ours (Python 3.11).
export PYTHONSAFEPATH=1
# Not a child of this script, so that Ctrl-C and its exit status are Python's alone. The user stays
# in their directory: --output_dir and --data_dir are relative to it.
exec "$VENV/bin/python" -m tff_superquantile.experiments.sweep "--experiment=$experiment" "$@"
