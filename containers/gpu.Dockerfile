# A GPU node: torch for CUDA, vLLM for the teacher. Give a CUDA base image with Python 3.11 by digest.
#   docker build -f containers/gpu.Dockerfile --build-arg BASE=REGISTRY/IMAGE@sha256:DIGEST -t vdr:gpu .
#   docker run --rm --gpus all -v "$PWD/outputs:/study/outputs" -v "$HF_HOME:/models" vdr:gpu vdr plan table1 --profile paper
ARG BASE
# hadolint ignore=DL3006
FROM ${BASE}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev make git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /study
ENV PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1 HF_HOME=/models CUBLAS_WORKSPACE_CONFIG=:4096:8

COPY requirements/gpu.txt requirements/
RUN python3.11 -m venv /opt/vdr \
    && /opt/vdr/bin/pip install --require-hashes --no-deps -r requirements/gpu.txt

COPY . .
RUN /opt/vdr/bin/pip install --no-deps --no-build-isolation --no-index -e .
ENV PATH=/opt/vdr/bin:$PATH
CMD ["vdr", "--help"]
