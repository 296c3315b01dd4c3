# Every target sets itself up: Python 3.11 or newer, pip and make are all that a machine needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format setup package docs docs-serve
setup: .venv/installed

.venv/installed: pyproject.toml setup.cfg
	@$(PYTHON) -c "import sys; sys.version_info >= (3, 11) or \
	  sys.exit('error: this is Python %d.%d, and 3.11 or newer is needed: add PYTHON=python3.12' % sys.version_info[:2])"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --editable . --group dev
	touch $@

package: setup  ## as installed, with callbacks/ and recipes/ in their places, for tools that read files
	rm -rf build
	$(BIN)/pip install --quiet --no-deps --target build/package .

demo: setup  ## 100 rounds of FedTOGA on real handwritten digits, 20 clients
	$(BIN)/fabric run recipes/digits.py

test: setup
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: setup package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd build/package && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache
	cd build/package && ../../$(BIN)/lint-imports --no-cache --no-logo --config ../../pyproject.toml

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/docs-installed: .venv/installed
	$(BIN)/pip install --quiet --group docs
	touch $@

docs: .venv/docs-installed package  ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: .venv/docs-installed package  ## the documentation on http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve
