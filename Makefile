# Everything sets itself up: `make demo` and `make test` work on a fresh machine, as root on Debian, with nothing done by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FLOWER := .venv-flower
PFL := .venv-pfl
DEBIAN_PACKAGES := g++ g++-aarch64-linux-gnu nlohmann-json3-dev qemu-user qemu-system-arm adb e2fsprogs
C_SOURCES = $(shell find android_harness ondevice server_sim -name '*.c' -o -name '*.cpp' -o -name '*.h')

# Bytecode is kept, whatever the environment says: else each of the tests' many processes would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test quick lint bench large flower race clean

help:  ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(VENV)/.installed $(VENV)/.debian  ## create the environment (demo, test, lint and bench do it themselves)

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --editable '.[export,zoo,cluster,index,data,dev]'
	touch $@

# Where Debian packages cannot be installed, emulation and native kernels are left out; `fedss doctor` says which.
$(VENV)/.debian: Makefile
	@mkdir -p $(VENV)
	@missing=$$(for package in $(DEBIAN_PACKAGES); do dpkg -s $$package >/dev/null 2>&1 || echo $$package; done); \
	if [ -z "$$missing" ]; then touch $@; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null && touch $@; \
	elif [ -n "$$CI" ]; then echo "missing Debian packages, and no way to install them:" $$missing; exit 1; \
	else echo "left out, for want of Debian packages:" $$missing; fi

demo: setup  ## the main job in small, with a report at the end
	$(BIN)/fedss demo

# Two processes, whatever the machine; the tests of a file stay together, since they share what is slow to make.
PYTEST := $(BIN)/pytest --numprocesses 2 --dist loadfile

test: setup lint  ## lint, types, the quick tests, then the slow ones
	$(PYTEST) -m "not slow"
	$(PYTEST) -m slow --durations 15

quick: setup  ## the quick tests alone
	$(PYTEST) -m "not slow"

lint: setup  ## ruff, strict mypy and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)

bench: setup  ## speed and memory, as ratios
	$(BIN)/python benchmarks/federation.py

large: setup  ## tables larger than memory: what they take, and 200 kills; needs 3 GB of disk
	$(BIN)/python -m benchmarks.large_table

# Flower wants other versions of what we use, so it gets an environment of its own.
$(FLOWER)/.installed: pyproject.toml Makefile
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/pip install --quiet --no-compile 'flwr[simulation]==1.41.0' --editable .
	touch $@

flower: $(FLOWER)/.installed  ## our rounds on Flower, over TLS on loopback, and the state compared
	$(FLOWER)/bin/python examples/flower/run_on_loopback.py

$(PFL)/.installed: Makefile
	test -x $(PFL)/bin/python || $(PYTHON) -m venv $(PFL)
	$(PFL)/bin/pip install --quiet --no-compile pfl==0.6.0 torch==2.13.0
	touch $@

race: setup $(FLOWER)/.installed $(PFL)/.installed  ## ours beside a bare loop, Flower and pfl, as ratios
	$(BIN)/python -m benchmarks.race --flower $(FLOWER)/bin/python --pfl $(PFL)/bin/python

clean:  ## remove the environment and what runs left behind
	rm -rf $(VENV) $(FLOWER) $(PFL) build runs *.egg-info
