# Everything runs from a bare clone: the first command creates .venv, later ones reuse it offline.
# `make` alone lists the commands.

VENV := .venv
STAMP := $(VENV)/.stamp
BIN := $(VENV)/bin
RUN := $(BIN)/python -m

# How many tests run at once, and further arguments for pytest: make test WORKERS=8 ARGS='-k claim -x'
# Tests that start processes run with PROCESS_WORKERS: each uses several cores at times, and mostly waits.
WORKERS ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
PROCESS_WORKERS ?= 3
ARGS ?=

# The tests start hundreds of processes: without stored bytecode each would compile all of Mulligan again.
export PYTHONDONTWRITEBYTECODE :=

# The first interpreter that is new enough; choose another with `make PYTHON=…`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done)

# An environment contains its own path. If it was moved or lost its interpreter, create it again.
$(shell [ "$$(cat $(STAMP) 2>/dev/null)" = "$(CURDIR)" ] && $(BIN)/python -c '' 2>/dev/null \
	|| { [ ! -e $(STAMP) ] || rm -rf $(VENV); })

.PHONY: help venv demo test pythons djangos lint types imports docs check slow mutants simulate all audit bench storm points format pictures constraints clean
.DELETE_ON_ERROR:

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP) ## create .venv with Mulligan (editable) and the development tools

# The demo needs only the packages of Mulligan itself. If there is no .venv yet, it gets a small environment.
DEMO_VENV := $(if $(wildcard $(STAMP)),$(VENV),build/demo)

demo: $(DEMO_VENV)/.stamp ## run Mulligan with sample jobs and print the address of the dashboard
	$(DEMO_VENV)/bin/mulligan demo

# Two passes. The second also runs when tests of the first failed (1) or ARGS selects none of them (5).
# The exit code is 5 only if neither pass ran a test.
test: $(STAMP) ## run the tests, on SQLite and on a PostgreSQL that they start
	@$(RUN) pytest -m 'not processes and not slow and not timing' -n $(WORKERS) --dist worksteal $(ARGS); first=$$?; \
	case $$first in 0|1|5) ;; *) exit $$first;; esac; \
	$(RUN) pytest -m 'processes and not slow and not timing' -n $(PROCESS_WORKERS) --dist worksteal $(ARGS); second=$$?; \
	[ $$first -ne 5 ] || exit $$second; \
	[ $$second -ne 5 ] || exit $$first; \
	exit $$((first | second))

lint: $(STAMP) ## check rules and format with ruff
	$(RUN) ruff check
	$(RUN) ruff format --check

types: $(STAMP) ## check types with mypy --strict
	$(RUN) mypy --strict src

imports: $(STAMP) ## check the import contracts
	PYTHONPATH=src $(BIN)/lint-imports --no-logo

docs: $(STAMP) ## build the documentation site into build/site; a broken link is an error
	$(BIN)/python docs/build_site.py

check: lint types imports docs ## lint, types, imports, docs

slow: $(STAMP) ## run the slow tests
	$(RUN) pytest -m slow -n $(PROCESS_WORKERS) --timeout 900 -o faulthandler_timeout=890 $(ARGS) || [ $$? -eq 5 ]
	$(RUN) pytest -m timing -n 0 $(ARGS) || [ $$? -eq 5 ]

mutants: $(STAMP) ## check that the invariant checker finds every planted defect
	$(RUN) pytest tests/mutants -m slow -n 0 -o faulthandler_timeout=0 $(ARGS)

# Each version has its own environment in build/. PYENV: where other versions are looked for.
PYTHONS ?= 3.11 3.12 3.13
PYENV ?= $(HOME)/.pyenv/versions

pythons: ## run the tests on every installed Python of PYTHONS='3.11 3.12 3.13'
	@failed=; for version in $(PYTHONS); do \
	found=; for python in python$$version $(PYENV)/$$version.*/bin/python3; do \
	"$$python" -c '' 2>/dev/null && found=$$python; done; \
	if [ -z "$$found" ]; then echo "Python $$version is not installed: skipped"; continue; fi; \
	echo "Python $$version: $$found"; \
	$(MAKE) test VENV=build/python$$version PYTHON="$$found" || failed="$$failed $$version"; \
	done; [ -z "$$failed" ] || { echo "failed on Python$$failed"; exit 1; }

# Each version of Django has an environment in build/. Django 6 needs Python 3.12.
DJANGOS ?= 6.0:3.12 6.1:3.13

