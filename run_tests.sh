#!/usr/bin/env bash
# Checks style and types and runs the tests. Arguments go to pytest.
set -euo pipefail

show_help() {
  cat <<'HELP'
Usage: run_tests.sh [PYTEST ARGUMENT ...]

Checks style with ruff and types with mypy, then runs the tests; the first call makes the
environment .venv.

    ./run_tests.sh                              everything but the long reproductions
    ./run_tests.sh --run_slow                   those too
    ./run_tests.sh --quick                      style, types, one test of each folder: a minute
    ./run_tests.sh tests/test_superquantile.py  one file
    ./run_tests.sh -k threshold -x              other arguments of pytest

Exit status: 0 all fine, 1 a mistake of style or type or a failed test, 2 set-up or arguments failed,
130 interrupted, 5 no test matches.
HELP
}

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/scripts/venv.sh"
help_if_asked "$@"

ensure_venv packages project dev

cd -- "$ROOT"
"$VENV/bin/python" -m ruff check .
"$VENV/bin/python" -m mypy
exec "$VENV/bin/python" -m pytest "$@"
