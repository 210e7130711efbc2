PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
# loadfile: a file's tests run in one process, so that its expensive fixtures are built once. xdist's groups would do this
# too, but with pytest 9.2 they do not work. conftest.py puts the longest files first.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all lint clean

demo: $(VENV)/.installed
	$(BIN)/paraaegis compare --preset quick

test: lint
	$(BIN)/python -m pytest $(PARALLEL)

test-all: lint
	$(BIN)/python -m pytest $(PARALLEL) -m ""

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Setting up $(VENV), which takes one to two minutes the first time"
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
