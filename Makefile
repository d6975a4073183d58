# make demo   install, run a small study, look at its report     make test        the test suite
# make lint   ruff: rules and formatting                         make test-slow   the slow tests
# make clean  remove what was installed and cached here          make oracle      published implementations

PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/demo
# Paths to test; empty: all.
TESTS ?=
MUTANTS ?=
# One process per core. The tests of a file stay in one process, because they share compiled functions;
# tests/conftest.py sets their order.
PARALLEL = -n auto --dist loadfile --no-loadscope-reorder
PIP_INSTALL = $(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt

# Files of text that are opened without an encoding fail the tests (pyproject.toml).
export PYTHONWARNDEFAULTENCODING = 1

.PHONY: install demo lint test test-slow test-all fuzz mutants oracle compilers plans browser sinks xpk beam lm-eval reference docs clean

$(VENV)/installed: setup.cfg constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("tfm needs Python 3.11 or newer; name one: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[test]'
	@touch $@

install: $(VENV)/installed

demo: $(VENV)/installed
	$(VENV)/bin/tfm ablate experiments/position.py:demo --workdir=$(RUN)

lint: $(VENV)/installed
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

test: $(VENV)/installed
	$(VENV)/bin/python -m pytest $(PARALLEL) $(TESTS)

# The slow tests share little: they are spread over the cores one by one.
test-slow: $(VENV)/installed
	$(VENV)/bin/python -m pytest -m 'slow and not exhaustive' -n auto --dist worksteal

# Every fast and slow test, and every case of the sampled ones.
test-all: $(VENV)/installed
	$(VENV)/bin/python -m pytest -m 'not oracle' -n auto --dist worksteal

# Malformed configs, arguments and files, 2,000 at random: each must be accepted, or rejected in one sentence.
fuzz: $(VENV)/installed
	$(VENV)/bin/python -m tests.fuzz

# Small errors put into the code that computes, one at a time: each that no test notices is listed. All of them
# take hours; MUTANTS='tfm.training.schedule*' selects some.
mutants: $(VENV)/installed
	$(PIP_INSTALL) -e '.[mutants]'
	$(VENV)/bin/mutmut run $(MUTANTS)
	$(VENV)/bin/mutmut results

# Comparisons with published implementations; they need PyTorch (the CPU build is enough).
oracle: $(VENV)/installed
	$(PIP_INSTALL) 'torch==2.13.0'
	$(PIP_INSTALL) -e '.[oracle]'
	$(VENV)/bin/python -m pytest -m oracle $(PARALLEL)

# Plans for TPUs and GPUs without the devices, which need the compilers of both; and the kernels of tokamax.
compilers: $(VENV)/installed
	$(PIP_INSTALL) -e '.[tpu,cuda-compiler,tokamax]'
	$(VENV)/bin/python -m pytest -m slow tests/analysis/test_plan.py -k 'for_a_topology or for_boxes_of_gpus'
	$(VENV)/bin/python -m pytest -m 'slow or not slow' tests/kernels/test_tokamax.py \
	  tests/parallel/test_compiler_options.py tests/training/test_gradient_reduction.py tests/models/test_remat.py \
	  tests/training/test_optimizer_offload.py

# All committed plans anew, in hours; `sh docs/plans/make.sh` goes on after an interruption.
plans: $(VENV)/installed
	$(PIP_INSTALL) -e '.[tpu,cuda-compiler]'
	rm -rf docs/plans/*/
	PATH="$(abspath $(VENV))/bin:$$PATH" sh docs/plans/make.sh

# Reports and the board in a real browser, such as Debian's package chromium.
browser: $(VENV)/installed
	$(PIP_INSTALL) -e '.[browser]'
	$(VENV)/bin/python -m pytest -m slow tests/studies/report/test_browser.py tests/board/test_browser.py

# Metrics in the programs that show them, offline.
sinks: $(VENV)/installed
	$(PIP_INSTALL) -e '.[mlflow,trackio,wandb]'
	$(VENV)/bin/python -m pytest -m 'slow or not slow' tests/training/test_sinks.py

# Workloads for Kubernetes as the real xpk makes them, without a cluster. It has many dependencies, thus its own
# environment.
xpk: $(VENV)/installed
	$(PYTHON) -m venv .venv-xpk
	.venv-xpk/bin/pip install --quiet --disable-pip-version-check 'xpk==1.16.0'
	$(VENV)/bin/python -m pytest -m slow tests/launch/test_xpk.py

# $(call overlay,NAME,PACKAGE,OTHERS): an environment of its own, .venv-NAME, with PACKAGE and the versions that it
# needs of OTHERS, a|b|c; all other packages are those of this one.
define overlay
$(VENV)/bin/python -m venv .venv-$(1)
$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
  > "$$(.venv-$(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
grep -vE '^($(3))==' constraints.txt > .venv-$(1)/constraints.txt
.venv-$(1)/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-$(1)/constraints.txt $(2)
endef

# Tokens written by Apache Beam, which needs older versions of four packages.
beam: $(VENV)/installed
	$(call overlay,beam,'apache-beam==2.77.0',pillow|pyarrow|protobuf|python-dateutil)
	.venv-beam/bin/python -m pytest -m slow tests/data/test_beam.py

# Tasks of lm-evaluation-harness on a run, offline. It needs an older version of a package.
lm-eval: $(VENV)/installed
	$(call overlay,lm-eval,'lm-eval==0.4.13',python-dateutil)
	.venv-lm-eval/bin/python -m pytest -m slow tests/evaluation/test_lm_eval.py

# The generated pages of docs/reference.
reference: $(VENV)/installed
	$(VENV)/bin/python docs/generate.py

# The site of docs/, in build/site; a broken link fails.
docs: $(VENV)/installed
	$(PIP_INSTALL) -e '.[docs]'
	$(VENV)/bin/mkdocs build --quiet

clean:
	rm -rf $(VENV) .venv-xpk .venv-beam .venv-lm-eval .cache build *.egg-info
