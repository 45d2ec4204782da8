# The commands of this repository. Each does the set-up that it needs, so `make demo` and `make test` work on a fresh
# clone.

SHELL := /bin/bash
# Rules call `ffn` by name.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# Without bytecode, every process compiles what it imports, and importing TensorFlow takes three times as long.
unexport PYTHONDONTWRITEBYTECODE

# The tests of a folder, or of a file, run in one process, in the order of tests/conftest.py.
WORKERS ?= 2
PYTEST = pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: help setup demo demo-weights pictures test test-all test-bare gpu-pack lint format docs lock clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 16

# Only pictures need a browser, and their tests.
test test-all pictures: BROWSER ?= 1

setup:  ## make or update .venv; envs/setup.sh explains GPU=1, PYTHON=..., SYSTEM=0, BROWSER=1
	@GPU="$(GPU)" PYTHON="$(PYTHON)" SYSTEM="$(SYSTEM)" BROWSER="$(BROWSER)" envs/setup.sh

demo: setup  ## run the whole pipeline on a synthetic volume, print its scores and how to look at the result
	snakemake --profile profiles/local

demo-weights: setup  ## train the weights in config/demo-weights again, which the demo fine-tunes
	snakemake --profile profiles/local --configfile config/demo-weights.yaml train_all
	cp results/demo-weights/model/{model.yaml,weights.h5} config/demo-weights

pictures: demo  ## render the pictures in README.md and docs/ from the demo
	ffn view results/demo --screenshot docs/images/neuroglancer.png
	ffn view results/demo --screenshot docs/images/neurons.png --layout 3d --size 1000 700
	ffn view results/demo --screenshot docs/images/error.png --link split-01
	cd results/demo && ffn view volumes/phantom/raw.zarr segmentation/phantom/segmentation.zarr \
		--screenshot ../../docs/images/store.png
	python benchmarks/growing.py results/demo/volumes/phantom/raw.zarr config/demo-weights docs/images/growing.png \
		--seed 112 52 70

test: setup  ## run all but the slow tests, two at a time; ARGS="-k name" selects some, WORKERS=0 is one at a time
	$(PYTEST) $(ARGS)

test-all: WORKERS = 3  # some wait for processes of a cluster; four take as long
test-all: setup  ## run all tests, also those with kills, faults, studies and a real Slurm cluster
	$(PYTEST) -m "" $(ARGS)

test-bare:  ## run JAX's tests, and tools/gpu_check.sh in small, with what a bare GPU machine has (needs Python 3.12)
	PYTHON="$(PYTHON)" envs/bare.sh
	.venv-bare/bin/python -m pytest -m "not tensorflow and not slow" @tests/bare.txt $(ARGS)
	rm -rf build/gpu-check
	TINY=1 BUDGET=1800 OUT=build/gpu-check PYTHON=.venv-bare/bin/python JAX_PLATFORMS=cpu tools/gpu_check.sh run

gpu-pack: setup  ## fill .gpu-check/ with what tools/gpu_check.sh needs on a GPU machine; docs/gpu.md
	PYTHON=.venv/bin/python tools/gpu_check.sh pack

lint: setup  ## check style and types: ruff, snakefmt, mypy
	ruff check
	ruff format --check
	snakefmt --check Snakefile rules
	mypy

format: setup  ## format the code: ruff, snakefmt
	ruff check --fix
	ruff format
	snakefmt Snakefile rules

docs: .venv-docs/.setup-done  ## build the documentation site, build/site/index.html; a warning is an error
	rm -rf build/site docs/api
	.venv-docs/bin/sphinx-build -q -E -W --keep-going -c docs -d build/doctrees . build/site

.venv-docs/.setup-done: envs/docs.lock
	rm -rf .venv-docs
	envs/install.sh $(or $(PYTHON),python3) .venv-docs $< -q
	touch $@

lock:  ## make envs/*.lock and envs/ffn.yaml from envs/*.in; UPGRADE=1 takes the newest versions
	UPGRADE="$(UPGRADE)" envs/lock.sh

clean:  ## remove environments, caches and the site, but not results/ or the cached Horovod wheel
	rm -rf .venv .venv-bare .venv-docs .pytest_cache .ruff_cache .mypy_cache build *.egg-info
	find ffn tests -name __pycache__ -prune -exec rm -rf {} +
