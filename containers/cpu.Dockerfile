# The miniature on a CPU. Give the base image by digest; the build takes nothing but the hashed locks.
#   docker build -f containers/cpu.Dockerfile --build-arg BASE=docker.io/library/python:3.11-slim-bookworm@sha256:DIGEST -t vdr:cpu .
#   docker run --rm -v "$PWD/outputs:/study/outputs" vdr:cpu make reproduce-table1
ARG BASE
# hadolint ignore=DL3006
FROM ${BASE}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev make git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /study
ENV PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# The environment first: it changes less often than the code.
COPY requirements/torch-cpu.txt requirements/cpu.txt requirements/
RUN python3.11 -m venv .venv \
    && .venv/bin/pip install --require-hashes --no-deps --extra-index-url "${TORCH_INDEX}" -r requirements/torch-cpu.txt \
    && .venv/bin/pip install --require-hashes --no-deps -r requirements/cpu.txt

COPY . .
RUN scripts/setup.sh
CMD ["make", "help"]
