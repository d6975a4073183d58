# make demo   install, carry out a small study, look at its report   make test        the test suite
# make clean  remove what was installed and cached here              make test-slow   the heavier proofs

PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/demo
# Paths to test; all unless told.
TESTS ?=
# A process a core; a file's tests stay together, as they share what is compiled, and in the order of tests/conftest.py.
PARALLEL = -n auto --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-slow oracle compilers browser clean

$(VENV)/installed: setup.cfg constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("tfm needs Python 3.11 or newer; name one: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

demo: $(VENV)/installed
	$(VENV)/bin/tfm ablate experiments/position.py:demo --workdir=$(RUN)

test: $(VENV)/installed
	$(VENV)/bin/python -m pytest $(PARALLEL) $(TESTS)

# Here one file holds most of the tests, and they share nothing.
test-slow: $(VENV)/installed
	$(VENV)/bin/python -m pytest -m slow -n auto --dist worksteal

# Comparisons with published implementations, which need PyTorch (the CPU build will do).
oracle: $(VENV)/installed
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt 'torch==2.13.0'
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[oracle]'
	$(VENV)/bin/python -m pytest -m oracle $(PARALLEL)

# Plans for TPUs and GPUs that are not here, which need the compilers of both.
compilers: $(VENV)/installed
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tpu,cuda-compiler]'
	$(VENV)/bin/python -m pytest -m slow tests/analysis/test_plan.py -k 'for_a_topology or for_boxes_of_gpus'

# Reports in a real browser, where one is installed, such as Debian's package chromium.
browser: $(VENV)/installed
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(VENV)/bin/python -m pytest -m slow tests/studies/report/test_browser.py

clean:
	rm -rf $(VENV) .cache build *.egg-info
