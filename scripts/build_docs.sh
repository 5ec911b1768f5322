#!/usr/bin/env bash
# Builds the site of the documentation in site/. Arguments go to `mkdocs build`.
set -euo pipefail

show_help() {
  cat <<'HELP'
Usage: build_docs.sh [MKDOCS ARGUMENT ...]

Builds the documentation as a site, site/index.html; the first call makes the environment .venv.
A link to a page or heading that does not exist is an error.

    scripts/build_docs.sh                     the site, in site/; its search needs a server:
                                              .venv/bin/python -m http.server -d site
    scripts/build_docs.sh --site-dir=/tmp/x   elsewhere

Exit status: 0 built, 1 a broken link or docstring, 2 set-up or arguments failed.
HELP
}

# shellcheck source=scripts/venv.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/venv.sh"
help_if_asked "$@"

ensure_venv packages project dev

cd -- "$ROOT"
# An advertisement: mkdocs is pinned.
export NO_MKDOCS_2_WARNING=1
exec "$VENV/bin/python" -m mkdocs build "$@"
