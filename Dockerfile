# tfm in a container, for `tfm launch gke` and `tfm launch kubernetes`: target cpu, or cuda for NVIDIA's GPUs, or tpu.
#   docker build --target=cuda --tag=tfm:cuda .
FROM python:3.11.14-slim-bookworm AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 HOME=/cache TFM_CACHE=/cache
RUN useradd --uid 1000 --no-create-home tfm && install --directory --owner=tfm --group=tfm /cache /runs
WORKDIR /src
COPY constraints.txt setup.cfg setup.py pyproject.toml README.md LICENSE ./
COPY configs configs
COPY experiments experiments
COPY tfm tfm

FROM base AS cuda
RUN pip install --constraint constraints.txt '.[all,cuda]'
WORKDIR /runs
USER 1000
CMD ["tfm", "--help"]

FROM base AS tpu
RUN pip install --constraint constraints.txt '.[all,tpu]'
WORKDIR /runs
USER 1000
CMD ["tfm", "--help"]

# The last target is the one of a build without --target.
FROM base AS cpu
RUN pip install --constraint constraints.txt '.[all]'
WORKDIR /runs
USER 1000
CMD ["tfm", "--help"]
