# Needs Python >= 3.11 and make, nothing else: everything is installed into .venv from pinned requirements.
PYTHON ?= python3
STUDY ?= config/study.yaml
SITE ?= local
# PyTorch: auto = that of PYTHON if it is the tested version, else fetched; system = that of PYTHON; none. docs/how-to/install.md
TORCH ?= auto
# Where PyTorch is fetched from instead of where pip looks: the index of its CPU build, for one.
TORCH_INDEX ?=
# What Python compiled is kept: pytest rewrites the assertions of 300 files otherwise, in each of its processes.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
PACKAGES := base cluster containers data_prep workflow extras slipway snakemake_executor_plugin_slipway
SOURCES := $(PACKAGES) historic install setup.py tests benchmarks examples docs
# The pure tests wait for no disk where memory has room for their 200 MB.
IN_MEMORY := $(shell [ -w /dev/shm ] && [ "$$(df -k -P /dev/shm | awk 'END {print $$4}')" -gt 1000000 ] && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)
INSTALL = $(BIN)/python -m install
PIN = $(BIN)/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --strip-extras
# No other file pins what requirements-torch.txt pins, and what newer versions of that want: accelerate and lightning ask for torch.
OF_TORCH = --unsafe-package nvidia-cuda-cccl $(shell sed -n 's/^\([a-z0-9-]*\)==.*/--unsafe-package \1/p' requirements-torch.txt)

.DEFAULT_GOAL := help
.PHONY: help install demo docs image framework test processes check lint types slow historic long bench-data schemas requirements pins release clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*##  *\(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14
	@echo
	@echo 'make demo PYTHON=/path/to/python3.11 TORCH=system TORCH_INDEX=URL: docs/how-to/install.md'

install: .venv/.torch  ## install Slipway into .venv, and run nothing

demo: .venv/.torch  ## run the demo study on this machine and print its speed-up table
	@$(BIN)/slipway run '$(STUDY)' --site '$(SITE)'

docs: .venv/.docs  ## make the pages a site that can be searched without a network: build/docs/index.html
	$(BIN)/sphinx-build -q -W --keep-going -b html -d build/doctrees docs build/docs
	@$(BIN)/python -m docs.readability
	@echo 'docs: open build/docs/index.html'

image: .venv/.run  ## build a framework's container image; without a registry: BASE=an image that is here, WHEELS=a directory of wheels
	@$(BIN)/python -m containers.images.build $(or $(FRAMEWORK),pytorch) $(if $(ENGINE),--engine $(ENGINE)) $(if $(BASE),--base $(BASE)) $(if $(WHEELS),--wheels $(WHEELS))

framework: .venv/.torch  ## install a framework that does not fit beside Slipway, for runs without containers: NAME=jax; with another Python than Slipway's: PYTHON=; from another mirror of Debian: DEBIAN=
	@[ -n '$(NAME)' ] || { echo 'make framework: which one? Write make framework NAME=jax; docs/how-to/install.md has the names' >&2; exit 2; }
	@$(BIN)/python -m containers.frameworks.own_python $(NAME) $(if $(filter command,$(origin PYTHON)),--python '$(PYTHON)') $(if $(DEBIAN),--debian '$(DEBIAN)')

test: .venv/.test  ## the pure tests, which start no process: two minutes on two cores, and as long to install what they need the first time
	$(IN_MEMORY) $(BIN)/pytest --ignore=tests/historic -m "not slow and not processes" -n 2 -rs -o tmp_path_retention_policy=failed

processes: .venv/.slow  ## quick tests that fork or start programs
	$(BIN)/pytest --ignore=tests/historic -m "processes and not slow" -n 2 -rs

slow: .venv/.slow  ## real training, kills, power cuts, a browser: minutes
	$(BIN)/pytest --ignore=tests/historic -m "slow and not long" -n 4 --dist loadscope -rs

historic: .venv/.slow  ## the tests of the frameworks that are no longer developed, of which `make framework` has installed some
	$(BIN)/pytest tests/historic -m "not long" -n 3 --dist loadscope -rs

long: .venv/.slow  ## slow tests that CI leaves out: walltimes, silences, a minute or so each
	$(BIN)/pytest -m long -n 3 --dist loadscope -rs

bench-data: .venv/.dev .venv/.torch  ## the data path against its peers, each installed into .slipway/peers: ROWS="W1 R1", SIZE=0.1, REPEATS=5; WRITE=yes: into docs/explanation/performance.md
	@$(BIN)/python -m benchmarks.data --rows $(ROWS) --size $(or $(SIZE),1) --repeats $(or $(REPEATS),5) $(if $(WRITE),--write)

