# gpuops from a checkout. Everything goes into .venv/, except the Debian packages that the tests use (see .ci/packages).
# A second call is quick: what was installed is remembered by stamps in .venv/.made/, until pyproject.toml changes.
#
# make demo     train a digit reader on two nodes, both of them this machine
# make check    format, lint, types, imports, unit tests: a minute and a half, for every save
# make test     make check's checks and every test: what must pass before a change is in
# make proof    every test, with the full counts as well (long)
# make bench    what is measured, beside what, as tables (a quarter of an hour, on a quiet machine)
# make clean    remove what was made here, .venv/ too; never your runs/

# A distribution's own Python comes first: it is optimised by a profile, which one that pyenv built is not by default, and
# commands, agents and guards that start by the thousand then cost a fifth less.
PYTHON ?= $(shell /usr/bin/python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo /usr/bin/)python3
BIN := .venv/bin
MADE := .venv/.made

# Files of tests run side by side; what is long, and mostly waits, comes first (tests/conftest.py): six workers left two cores idle an eighth of the time, eight 2 %.
SIDE_BY_SIDE := -n 8 --dist loadfile --no-loadscope-reorder
# PROGRAM:PACKAGE, what the tests use of the system
PACKAGES := git:git ps:procps sshd:openssh-server ssh:openssh-client rsync:rsync ip:iproute2 nft:nftables sudo:sudo systemctl:systemd munged:munge slurmctld:slurmctld slurmd:slurmd squeue:slurm-client slurmdbd:slurmdbd mariadbd:mariadb-server-core \
    dockerd:docker.io podman:podman crun:crun newuidmap:uidmap add.modules:environment-modules chromium-headless-shell:chromium-headless-shell

# The rules that find keys are compiled once, before many commands at a time would each do it (tests/conftest.py)
RULES := KF_RULE_CACHE_DIR=$(CURDIR)/.pytest_cache/rules

# Bytecode is kept, whatever the shell around says: thousands of processes read it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo check static rules bytecode test suite proof bench clean packages
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# make/make/p' Makefile

demo: $(MADE)/train
	$(BIN)/gpuops train multinode --nodes 2
	@echo 'next, in this shell: source .venv/bin/activate; then: gpuops --help (or .venv/bin/gpuops --help)'

check: static rules
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/unit

# What is said of the code without running it; the agent's floor is Python 3.8. Which room may import which: pyproject.toml.
static: $(MADE)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/vermin -q -t=3.8- --no-parse-comments gpuops/agent

rules: $(MADE)/dev
	@$(RULES) $(BIN)/python -c 'from gpuops.sync.secret_scan import judge_content; judge_content(b"")'

# The tests' bytecode, before eight workers at a time would each make it, for eight seconds. What is wrong, `suite` says.
bytecode: $(MADE)/dev
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null 2>&1 || true

# What waits for a mirror or has one thread stands beside what has not: Debian's packages and Python's, mypy and the tests.
test: $(MADE)/venv
	@$(MAKE) --no-print-directory --jobs 2 packages rules bytecode
	@$(MAKE) --no-print-directory --jobs 2 static suite

suite:
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

proof: packages $(MADE)/dev
	$(BIN)/python -m pip install --quiet --group proof
	$(BIN)/python -m pytest -m "proof or not proof"

bench: packages $(MADE)/dev
	$(BIN)/python -m benchmarks

packages:
	@.ci/packages $(PACKAGES)
	@.ci/unpack cloud-init $(MADE)/cloud-init

$(MADE)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: gpuops needs Python 3.11 or later, this is $$($(PYTHON) --version)"; \
	    echo "hint: name another one: make PYTHON=python3.12 $(or $(MAKECMDGOALS),demo)"; exit 1; } >&2
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || .ci/packages -:python3-venv
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@mkdir -p $(MADE) && touch $@

# torch is the big one: on Linux PyPI's build brings CUDA (gigabytes). A machine without a GPU is served by
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo
$(MADE)/train: pyproject.toml $(MADE)/venv
	$(BIN)/python -m pip install -e '.[train]'
	@touch $@

$(MADE)/dev: pyproject.toml $(MADE)/train
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find gpuops provisioners train tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -rf train/snapshots train/outputs
