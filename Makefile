# The two commands: `make book` runs every chapter and renders the site; `make test` checks everything.
# Both first make .venv from requirements.txt, once per change of it.
#   PYTHON=python3.12   the interpreter that .venv is made with (3.11, 3.12 or 3.13)
#   FORCE=1             run every chapter again        ONLY=03        run one chapter
#   LAB_ARGS=--no-browser  options of `make lab`
#   DEVICE=cpu|cuda     instead of auto                PROFILE=full   instead of quick

PYTHON  ?= python3
DEVICE  ?= auto
PROFILE ?= quick
PORT    ?= 8000
JUPYTERLAB = jupyterlab==4.6.6 jupyterlab_myst==2.7.0

VENV   := .venv
PY     := $(VENV)/bin/python
PINS   := $(shell cat requirements.txt pyproject.toml | cksum | cut -d' ' -f1)
SERIES := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
SYNCED := $(VENV)/.synced-$(SERIES)-$(PINS)

# Dozens of short processes import the same modules: let Python keep their bytecode. Set-up compiles it on two cores,
# without what few of them import.
export PYTHONDONTWRITEBYTECODE :=
RARE := /(tests?|testing|sympy|networkx|sqlalchemy|pip|setuptools|debugpy|onnx|ao|fontTools|playwright|lexers)/
# From Python 3.12 on, coverage can watch lines without tracing every one of them
ifneq ($(SERIES),3.11)
export COVERAGE_CORE := sysmon
endif

RUN = $(PY) book/run.py --device $(DEVICE) --profile $(PROFILE) $(if $(FORCE),--force) $(if $(ONLY),--only $(ONLY))

.PHONY: book test test-site test-gpu lint lab serve record pdf clean help

book: $(SYNCED)
	@$(RUN)

lint: $(SYNCED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

# In the order of the files: the longest test, the pages of the whole book, is in the first
test: lint
	$(PY) -m pytest -n 2 --dist loadscope --no-loadscope-reorder -m "not gpu and not site" --cov=kernels --cov-report=term:skip-covered

# In a real browser, on the site that `make book` has rendered; screenshots go to _build/screenshots.
test-site: $(SYNCED)
	$(PY) -m pytest tests/site -n 2

test-gpu: $(SYNCED)
	$(PY) -m pytest -m gpu

# JupyterLab, and what shows MyST in it, are no part of the pinned set. JUPYTER_PATH makes its "python3" kernel this environment's.
lab: $(SYNCED)
	@$(PY) -m pip install -q -q $(JUPYTERLAB)
	@JUPYTER_PATH="$$($(PY) book/run.py --kernelspec)" $(PY) -m jupyterlab --notebook-dir=book $(LAB_ARGS)

serve: $(SYNCED)
	@test -d _build/html || { echo "There is no site yet: make book"; exit 1; }
	@echo "http://127.0.0.1:$(PORT)/  (Ctrl-C ends it)"
	@$(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

record: $(SYNCED)
	@$(PY) -m kernels.lab.records

pdf: $(SYNCED)
	@$(RUN)
	@$(PY) book/run.py --pdf

clean:
	rm -rf _build .pytest_cache .ruff_cache .hypothesis .coverage

$(SYNCED): requirements.txt pyproject.toml
	@case "$(SERIES)" in 3.11|3.12|3.13) ;; \
	  "") echo "There is no '$(PYTHON)': install Python 3.11, 3.12 or 3.13, or name one with PYTHON=..."; exit 1;; \
	  *) echo "Python $(SERIES) is not supported, 3.11 to 3.13 are: make PYTHON=python3.12 ..."; exit 1;; esac
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv is missing: sudo apt install python3-venv"; exit 1; }
	@rm -f $(VENV)/.synced-*
	@if [ "$$($(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$(SERIES)" ]; then \
	  echo "Making $(VENV) with Python $(SERIES)"; $(PYTHON) -m venv --clear $(VENV); fi
	@echo "Installing requirements.txt into $(VENV)"
	@$(PY) -m pip install -q -q --disable-pip-version-check --no-compile -r requirements.txt
	@$(PY) -m compileall -q -j 2 -x '$(RARE)' $(VENV)/lib > /dev/null || true
	@touch $@

help:
	@sed -n '1,6p' Makefile; echo; echo "Targets: book test test-site test-gpu lint lab serve record pdf clean"
