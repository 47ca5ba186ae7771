# Two commands do everything on a fresh machine with Python >= 3.11 and make:
#   make train   makes .venv, installs, trains the quickstart
#   make test    makes .venv, installs, runs the tests
# PIP_ARGS is handed to pip (an index of CPU-only PyTorch wheels, a mirror); ARGS to the command itself.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
ARGS ?=

.PHONY: train test lint install install-dev clean

train: $(VENV)/.installed
	$(VENV)/bin/agent-rl train configs/quickstart.yaml $(ARGS)

test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest $(ARGS)

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; found `$(PYTHON) --version`. Set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/pip install --disable-pip-version-check -q $(PIP_ARGS) -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(VENV)/bin/pip install --disable-pip-version-check -q $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist *.egg-info
