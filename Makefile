# Everything sets itself up: `make demo` and `make test` work on a fresh machine, as root on Debian, with nothing done by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEBIAN_PACKAGES := g++ g++-aarch64-linux-gnu nlohmann-json3-dev qemu-user qemu-system-arm adb e2fsprogs
C_SOURCES = $(shell find android_harness ondevice -name '*.c' -o -name '*.cpp' -o -name '*.h')

.PHONY: help setup demo test quick lint bench clean

help:  ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(VENV)/.installed $(VENV)/.debian  ## create the environment (demo, test, lint and bench do it themselves)

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --editable '.[export,dev]'
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

test: setup lint  ## lint, types, the quick tests, then the slow ones
	$(BIN)/pytest -m "not slow"
	$(BIN)/pytest -m slow --durations 15

quick: setup  ## the quick tests alone
	$(BIN)/pytest -m "not slow"

lint: setup  ## ruff, strict mypy and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)

bench: setup  ## speed and memory, as ratios
	$(BIN)/python benchmarks/federation.py

clean:  ## remove the environment and what runs left behind
	rm -rf $(VENV) build runs *.egg-info
