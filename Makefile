# make run    install, then compare optimizer-memory policies on real bars
# make test   install, then all tests
# make lint   ruff and mypy
# make ui     MLflow's UI on the runs
# make lock   resolve the dependencies anew into requirements.lock

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run test lint ui lock clean

run: $(INSTALLED)
	$(BIN)/tft-exp train experiment=demo

test: $(INSTALLED)
	# Two files at a time, with one thread each: torch's threads spin while they wait, and would take the cores from each other.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

ui: $(INSTALLED)
	$(BIN)/tft-exp ui

$(INSTALLED): pyproject.toml requirements.lock
	$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'Python 3.11 or newer is needed: make PYTHON=python3.12 ...')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --progress-bar off -c requirements.lock -e '.[dev]'
	touch $@

lock:
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet torch==2.13.0 mlflow==3.17.2 -e '.[dev]'
	echo "# Exact versions of everything installed: make lock writes this file." > requirements.lock
	$(VENV)-lock/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' >> requirements.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) dist
