# make demo    build everything that is missing, fetch a small model, generate text
# make build   .venv, dependencies, compiled kernels
# make test    the test suite
# make bench   speed beside llama.cpp on the same file (MODEL, by default the demo's; BENCH: options of tools/bench_gate.py)
# make lint    ruff and cython-lint
# make docs    the generated pages of docs/
# make clean   remove what was built; the downloaded models stay in the cache
#
# Needs Python 3.11 or newer with venv, and a C compiler. PYTHON=python3.12 chooses another interpreter.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
DEMO   ?= --chat -n 96

KERNEL_SOURCES := setup.py setup.cfg fucina/runtime/variants.py \
                  $(wildcard fucina/_kernels/*.py* fucina/_kernels/*.pxd fucina/_kernels/include/*)
# The choices that a build depends on, so that another choice builds again.
CHOICE := $(VENV)/choice
# When one of these changed, timestamps of the sources say nothing: everything is compiled again.
REMAKE := $(CHOICE) setup.py fucina/runtime/variants.py

.PHONY: demo build test bench lint docs clean force
.DELETE_ON_ERROR:

demo: build
	$(PY) -m fucina run $(DEMO)

build: $(VENV)/built

test: build
	$(PY) -m pytest

bench: build $(VENV)/bench
	$(PY) tools/bench_gate.py "$${MODEL:-$$($(PY) -c 'from fucina.models import fetch; print(fetch())')}" $(BENCH)

lint: $(VENV)/dependencies
	$(PY) -m ruff check .
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint fucina

docs: build
	$(PY) tools/make_docs.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find fucina -name '*.so' -delete
	find fucina tests tools -name __pycache__ -prune -exec rm -rf {} +
	find fucina/_kernels -mindepth 1 -type d -empty -delete

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fucina needs Python 3.11 or newer: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(VENV)/dependencies: pyproject.toml tools/requirements.py | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check $$($(PY) tools/requirements.py llm test)
	@touch $@

$(VENV)/bench: $(VENV)/dependencies
	$(PY) -m pip install --quiet --disable-pip-version-check $$($(PY) tools/requirements.py bench)
	@touch $@

$(CHOICE): force | $(PY)
	@echo "$(FUCINA_VARIANTS) $(FUCINA_DEBUG) $(CC) $(CFLAGS)" | cmp -s - $@ || \
	  echo "$(FUCINA_VARIANTS) $(FUCINA_DEBUG) $(CC) $(CFLAGS)" > $@

$(VENV)/built: $(VENV)/dependencies $(KERNEL_SOURCES) $(CHOICE)
	$(if $(filter $(REMAKE),$?),CYTHON_FORCE_REGEN=1) $(PY) setup.py --quiet build_ext --inplace \
	  $(if $(filter $(REMAKE),$?),--force)
	@touch $@
