# `make run` runs the main job, `make test` everything a change must pass, `make coverage` the tests again with the lines
# that they reach (at least 85 %; it takes half as long again). All set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
ifeq ($(shell command -v nvidia-smi),)
INSTALL := -c constraints/cpu.txt -e '.[dev]'
else
INSTALL := -e '.[gpu,dev]'
endif

# one thread a worker: two of them would fight for two cores
TESTS := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

.PHONY: run test coverage
run: .venv/installed
	$(BIN)/dsv4bench prefill --graph --batch 1..64 $(ARGS)

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(TESTS)

coverage: .venv/installed
	$(TESTS) --cov

.venv/installed: pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $(INSTALL)
	touch $@
