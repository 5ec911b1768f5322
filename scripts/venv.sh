# shellcheck shell=bash
# Sourced by run_experiments.sh, run_tests.sh and the scripts beside it. `ensure_venv PART...` makes
# the environment .venv in the project's root where it is missing, incomplete or out of date, and
# otherwise does nothing, quickly; `help_if_asked ARGUMENT...` shows the script's help. Sets ROOT and
# VENV. The user may set PYTHON, pip's PIP_* and, for the disk space that is insisted on,
# TFF_SUPERQUANTILE_MIN_DISK_MB.
#
# The parts, in the order in which they go in:
#   packages        requirements.lock
#   project         this project itself, in place, and what lets TFF be imported: stack/
#   dev             requirements-dev.lock, what the tests need
#
# Files of ours in .venv:
#   .made-for       the project root it was made for; without it the environment is the user's own,
#                   which is installed into, but never deleted
#   .unfinished     there while something is being installed: after a kill nothing in it is to be
#                   trusted, pip takes half a package for a whole one
#   .stamp-*        checksum of what was installed from, written last
#   install.log     what pip said

ROOT="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$ROOT/.venv"

_NEEDED="Python 3.10, 3.11, 3.12 or 3.13"
_IS_NEEDED='^CPython 3\.1[0-3] '
_GET_UV="curl -LsSf https://astral.sh/uv/install.sh | sh"
_SET_UP_FAILED=2
# TensorFlow Federated 0.87 has one wheel, tagged manylinux_2_31_x86_64; no other asks for more.
_MIN_GLIBC_MINOR=31

_die() {
  printf 'Error: %s\n' "$*" >&2
  exit "$_SET_UP_FAILED"
}

# help_if_asked ARGUMENT...: calls the script's show_help and ends, if --help is among them.
help_if_asked() {
  local argument
  for argument in "$@"; do
    if [[ "$argument" == --help || "$argument" == -h ]]; then
      show_help
      exit 0
    fi
  done
}

# _stamp_of PART: changes with what the part is installed from.
_stamp_of() {
  case "$1" in
    packages) cat -- "$ROOT/requirements.lock" ;;
    # In place: pip notes the path.
    project) echo "$ROOT" && cat -- "$ROOT/setup.cfg" "$ROOT/pyproject.toml" ;;
    dev) cat -- "$ROOT/requirements-dev.lock" ;;
  esac | sha256sum | cut -d ' ' -f 1
}

# _is_current PART
_is_current() {
  local stamp="$VENV/.stamp-$1"
  [[ -f "$stamp" && "$(<"$stamp")" == "$(_stamp_of "$1")" ]]
}

# _is_complete PART...: whether .venv has the parts, and belongs here. A copied or moved environment
# still points to where it was.
_is_complete() {
  local part
  [[ ! -e "$VENV/.unfinished" ]] || return 1
  [[ ! -e "$VENV/.made-for" || "$(<"$VENV/.made-for")" == "$ROOT" ]] || return 1
  for part in "$@"; do
    _is_current "$part" || return 1
  done
  # Fails also where the system's Python was replaced by another version.
  "$VENV/bin/python" -I -c 'import absl' >/dev/null 2>&1
}

_check_platform() {
  local system machine libc minor
  system="$(uname -s)"
  machine="$(uname -m)"
  if [[ "$system" != Linux || "$machine" != x86_64 ]]; then
    _die "Found $system $machine, but TensorFlow Federated 0.87 has wheels for Linux x86_64 only:" \
      "use such a machine or a container (on Windows, WSL 2)."
  fi
  libc="$(getconf GNU_LIBC_VERSION 2>/dev/null || true)"
  if [[ "$libc" =~ ^glibc\ 2\.([0-9]+) ]]; then
    minor="${BASH_REMATCH[1]}"
    if ((minor < _MIN_GLIBC_MINOR)); then
      _die "Found $libc, but TensorFlow Federated 0.87 needs glibc 2.$_MIN_GLIBC_MINOR or newer:" \
        "use a newer Linux, such as Debian 11 or Ubuntu 20.04."
    fi
  elif [[ "$(ldd --version 2>&1 || true)" == *musl* ]]; then
    _die "Found a Linux with musl (such as Alpine), but TensorFlow's wheels need glibc" \
      "2.$_MIN_GLIBC_MINOR or newer: use Debian, Ubuntu or the like."
  fi
}

# _probe COMMAND: prints implementation, version, and whether it can make an environment.
_probe() {
  "$1" -I -c '
import sys, platform, importlib.util as util
print(platform.python_implementation(), "%d.%d" % sys.version_info[:2],
      "yes" if util.find_spec("venv") and util.find_spec("ensurepip") else "no")' 2>/dev/null
}