lint: .venv/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/snakemake --lint
	$(BIN)/python -m docs.generate --check

types: .venv/.dev
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases benchmarks docs

check: lint types test processes slow historic  ## all that CI checks

schemas: .venv/.dev  ## write config/schemas and the tables of docs/reference from the code
	$(BIN)/python -m docs.generate

requirements: .venv/.dev  ## pin anew what the .in files ask for
	$(PIN) --allow-unsafe -o requirements.txt requirements.in
	$(PIN) -o requirements-test.txt requirements-test.in
	$(PIN) --allow-unsafe -o requirements-dev.txt requirements-dev.in
	$(PIN) -o requirements-docs.txt requirements-docs.in
	$(PIN) $(OF_TORCH) -o requirements-slow.txt requirements-slow.in
	$(PIN) -o requirements-release.txt requirements-release.in
	set -e; for folder in $(dir $(wildcard containers/frameworks/*/requirements.in)); do $(PIN) --allow-unsafe -o $${folder}requirements.txt $${folder}requirements.in; done

pins: .venv/.dev  ## pin anew what the requirements.in of one framework asks for: NAME=jax
	@[ -f 'containers/frameworks/$(NAME)/requirements.in' ] || { echo "make pins: there is no containers/frameworks/$(NAME)/requirements.in; write make pins NAME=jax" >&2; exit 2; }
	$(PIN) --allow-unsafe -o 'containers/frameworks/$(NAME)/requirements.txt' 'containers/frameworks/$(NAME)/requirements.in'

# From the last commit: no file that is not committed, and none of an earlier build, gets into it.
release: .venv/.release .venv/.torch docs  ## build dist/ from the last commit, check it, and try the wheels in an environment of their own
	rm -rf dist build/release
	mkdir -p build/release/source
	git archive HEAD | tar -x -C build/release/source
	for part in . historic; do $(BIN)/python -m build --no-isolation --outdir dist build/release/source/$$part || exit; done
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/release/env
	build/release/env/bin/python -m pip install --quiet --require-hashes -r build/release/source/requirements.txt
	build/release/env/bin/python -m pip install --quiet --no-deps --no-index dist/*.whl
	ln -s "$$($(BIN)/python -c 'import torch; print(*torch.__path__)')" build/release/env/lib/python3.*/site-packages/
	cd build/release && export HOME="$$PWD/home" && env/bin/slipway --version && env/bin/slipway init study && env/bin/slipway plan study/study.yaml

clean:  ## forget the demo's results; those of other studies, datasets, cache and the installation stay
	rm -rf config/storage/results/digits-scaling .snakemake

# One file for each set of packages that is installed: of every command, PyTorch, of `make test`, of lint and types, of the tests that start programs.
.venv/.run: requirements.txt pyproject.toml setup.py data_prep/reader/pixels.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Slipway needs Python 3.11 or newer, found " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m install environment .venv
	@$(INSTALL) packages --for 'what every command needs' --require-hashes -r requirements.txt
	@$(INSTALL) packages --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	@touch $@

.venv/.torch: .venv/.run requirements-torch.txt
	@$(INSTALL) torch --python $(PYTHON) --use $(TORCH) --index '$(TORCH_INDEX)'
	@touch $@

.venv/.test: .venv/.run requirements-test.txt
	@$(INSTALL) packages --for 'what the tests need' --no-deps --require-hashes -r requirements-test.txt
	@touch $@

.venv/.dev: .venv/.test requirements-dev.txt
	@$(INSTALL) packages --for 'what lint and types need' --no-deps --require-hashes -r requirements-dev.txt
	@touch $@

.venv/.docs: .venv/.run requirements-docs.txt
	@$(INSTALL) packages --for 'what makes the site of the pages' --no-deps --require-hashes -r requirements-docs.txt
	@touch $@

.venv/.release: .venv/.dev requirements-release.txt
	@$(INSTALL) packages --for 'what checks a release' --no-deps --require-hashes -r requirements-release.txt
	@touch $@

.venv/.slow: .venv/.dev .venv/.torch requirements-slow.txt
	@$(INSTALL) packages --for 'what the tests that start programs need, such as transformers and keras,' --no-deps --require-hashes -r requirements-slow.txt
	@touch $@
