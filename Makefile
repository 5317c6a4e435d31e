# Two commands matter: `make serve` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2-135m
ARGS ?=
TEST_ARGS ?=
CLIENTS ?=
WORKERS ?= 2
SOURCES := pyproject.toml $(filter-out csrc/tests csrc/tests/%,$(wildcard csrc/* csrc/*/*))

.PHONY: help serve test test-native test-clients test-all test-fast check format docs peers clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

serve: $(VENV)/.installed ## install what is missing, get the default model, serve it with a chat page (MODEL=…, ARGS="--port 9000")
	@$(BIN)/mini-vllm serve --model $(MODEL) $(ARGS)

test: $(VENV)/.installed-test ## run the whole test suite (installs torch and transformers as references)
	@$(BIN)/python -m pytest -n $(WORKERS) $(TEST_ARGS)

test-native: ## run the C++ tests of the native library: plainly, sanitized, on emulated processors
	@tools/test_native.sh

test-clients: $(VENV)/.installed-test ## real clients (OpenAI's, LangChain, lm-eval …), each in its own environment, against a running server
	@$(BIN)/python tests/clients/run.py $(CLIENTS)

test-all: test test-native test-clients ## all of them, and a short run beside two other engines (installs a prebuilt llama.cpp in ~/.cache)
	@PYTHON=$(abspath $(BIN)/python) tools/peers.sh llama-server
	@$(BIN)/mini-vllm bench peers --smoke

test-fast: $(VENV)/.installed-test ## the quick part of the test suite, a minute or two
	@$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(TEST_ARGS)

check: $(VENV)/.installed-test ## format, lint, imports, types, sizes, generated docs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy
	@$(BIN)/python tools/check_sizes.py
	@$(BIN)/python tools/generate_docs.py --check

format: $(VENV)/.installed-test ## format the sources
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-test ## rewrite the generated reference pages
	@$(BIN)/python tools/generate_docs.py

peers: $(VENV)/.installed ## install the engines that `mini-vllm bench peers` compares us with (an hour; see docs/guides/benchmarks.md)
	@PYTHON=$(abspath $(BIN)/python) tools/peers.sh

clean: ## remove the environment and all build outputs
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.installed: $(SOURCES) tools/install.sh
	@tools/install.sh $(VENV) run
	@touch $@

$(VENV)/.installed-test: $(SOURCES) tools/install.sh tests/constraints.txt
	@tools/install.sh $(VENV) test
	@touch $(VENV)/.installed $@