# _take COMMAND: sets python to it if it will do; otherwise notes what is wrong with it.
_take() {
  local answer
  command -v -- "$1" >/dev/null || return 1
  # A shim of a version manager can be there without its Python, so ask it.
  answer="$(_probe "$1" || true)"
  if [[ ! "$answer" =~ $_IS_NEEDED ]]; then
    answer="${answer/CPython/Python}"
    [[ -z "$answer" ]] || found="${answer% *} ($(command -v -- "$1"))"
  elif [[ "$answer" == *yes ]]; then
    python="$1"
    return
  else
    without_venv="${without_venv:-${answer//[!0-9.]/}}"
  fi
  return 1
}

# Takes a Python that uv knows of, on PATH or not.
_take_from_uv() {
  _take "$(uv python find --system --no-project 'cpython>=3.10,<3.14' 2>/dev/null || true)"
}

# Sets python to the first Python that will do.
_find_python() {
  local candidate reason found="" without_venv=""
  local remedy="install uv, which gets one ($_GET_UV), or install one yourself"
  if [[ -n "${PYTHON:-}" ]]; then
    ! _take "$PYTHON" || return 0
    remedy="unset PYTHON"
    [[ -n "$found$without_venv" ]] || _die "Found PYTHON=$PYTHON, which is no Python that runs:" \
      "set it to the path of $_NEEDED, or unset it."
  else
    for candidate in python3.13 python3.12 python3.11 python3.10 python3; do
      ! _take "$candidate" || return 0
    done
    if command -v uv >/dev/null; then
      ! _take_from_uv || return 0
      echo "Getting Python 3.13 by uv ..." >&2
      # Into uv's own folder, and not under its name into ~/.local/bin.
      if reason="$(UV_PYTHON_INSTALL_BIN=0 uv python install 3.13 2>&1)"; then
        ! _take_from_uv || return 0
      fi
      reason="${reason##*$'\n'}" && reason="${reason##*cause: }"
      remedy="install one, since uv could not (${reason%.})"
    fi
  fi
  if [[ -n "$without_venv" ]]; then
    _die "Found Python $without_venv without the modules venv and ensurepip: install them" \
      "(Debian and Ubuntu: apt install python$without_venv-venv) or set PYTHON to another Python."
  fi
  _die "Found ${found:-no Python}, but $_NEEDED is needed: $remedy," \
    "or set PYTHON=/path/to/python3.13."
}

_check_disk() {
  local needed="${TFF_SUPERQUANTILE_MIN_DISK_MB:-4096}" free
  free="$(df -k --output=avail -- "$ROOT" 2>/dev/null | tail -n 1 | tr -d ' ' || true)"
  if [[ "$free" =~ ^[0-9]+$ ]] && ((free / 1024 < needed)); then
    _die "Found $((free / 1024)) MB of free disk space for $VENV, but $needed MB are needed:" \
      "make room, or move the project to a larger disk."
  fi
}

# What pip's log shows when the index did not answer.
_NETWORK_ERRORS='NewConnectionError|ConnectTimeout|Read timed out|name resolution|ProxyError'
_NETWORK_ERRORS+='|SSLError|Connection (refused|reset|broken|aborted)|HTTP error (403|407|5..)'

# _explain_pip_failure STATUS
_explain_pip_failure() {
  local reason
  reason="$(grep -E '^ERROR:' "$_log" | tail -n 1 || true)"
  if (($1 > 128)); then
    reason="pip was killed"
  elif grep -q 'No space left on device' "$_log"; then
    reason="the disk is full (the project's, or that of temporary files, which TMPDIR sets)"
  elif grep -qE "$_NETWORK_ERRORS" "$_log"; then
    reason="no package index can be reached (check the network, or set PIP_INDEX_URL or PIP_PROXY)"
    # pip downloads everything before it installs anything: .venv is as good as it was.
    rm -f -- "$VENV/.unfinished"
  fi
  _die "Could not install the packages: ${reason:-pip failed}; see $_log for what pip said," \
    "then run again."
}

