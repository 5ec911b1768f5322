# The experiments in a container; docs/how_to/container.md says how to use it.
#
#     docker build -t tff_superquantile .
#     docker run --rm -v "$PWD/results:/results" tff_superquantile

# Debian 13 has Python 3.13 and glibc 2.41.
FROM debian:13-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/tff_superquantile

# Packages before the project's own files, whose changes then do not install them anew.
COPY requirements.lock ./
COPY scripts scripts
RUN PIP_NO_CACHE_DIR=1 bash -c 'source scripts/venv.sh && ensure_venv packages'

COPY LICENSE README.md pyproject.toml setup.cfg run_experiments.sh ./
COPY paper paper
COPY privacy privacy
COPY tasks tasks
COPY tff_superquantile tff_superquantile
RUN bash -c 'source scripts/venv.sh && ensure_venv packages project'

# Nobody needs to be root here. Any other user may run it, too, also one without a home.
RUN useradd --uid 1000 --no-create-home federated
USER 1000:1000
ENV HOME=/tmp
# Where results go, seen from here, is /results.
WORKDIR /
# A first process that passes signals on and buries orphans.
ENTRYPOINT ["tini", "--", "/opt/tff_superquantile/run_experiments.sh"]
