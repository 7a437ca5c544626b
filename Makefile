PYTHON ?= python3
VENV   ?= .venv
PIP    := $(VENV)/bin/python -m pip
OUT    ?= runs/first

.PHONY: help run test slow sites docs lint bench clean
help:            ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile

run: $(VENV)/.ready  ## set up, then train PRISM over ten clients on embedded digits
	@if [ -e $(OUT)/settings.toml ]; then $(VENV)/bin/vitrail resume $(OUT); else $(VENV)/bin/vitrail run prism out=$(OUT); fi

test: $(VENV)/.ready-dev  ## set up, then run the tests (about five minutes; `make slow` runs the rest)
	$(VENV)/bin/python -m pytest -n 2 --dist loadscope -m 'not sites and not docs and not slow'

sites: $(VENV)/.ready-dev  ## the tests that start Flower: its simulation, and real processes, with kills, false replies and TLS
	$(VENV)/bin/python -m pytest -m sites tests/engines tests/experiment/deployment

slow: $(VENV)/.ready-dev  ## the long tests: kills, hostile replies, every method, examples
	$(VENV)/bin/python -m pytest -n 2 --dist loadscope -m slow

docs: $(VENV)/.ready-dev  ## build the documentation site into site/ and run its code blocks and notebook
	$(VENV)/bin/mkdocs build --strict
	$(VENV)/bin/python -m pytest -n 2 -m docs tests/docs

lint: $(VENV)/.ready-dev  ## ruff, mypy and import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(VENV)/.ready-dev  ## what PRISM sends and takes, what the engine and an evaluation cost (about 15 minutes)
	$(VENV)/bin/python benchmarks/prism.py
	$(VENV)/bin/python benchmarks/step.py
	$(VENV)/bin/python benchmarks/engine.py
	$(VENV)/bin/python benchmarks/evaluation.py

clean:           ## remove the virtual environment and caches (runs stay)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

define installing
@echo "installing packages into $(VENV); this takes a minute or two, once"
endef

$(VENV)/.ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(installing)
	$(PIP) install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(installing)
	$(PIP) install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.ready
