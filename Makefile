# Two commands do everything on a machine with Python 3.11 (or newer) and make:
#   make demo   create .venv, install, sparsify a network on scikit-learn's digits
#   make test   create .venv, install, run the tests and the first notebook
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Those that `make test` runs; `make notebooks` runs all.
NOTEBOOKS ?= notebooks/01*
NBMAKE = $(BIN)/python -m pytest -n auto --nbmake --nbmake-timeout=900 --durations=0 --override-ini addopts=
INSTALLED := $(VENV)/.installed
# uv takes a seventh of pip's time, and does not read pip's configuration. Where it is not to be had, or fails, pip does it.
# `make UV=false ...` leaves everything to pip, as for an index of your own.
UV ?= $(BIN)/uv
# It trusts the certificates of the machine, as pip does; older versions know the first name, newer ones the second.
export UV_NATIVE_TLS := 1
export UV_SYSTEM_CERTS := 1
CONSTRAINED := --quiet --constraint constraints.txt
add = $(UV) pip install --python $(BIN)/python $(CONSTRAINED) $(1) || $(BIN)/python -m pip install $(CONSTRAINED) $(1)
# Without what jax2onnx requires beside these: it asks for an older orbax-checkpoint and mpmath, and uses neither here.
ONNX := jax2onnx onnx onnx-ir onnxruntime flatbuffers sympy einops

# Many containers switch it off; then each process compiles the sources of JAX and all else that it imports, for
# seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test suite some-notebooks all-checks long-pages campaigns costs-check notebooks lint types type-completeness docs newest other-libraries external-links tables clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'uv>=0.5' || true
	$(call add,--editable '.[dev]')
	$(call add,--no-deps $(ONNX))
	touch $@

demo: $(INSTALLED)
	$(BIN)/bmrjax sparsify --data digits --out runs/demo --overwrite

# The notebook runs beside the suite, so that no core is idle where one of the two waits.
test: $(INSTALLED)
	$(MAKE) --no-print-directory -j2 suite some-notebooks

suite: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist worksteal --durations=40

some-notebooks: $(INSTALLED)
	$(NBMAKE) $(NOTEBOOKS)

# Attacks with damaged and made-up files, in processes with limits: about three hours. SOAK is the minutes of kill and resume.
# Another SEED is another campaign; what breaks a promise is kept in runs/campaigns.
SEED ?= 0
FILES ?= 100000
MINUTES ?= 1000
SOAK ?= 60
campaigns: $(INSTALLED)
	mkdir -p runs/campaigns
	cd tests && for name in codec predict saved data kills; do \
		test $$name = codec && files="--files $(FILES)" || files=; \
		../$(BIN)/python -m campaigns.$$name --seed $(SEED) $$files --minutes $(MINUTES) \
			--keep ../runs/campaigns/$$name --out ../runs/campaigns/$$name.json || failed=1; \
	done; \
	../$(BIN)/python -m campaigns.soak --seed $(SEED) --minutes $(SOAK) \
		--keep ../runs/campaigns/soak --out ../runs/campaigns/soak.json || failed=1; \
	test -z "$$failed"

# Where the CPU seconds of six jobs go, beside the committed rows: ten minutes on a free machine; to be scheduled, and no part of CI.
# DATA is the folder of Fashion-MNIST and the UCI tables.
DATA ?= data
costs-check: $(INSTALLED)
	$(BIN)/python -m benchmarks.costs.where --data-root $(DATA) --whole --check

# Before a release: all that a clone can check without a network, some two hours on two cores; then the newest dependencies.
all-checks: lint types type-completeness demo long-pages
	BMRJAX_ALL_CHECKS=1 $(MAKE) suite
	BMRJAX_ALL_CHECKS=1 $(MAKE) notebooks
	$(BIN)/python -m pytest -m slow tests
	$(MAKE) docs
	$(MAKE) newest

# The blocks of the site's longest pages; `make test` runs those of all others.
long-pages: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist loadfile docs/quickstart.md docs/guide.md docs/scale.md docs/plots.md docs/report.md docs/small_files.md

# All of them; `make notebooks WRITE=--overwrite` keeps what they print and draw, to be read before it is committed.
notebooks: $(INSTALLED)
	$(NBMAKE) $(WRITE) notebooks
	test -z "$(WRITE)" || $(BIN)/python tools/tidy_notebooks.py notebooks

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(INSTALLED)
	$(BIN)/pyright --pythonpath $(BIN)/python

# The types of the wheel, as a type checker of another project sees them.
type-completeness: $(INSTALLED)
	rm -rf runs/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir runs/wheel .
	$(BIN)/python tools/type_completeness.py --wheel runs/wheel/*.whl

tables: $(INSTALLED)
	$(BIN)/python -m benchmarks.tables

docs: $(INSTALLED)
	$(call add,--editable '.[docs]')
	$(BIN)/sphinx-build -W -b html docs docs/_build
	$(BIN)/python tools/links.py docs/_build

# The wheel with the newest dependencies, in an empty environment of this Python; tools/matrix.py alone does all.
newest: $(INSTALLED)
	$(call add,--editable '.[release]')
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/matrix.py --dependencies newest \
		--pythons $$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# The blocks that need PyTorch or Bambi, in an environment of their own with versions that go together: Bambi's ArviZ fails to
# import with matplotlib 3.11. TORCH may name a build without CUDA.
TORCH ?= torch
other-libraries:
	$(PYTHON) -m venv $(VENV)-others
	$(VENV)-others/bin/python -m pip install --quiet --constraint constraints.txt --editable . platformdirs pytest scikit-learn sybil hypothesis \
		arviz-stats
	$(VENV)-others/bin/python -m pip install --quiet $(TORCH) 'bambi>=0.17' 'matplotlib<3.11'
	$(VENV)-others/bin/python -m pytest docs/pytorch.md
	$(VENV)-others/bin/python -m pytest -W default docs/fitted.md

# Those that lead to other sites; needs a network.
external-links: $(INSTALLED)
	$(call add,--editable '.[docs]')
	$(BIN)/sphinx-build -W -b linkcheck docs docs/_links

clean:
	rm -rf $(VENV) $(VENV)-others runs docs/_build docs/_links docs/reference docs/notebooks
