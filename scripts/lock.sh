#!/usr/bin/env bash
# Makes requirements.lock and requirements-dev.lock anew. Arguments go to `uv pip compile`.
#
# One search finds the newest versions that fit together (without --upgrade it keeps those of the
# old locks). requirements.lock gets what setup.cfg's extra `training` comes to, and
# requirements-dev.lock what `dev` and `cluster` need on top. Other than setup.cfg and the
# packages say,
#   - TFF's three packages are taken without what they declare: setup.cfg says why;
#   - tensorflow-cpu is in the place of tensorflow: the same without CUDA's kernels, 0.6 GB less;
#   - what nothing imports here is left out: keras (TFF needs tf-keras), google-pasta, libclang and
#     wheel, which TensorFlow's packages declare, and mpmath, which dp-accounting's tests need.
# Held back by others are attrs (dp-accounting) and h5py (TensorFlow). Many packages have older
# versions for Python 3.10 and 3.11, which their newest ones are not for.
set -euo pipefail

show_help() {
  cat <<'HELP'
Usage: lock.sh [ARGUMENT OF `uv pip compile` ...]

Makes requirements.lock and requirements-dev.lock anew from setup.cfg. It needs uv.

    scripts/lock.sh                          only what a change of setup.cfg makes necessary
    scripts/lock.sh --upgrade                the newest version of every package
    scripts/lock.sh --upgrade-package=numpy  the newest version of one

Exit status: 0 made, 1 found no versions that fit together, 2 no uv or bad arguments.
HELP
}

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"
help_if_asked "$@"
command -v uv >/dev/null || _die "Found no uv, which makes the locks: install it ($_GET_UV)."

work="$(mktemp -d)"
trap 'rm -rf -- "$work"' EXIT
cd -- "$work"
cat "$ROOT"/requirements*.lock >all.lock

# uv takes these settings from where it works. In the project they would hold for all that use uv.
cat >pyproject.toml <<'TOML'
[tool.uv]
environments = ["""python_version < '3.14'
  and sys_platform == 'linux' and platform_machine == 'x86_64'
  and implementation_name == 'cpython' and platform_python_implementation == 'CPython'"""]
exclude-dependencies = ["google-pasta", "keras", "libclang", "mpmath", "tensorflow", "wheel"]
dependency-metadata = [
  {name = "tensorflow-federated", requires-dist = []},
  {name = "tensorflow-model-optimization", requires-dist = []},
  {name = "tensorflow-privacy", requires-dist = []},
]
TOML

# _find LOCK EXTRAS ARGUMENT...: finds the packages that setup.cfg's extras come to.
_find() {
  uv run --quiet --no-project python - "$ROOT/setup.cfg" "$2" \
    "$ROOT/tff_superquantile/install_tff.py" >requirements.in <<'PYTHON'
import configparser, re, sys
config = configparser.ConfigParser()
config.read(sys.argv[1])
print(config["options"]["install_requires"])
for extra in sys.argv[2].split():
  packages = config["options.extras_require"][extra]
  print(re.sub("(?m)^tensorflow(?=[<>=])", "tensorflow-cpu", packages))
print(*re.findall(r"tensorflow-[a-z-]+==[\d.]+", open(sys.argv[3]).read()), sep="\n")
PYTHON
  uv pip compile --quiet --universal --python-version 3.10 --only-binary :all: --generate-hashes \
    --no-annotate --no-header "${@:3}" requirements.in -o "$1" >/dev/null
  # Markers are to tell the four Pythons apart, and nothing else.
  sed -Ei -e "s/ (;|and) implementation_name == .*'linux'//" \
    -e "s/ (;|and) python_full_version < '3.14'//" "$1"
}
_find all.lock "training dev cluster" "$@"
_find experiments.lock training --constraints all.lock

# _write NAME IS_FOR_EXPERIMENTS TITLE: writes a lock, with the packages for experiments or others.
_write() {
  cat <<HEADER
# $3,
# for CPython 3.10 to 3.13 on Linux x86_64 with glibc 2.31 or newer. scripts/lock.sh has made it,
# and says how; scripts/venv.sh installs it by
#
#     python -m pip install --no-deps --ignore-requires-python --require-hashes \\
#         --only-binary :all: -r $1
HEADER
  awk -F = -v is_for_experiments="$2" '
    NR == FNR { names[$1]; next }
    /^[a-z]/ { is_wanted = ($1 in names) == is_for_experiments }
    is_wanted' experiments.lock all.lock
}
_write requirements.lock 1 "The packages for experiments" >"$ROOT/requirements.lock"
_write requirements-dev.lock 0 \
  "What tests, linters and documentation need on top of requirements.lock" \
  >"$ROOT/requirements-dev.lock"