djangos: $(STAMP) ## run the contract with Django on DJANGOS='6.0:3.12 6.1:3.13'
	@for pair in $(DJANGOS); do \
	django=$${pair%%:*}; version=$${pair##*:}; folder=build/django$$django; \
	found=; for python in python$$version $(PYENV)/$$version.*/bin/python3; do \
	"$$python" -c '' 2>/dev/null && found=$$python; done; \
	if [ -z "$$found" ]; then echo "Python $$version is not installed: Django $$django skipped"; continue; fi; \
	[ -e $$folder/.stamp ] || { echo "creating $$folder"; rm -rf $$folder; "$$found" -m venv $$folder \
	&& $$folder/bin/python -m pip install -q --disable-pip-version-check hatchling \
	&& $$folder/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[web,postgres]' "django~=$$django.0" \
	&& touch $$folder/.stamp; } || exit 1; \
	done
	$(RUN) pytest tests/integrations/test_django.py -m slow -n $(PROCESS_WORKERS) --timeout 900 -o faulthandler_timeout=890 $(ARGS)

all: ## run everything: check, test on all Pythons, test without accelerators, slow
	$(MAKE) check
	$(MAKE) pythons
	MULLIGAN_WORKER__FAST=false $(MAKE) test
	$(MAKE) djangos
	$(MAKE) slow

bench: $(STAMP) ## compare with other job systems (docs/contributors/performance.md); one to two hours, or ARGS='drain'
	PYTHONPATH=tools $(RUN) bench peers $(ARGS)

# make simulate SEEDS=2000 · FIRST=17 SEEDS=1 · STORES=sqlite,postgres · PLAY='[["enqueue",0,0,0,0]]'
SEEDS ?= 2000
FIRST ?= 1
STORES ?= sqlite
PLAY ?=

simulate: $(STAMP) ## run random scenarios on real databases under a virtual clock
	PYTHONPATH=tests $(RUN) simulation $(if $(PLAY),play '$(PLAY)',run --seeds $(SEEDS) --first $(FIRST)) --stores $(STORES)

# pip-audit gets its own environment, because it is not a dependency of Mulligan.
audit: $(STAMP) ## check dependencies: known vulnerabilities, licences, hashes
	@[ -x build/audit/bin/pip-audit ] || { "$(PYTHON)" -m venv build/audit && build/audit/bin/python -m pip install -q pip-audit; }
	$(BIN)/python docs/audit.py build/audit/bin/pip-audit

storm: $(STAMP) ## inject faults for 30 minutes on each database; ARGS='--minutes 5 --store sqlite'
	PYTHONPATH=tools:tests $(RUN) storm $(ARGS)

points: $(STAMP) ## crash before and after every commit; ARGS='--store postgres --most 200'
	PYTHONPATH=tools:tests $(RUN) storm.points $(ARGS)

format: $(STAMP) ## format the source with ruff
	$(RUN) ruff check --fix
	$(RUN) ruff format

# Install hatchling first: then an editable install needs no isolated build, and a change of
# pyproject.toml that adds no dependency downloads nothing.
PIP := $(RUN) pip install --disable-pip-version-check --progress-bar on

$(STAMP): pyproject.toml constraints.txt
	@[ -n "$(PYTHON)" ] || { echo "Mulligan needs Python 3.11 or newer; none found. Choose one: make PYTHON=/path/to/python3"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		echo "creating $(VENV) with $(PYTHON)"; rm -rf $(VENV); \
		"$(PYTHON)" -m venv $(VENV) || { echo "No venv module? On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }; }
	$(PIP) -c constraints.txt hatchling
	$(PIP) -c constraints.txt --no-build-isolation -e '.[dev]'
	@printf '%s' "$(CURDIR)" > $@

build/demo/.stamp: pyproject.toml constraints.txt
	@[ -n "$(PYTHON)" ] || { echo "Mulligan needs Python 3.11 or newer; none found. Choose one: make PYTHON=/path/to/python3"; exit 1; }
	@rm -rf build/demo
	"$(PYTHON)" -m venv build/demo || { echo "No venv module? On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	build/demo/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt hatchling
	build/demo/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[web]'
	@printf '%s' "$(CURDIR)" > $@

pictures: $(STAMP) ## take the screenshots of README, docs and apps; ARGS=FOLDER: every screen too
	PYTHONPATH=tests $(BIN)/python docs/pictures.py $(ARGS)
	PYTHONPATH=tests $(BIN)/python docs/pictures_apps.py $(ARGS)

constraints: ## renew constraints.txt: newest versions in a fresh environment (run `make all` afterwards)
	rm -rf build/newest
	"$(PYTHON)" -m venv build/newest
	build/newest/bin/python -m pip install --disable-pip-version-check '.[dev]'
	{ sed -n '/^#/p' constraints.txt; build/newest/bin/python -m pip freeze | grep -v '^mulligan\|@'; } > build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/newest

clean: ## remove everything that these commands created
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +
