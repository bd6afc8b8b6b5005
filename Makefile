# `make run` runs the main job, `make test` everything a change must pass. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
ifeq ($(shell command -v nvidia-smi),)
INSTALL := -c constraints/cpu.txt -e '.[dev]'
else
INSTALL := -e '.[gpu,dev]'
endif

.PHONY: run test
run: .venv/installed
	$(BIN)/dsv4bench prefill --graph --batch 1..64 $(ARGS)

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --cov  # one thread a worker: two of them would fight for two cores

.venv/installed: pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $(INSTALL)
	touch $@