# _install PART
_install() {
  local part="$1" stamp
  if _is_current "$part"; then
    return
  fi
  stamp="$(_stamp_of "$part")"
  rm -f -- "$VENV/.stamp-$part"
  local pip=("$VENV/bin/python" -I -m pip --no-input --disable-pip-version-check install --no-deps)
  # Without --only-binary a missing wheel would start an hour of compiling. What TFF declares is of
  # 2023: see setup.cfg.
  local locked=(--only-binary :all: --require-hashes --ignore-requires-python)
  case "$part" in
    packages) pip+=("${locked[@]}" -r "$ROOT/requirements.lock") ;;
    dev) pip+=("${locked[@]}" -r "$ROOT/requirements-dev.lock") ;;
    # requirements.lock has the setuptools that builds it: nothing to download.
    project) pip+=(--no-build-isolation -e "$ROOT") ;;
  esac
  # In braces the log also gets what bash says of a killed command.
  { "${pip[@]}" </dev/null; } >>"$_log" 2>&1 || _explain_pip_failure "$?"
  if [[ "$part" == project ]]; then
    # Scripts of the user's may import TFF before anything of ours.
    "$VENV/bin/python" -I -m tff_superquantile.install_tff </dev/null >>"$_log" 2>&1 ||
      _die "Could not prepare the import of TFF; see $_log."
  fi
  printf '%s\n' "$stamp" >"$VENV/.stamp-$part"
}

# _why_unusable: prints why an environment of ours cannot be used; nothing where it can.
_why_unusable() {
  if [[ "$(<"$VENV/.made-for")" != "$ROOT" ]]; then
    echo "it was made for $(<"$VENV/.made-for"), and copied or moved"
  elif [[ -e "$VENV/.unfinished" ]]; then
    echo "its installation was interrupted"
  elif ! "$VENV/bin/python" -I -m pip --version >/dev/null 2>&1; then
    echo "its Python does not run"
  fi
}

# Removes an environment of ours that cannot be used, and says so. An update of one that is complete
# keeps it.
_remove_unusable() {
  local reason
  [[ -e "$VENV" || -L "$VENV" ]] || return 0
  if [[ -f "$VENV/.made-for" ]]; then
    reason="$(_why_unusable)"
    if [[ -n "$reason" ]]; then
      echo "Removing $VENV, to make it anew: $reason." >&2
      # Renamed first: half removed it would look like the user's own.
      { rm -rf -- "$VENV.old" && mv -- "$VENV" "$VENV.old" && rm -rf -- "$VENV.old"; } ||
        _die "Could not remove the unusable $VENV: remove it and run again."
    fi
  elif [[ ! "$(_probe "$VENV/bin/python" || true)" =~ $_IS_NEEDED ]]; then
    _die "Found $VENV, which this script did not make and which has no $_NEEDED:" \
      "move it away and run again."
  fi
}

_make_venv() {
  local python
  _find_python
  _check_disk
  rm -rf -- "$VENV.new"
  mkdir -- "$VENV.new"
  printf '%s\n' "$ROOT" >"$VENV.new/.made-for"
  : >"$VENV.new/.unfinished"
  mv -T -- "$VENV.new" "$VENV"
  if ! "$python" -I -m venv "$VENV" </dev/null >>"$_log" 2>&1; then
    _die "Could not make an environment with $python; what it said is in $_log."
  fi
}

# Says what takes a while.
_announce() {
  local part count locks=() minute=""
  for part in "$@"; do
    if _is_current "$part"; then
      continue
    fi
    case "$part" in
      packages) locks+=("$ROOT/requirements.lock") minute=", a minute or two, once" ;;
      dev) locks+=("$ROOT/requirements-dev.lock") ;;
    esac
  done
  if ((${#locks[@]} > 0)); then
    # Lines with < or * in their marker are for Pythons before the newest.
    count="$(cat -- "${locks[@]}" | grep -c '^[a-z][^<*]*$')"
    echo "Installing $count packages into .venv$minute ..." >&2
  fi
}

# ensure_venv PART...
ensure_venv() {
  local part
  if _is_complete "$@"; then
    return
  fi
  _check_platform
  [[ -w "$ROOT" ]] || _die "Found no permission to write to $ROOT, where .venv is to be made."

  # One at a time. The lock is outside of what is removed, and ends with the process.
  if command -v flock >/dev/null; then
    exec 9>>"$ROOT/.venv.lock"
    if ! flock -n 9; then
      echo "Waiting for another process that is installing into .venv ..." >&2
      flock 9 || true
    fi
  fi
  if ! _is_complete "$@"; then
    # By a copy of stderr: a trap may run while stderr is the log.
    exec 8>&2
    trap 'echo "Interrupted: the next run starts the installation again." >&8; exit 130' INT
    _log="$VENV/install.log"
    _remove_unusable
    if [[ -e "$VENV" ]]; then
      : >"$VENV/.unfinished"
      : >"$_log"
    else
      _make_venv
    fi
    _announce "$@"
    for part in "$@"; do
      _install "$part"
    done
    rm -f -- "$VENV/.unfinished"
    trap - INT
    exec 8>&-
  fi
  # Not to be inherited: an experiment would keep others waiting.
  if command -v flock >/dev/null; then
    exec 9>&-
  fi
}
