# make demo   install, run a small study, look at its report     make test        the test suite
# make lint   ruff: rules and formatting                         make test-slow   the slow tests
# make clean  remove what was installed and cached here          make oracle      published implementations

PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/demo
# Paths to test; empty: all.
TESTS ?=
# More options of pytest. Unlike PYTEST_ADDOPTS they do not reach a pytest that a test starts.
OPTIONS ?=
MUTANTS ?=
# One process per core. The tests of a file stay in one process, because they share compiled functions;
# tests/conftest.py sets their order.
PARALLEL = -n auto --dist loadfile --no-loadscope-reorder
# Modules are compiled when they are first imported; compiling all of them took half the time of installing.
PIP_FLAGS = --quiet --disable-pip-version-check --no-compile
# Containers often set it; then every process compiles all modules again, a second or two of each that starts.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = $(VENV)/bin/pip install $(PIP_FLAGS) -c constraints.txt
# $(call pytest,VENV): pytest of an environment. Files of text that are opened without an encoding fail the tests
# (pyproject.toml).
pytest = PYTHONWARNDEFAULTENCODING=1 $(1)/bin/python -m pytest $(OPTIONS)

.PHONY: install demo lint test test-slow test-all fuzz mutants oracle compilers plans device browser sinks launch beam lm-eval reference docs clean

$(VENV)/installed: setup.cfg constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("tfm needs Python 3.11 or newer; name one: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[test]'
	@touch $@

install: $(VENV)/installed

# Small models train faster on CPUs with huge pages (docs/how-to/devices.md).
demo: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
demo: $(VENV)/installed
	$(VENV)/bin/tfm ablate experiments/position.py:demo --workdir=$(RUN)

lint: $(VENV)/installed
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

test: $(VENV)/installed
	$(call pytest,$(VENV)) $(PARALLEL) $(TESTS)

# The day's share of the slow tests (tfm/conformance/session.py). They share little: spread over the cores one by one.
test-slow: $(VENV)/installed
	$(call pytest,$(VENV)) -m 'slow and not exhaustive' -n auto --dist worksteal

# Every fast and slow test, and every case of the sampled ones.
test-all: $(VENV)/installed
	$(call pytest,$(VENV)) -m 'not oracle' -n auto --dist worksteal

# Malformed configs, arguments and files, 2,000 at random: each must be accepted, or rejected in one sentence.
fuzz: $(VENV)/installed
	$(VENV)/bin/python -m tests.fuzz

# Small errors put into the code that computes, one at a time, of each module a few: those that its tests do not notice
# are listed. MUTANTS='--sample=25 tfm/training/schedule.py' chooses others.
mutants: $(VENV)/installed
	$(PIP_INSTALL) -e '.[mutants]'
	$(VENV)/bin/python -m tests.mutants $(MUTANTS)

# Comparisons with published implementations; they need PyTorch (the CPU build is enough).
oracle: $(VENV)/installed
	$(PIP_INSTALL) 'torch==2.13.0'
	$(PIP_INSTALL) -e '.[oracle]'
	$(PIP_INSTALL) --no-deps 'mup==1.0.0'  # it asks for torchvision, which what is compared does not use
	$(call pytest,$(VENV)) -m oracle $(PARALLEL)

# Plans for TPUs and GPUs without the devices, which need the compilers of both; and the kernels of tokamax.
compilers: $(VENV)/installed
	$(PIP_INSTALL) -e '.[tpu,cuda-compiler,tokamax]'
	$(VENV)/bin/python -c 'import tokamax'  # without it its tests would be skipped
	$(call pytest,$(VENV)) -n auto --dist worksteal -m 'slow or not slow' tests/analysis/test_plan.py \
	  tests/analysis/test_host_rows.py -k 'for_a_topology or for_boxes_of_gpus'
	$(call pytest,$(VENV)) -n auto --dist worksteal -m 'slow or not slow' tests/kernels/test_tokamax.py \
	  tests/kernels/test_flash.py tests/mixers/test_pallas_recurrence.py tests/parallel/test_compiler_options.py \
	  tests/training/test_gradient_reduction.py tests/models/test_remat.py tests/training/test_optimizer_offload.py

# All committed plans anew, in hours; `sh docs/plans/make.sh` goes on after an interruption.
plans: $(VENV)/installed
	$(PIP_INSTALL) -e '.[tpu,cuda-compiler]'
	rm -rf docs/plans/*/
	PATH="$(abspath $(VENV))/bin:$$PATH" sh docs/plans/make.sh

# A folder with tfm and the small packages that a machine with only jax, flax and optax lacks:
# PYTHONPATH=build/device python -m tfm benchmark device --to=DIR
device: $(VENV)/installed
	rm -rf build/device
	$(PIP_INSTALL) --no-deps --target build/device . annotated-types jaxtyping ml-collections wadler-lindig

# Reports and the board in a real browser, such as Debian's package chromium.
browser: $(VENV)/installed
	$(PIP_INSTALL) -e '.[browser]'
	$(call pytest,$(VENV)) -m slow tests/studies/report/test_browser.py tests/board/test_browser.py

# Metrics in the programs that show them, offline.
sinks: $(VENV)/installed
	$(PIP_INSTALL) -e '.[mlflow,trackio,wandb]'
	$(call pytest,$(VENV)) -m 'slow or not slow' tests/training/test_sinks.py

.venv-xpk/installed:
	$(PYTHON) -m venv .venv-xpk
	.venv-xpk/bin/pip install $(PIP_FLAGS) 'xpk==1.16.0'
	@touch $@

# What `tfm launch` prints for Kubernetes: workloads as the real xpk makes them, without a cluster (it has many
# dependencies, thus its own environment); manifests by the schemas of Kubernetes; and the Dockerfile by hadolint.
launch: $(VENV)/installed .venv-xpk/installed
	$(PIP_INSTALL) -e '.[launch]'
	$(call pytest,$(VENV)) -m 'slow or not slow' tests/launch/test_xpk.py tests/launch/test_kubernetes.py \
	  tests/launch/test_dockerfile.py

# $(call overlay,NAME,PACKAGE,OTHERS): an environment of its own, .venv-NAME, with PACKAGE and the versions that it
# needs of OTHERS, a|b|c; all other packages are those of this one.
define overlay
$(VENV)/bin/python -m venv .venv-$(1)
$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
  > "$$(.venv-$(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
grep -vE '^($(3))==' constraints.txt > .venv-$(1)/constraints.txt
.venv-$(1)/bin/python -m pip install $(PIP_FLAGS) -c .venv-$(1)/constraints.txt $(2)
endef

# Tokens written by Apache Beam, which needs older versions of four packages.
beam: $(VENV)/installed
	$(call overlay,beam,'apache-beam==2.77.0',pillow|pyarrow|protobuf|python-dateutil)
	$(call pytest,.venv-beam) -m slow tests/data/test_beam.py

# Tasks of lm-evaluation-harness on a run, offline. It needs an older version of a package.
lm-eval: $(VENV)/installed
	$(call overlay,lm-eval,'lm-eval==0.4.13',python-dateutil)
	$(call pytest,.venv-lm-eval) -m slow tests/evaluation/test_lm_eval.py

# The generated pages of docs/reference.
reference: $(VENV)/installed
	$(VENV)/bin/python docs/generate.py

# The site of docs/, in build/site; a broken link fails.
docs: $(VENV)/installed
	$(PIP_INSTALL) -e '.[docs]'
	$(VENV)/bin/mkdocs build --quiet

clean:
	rm -rf $(VENV) .venv-xpk .venv-beam .venv-lm-eval .cache build *.egg-info
