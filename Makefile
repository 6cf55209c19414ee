# `make help` lists every target. Set-up is part of each command that needs it; once made, it takes no time.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PROFILE ?= mini
VENV ?= .venv
SET ?=
PYTEST ?=

export VENV PYTHON TORCH_INDEX
PY := $(VENV)/bin/python
VDR := $(VENV)/bin/vdr
CHOSEN = --profile $(PROFILE) $(foreach item,$(SET),--set $(item))

.PHONY: help setup test test-fast test-sanitized campaign lint plan verify bench bench-kernels table1 notebooks lab lock containers-lint targets clean-environment

help: ## list every target
	@echo "Targets (PROFILE=mini|smoke|pilot|paper, default $(PROFILE); SET=\"section.field=value …\" changes settings):"
	@grep -hE '^[A-Za-z0-9_.-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([A-Za-z0-9_.-]+):.*## /\1\t/' | sort -V | awk -F'\t' '{ printf "  %-26s %s\n", $$1, $$2 }'

setup: ## make the environment from the hashed locks (once; a second call takes no time)
	@scripts/setup.sh

test: setup ## run all tests (PYTEST="-k name" narrows)
	@$(PY) -m pytest $(PYTEST)

test-fast: setup ## run the tests that take less than ten seconds each
	@$(PY) -m pytest -m "not slow" $(PYTEST)

test-sanitized: setup ## run the kernels' tests under AddressSanitizer and UBSan, at every instruction level (two minutes)
	@scripts/test_sanitized.sh

campaign: setup ## try kills, full and closed disks, flipped bits, several writers and bad input (an hour), and write the report
	@$(PY) scripts/campaign

lint: setup ## check style, types and containers (ruff, mypy, hadolint)
	@$(VENV)/bin/ruff check src tests scripts
	@$(VENV)/bin/mypy
	@$(VENV)/bin/hadolint --config containers/hadolint.yaml containers/*.Dockerfile

plan: setup ## say what `make reproduce-table1` would run, what is cached, and how long it took last time
	@$(VDR) plan table1 $(CHOSEN)

table1: setup ## print Table 1 from the recorded run, without training (seconds)
	@$(VDR) table table1 --recorded

verify: setup ## compare data and weights with their manifests in data_manifests/
	@$(VDR) verify $(CHOSEN)

bench-kernels: setup ## time the kernels against their peers (prepares the peers' environments first; minutes)
	@benchmarks/run_kernels.sh

bench: setup ## measure seconds per step, pages encoded and ratings per second, as ratios to plain code
	@$(PY) benchmarks/training_steps.py --profile $(PROFILE)
	@$(PY) benchmarks/ratings.py --profile $(PROFILE)

notebooks: setup ## execute every chapter from the profile's own run, into outputs/PROFILE/notebooks
	@$(VDR) notebooks $(CHOSEN)

lab: setup ## open the notebooks
	@$(VENV)/bin/jupyter lab notebooks

lock: setup ## write the hashed locks anew (UPGRADE=1 takes newest versions)
	@scripts/lock.sh

targets: setup ## write the reproduce-… targets anew from src/vdr/study/tables.yaml
	@$(VDR) tables --make > tables.mk.new && mv tables.mk.new tables.mk

clean-environment: ## remove the environment (outputs stay)
	@rm -rf "$(VENV)"

include tables.mk
