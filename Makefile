# MOSAIC: set-up, run, test. `make` alone prints what there is.
PYTHON ?= python3
JOBS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Two stamps, so that `make run` does not wait for what only the tests need. Both grow stale with pyproject.toml.
CORE := $(VENV)/.installed-core
FULL := $(VENV)/.installed-test

.DEFAULT_GOAL := help
.PHONY: help run test test-all check setup system proto bench-learning bench-campaign bench-speed bench-start bench-envpool bench-kills bench-checkpoints bench-fastlane bench-trainer bench-executors bench-web bench-gpu profile clean

help:
	@echo "MOSAIC"
	@echo "  make run             set up, start daemon and web GUI, then watch PPO solve CartPole"
	@echo "  make test            set up everything the tests use, then run them"
	@echo "  make test-all        the same and more of each kind, for an afternoon"
	@echo "  make check           ruff and mypy"
	@echo "  make setup           only set up: $(VENV) with every extra the tests use"
	@echo "  make bench-learning  how well the algorithms learn, against published returns"
	@echo "  make bench-campaign  ARGS='next --minutes 30': trains the rows of docs/results.md in slices"
	@echo "  make bench-speed     steps per second, side by side with other libraries"
	@echo "  make bench-start     seconds from the command to the first update"
	@echo "  make bench-envpool   EnvPool against Gymnasium: same dynamics? faster?"
	@echo "  make bench-kills     checkpoints under a thousand SIGKILLs"
	@echo "  make bench-checkpoints  what checkpoints cost in speed"
	@echo "  make bench-fastlane  what the live view costs, watched and unwatched"
	@echo "  make bench-trainer   the daemon: curves, lists, streams, what it costs a run"
	@echo "  make bench-executors  Ray and Slurm: nodes that die, preemption, what they cost a run (as root)"
	@echo "  make bench-web       the GUI: first page, large curves, what a viewer costs"
	@echo "  make bench-gpu       CUDA graphs on a GPU: the same results? how much faster?"
	@echo "  make profile         ALGO=dqn ENV=CartPole-v1: where the time of a training goes, as a table and a flame graph"
	@echo "  make proto           generate src/mosaic/contract/proto from trainer.proto"
	@echo "  make clean           remove $(VENV) and caches (runs in var/ stay)"
	@echo "Settings: PYTHON=python3.12 (the interpreter of $(VENV)), JOBS=2 (test processes), ARGS='…' (for bench-*)"

run: $(CORE)
	@$(BIN)/mosaic up --detach
	@$(BIN)/mosaic train ppo CartPole-v1 --set total_timesteps=200000 --set learning_rate=0.001 --set seed=1 --follow
	@echo
	@echo "What next? Type 'source $(BIN)/activate', then try:"
	@echo "  mosaic train ppo CartPole-v1 --set num_envs=8 --follow   change any parameter; Ctrl-C leaves the run going"
	@echo "  mosaic train dqn Acrobot-v1 --seeds 1-3                  three runs; they go on when this terminal closes"
	@echo "  mosaic runs                                              all runs; mosaic show latest: the newest in full"
	@echo "  mosaic algos ppo                                         every parameter, its default and what it does"
	@echo "  mosaic url                                               an address for your browser: forms, live view, curves"
	@echo "Daemon and web GUI stay, so that runs can; 'mosaic down' ends them."

# Real processes on a busy machine: a test that fails is tried again, and the summary names it.
RERUNS := --reruns 2 -r R
# Each process takes one half of the tests, so that what neighbours share is made once, and helps the other in the end.
HALVES := -n $(JOBS) --dist worksteal

test: $(FULL) system
	@$(BIN)/python -m pytest $(HALVES) $(RERUNS) $(ARGS) tests

test-all: $(FULL) system
	@$(BIN)/python -m pytest $(HALVES) $(RERUNS) --full $(ARGS) tests

check: $(FULL)
	$(BIN)/ruff check .
	$(BIN)/mypy

setup: $(FULL) system

bench-learning: $(FULL)
	$(BIN)/python benchmarks/learning.py $(ARGS)

bench-campaign: $(FULL)
	$(BIN)/python benchmarks/campaign.py $(ARGS)

bench-speed: $(FULL)
	$(BIN)/python benchmarks/speed.py $(ARGS)

bench-start: $(FULL)
	$(BIN)/python benchmarks/start.py $(ARGS)

bench-envpool: $(FULL)
	$(BIN)/python benchmarks/envpool_parity.py $(ARGS)

bench-kills: $(FULL)
	$(BIN)/python benchmarks/kills.py $(ARGS)

bench-checkpoints: $(FULL)
	$(BIN)/python benchmarks/checkpoints.py $(ARGS)

bench-fastlane: $(FULL)
	$(BIN)/python benchmarks/fastlane.py $(ARGS)

bench-trainer: $(FULL)
	$(BIN)/python benchmarks/trainer.py $(ARGS)

bench-executors: $(FULL)
	$(BIN)/python benchmarks/executors.py $(ARGS)

bench-web: $(FULL) system
	$(BIN)/python benchmarks/web.py $(ARGS)

bench-gpu: $(FULL)
	$(BIN)/python benchmarks/gpu.py $(ARGS)

ALGO ?= dqn
ENV ?= CartPole-v1
profile: $(CORE)
	$(BIN)/python benchmarks/flame.py $(ALGO) $(ENV) $(ARGS)

proto: $(FULL)
	$(BIN)/python -m grpc_tools.protoc -Imosaic/contract/proto=src/mosaic/contract/proto --python_out=src --pyi_out=src --grpc_python_out=src \
	  mosaic/contract/proto/trainer.proto

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(CORE): pyproject.toml | $(BIN)/python
	@echo "Set-up, once: installing MOSAIC into $(VENV). PyTorch is the large part: one to five minutes, pip shows how far."
	@$(BIN)/python -m pip install -e .
	@touch $@

$(FULL): pyproject.toml | $(BIN)/python
	@echo "Set-up, once: installing MOSAIC and all that its tests use into $(VENV): two to eight minutes, pip shows how far."
	@$(BIN)/python -m pip install -e '.[test]'
	@touch $(CORE) $@

$(BIN)/python:
	@command -v $(PYTHON) > /dev/null || { \
	  echo "MOSAIC needs Python 3.11 or later, and there is no '$(PYTHON)'. Name yours: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "MOSAIC needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Set-up, once: making the virtual environment $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }

# MuJoCo draws through EGL; the browser tests drive Chromium. What cannot be installed is told, with the line to type.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -n)
CHROMIUM := $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name))))

system: | $(BIN)/python
	@if [ "$$(uname)" != Linux ]; then exit 0; fi; \
	missing=""; \
	$(BIN)/python -c 'import ctypes; ctypes.CDLL("libEGL.so.1")' 2> /dev/null || missing="libegl1"; \
	$(BIN)/python -c 'import ctypes; ctypes.CDLL("libQt5Gui.so.5")' 2> /dev/null || missing="$$missing libqt5gui5 libqt5core5a"; \
	[ -n "$(CHROMIUM)" ] || missing="$$missing chromium"; \
	[ -z "$$missing" ] || { echo "Set-up, once: installing$${missing:+ $$missing} with apt-get …"; \
	  { $(SUDO) apt-get install -qq -y $$missing || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq -y $$missing; }; } \
	    > /dev/null 2>&1; } \
	|| echo "Note: pictures of MuJoCo, Procgen and the browser tests need system packages: sudo apt-get install -y $$missing"
