# Needs Python >= 3.11 and make, nothing else: everything is installed into .venv from pinned requirements.
PYTHON ?= python3
STUDY ?= config/study.yaml
BIN := .venv/bin
PACKAGES := base cluster containers data_prep workflow
SOURCES := $(PACKAGES) tests benchmarks

.PHONY: demo image test check lint types slow long schemas requirements clean

demo: .venv/.run  ## run the demo study on this machine and print its speed-up table
	@$(BIN)/snakemake --profile profiles/local --configfile $(STUDY) --quiet rules
	@$(BIN)/slipway tables --study $(STUDY) --show

image: .venv/.run  ## build a framework's container image; without a registry: BASE=an image that is here, WHEELS=a directory of wheels
	@$(BIN)/python -m containers.images.build $(or $(FRAMEWORK),pytorch) $(if $(ENGINE),--engine $(ENGINE)) $(if $(BASE),--base $(BASE)) $(if $(WHEELS),--wheels $(WHEELS))

test: .venv/.dev  ## the pure tests: seconds, any order
	$(BIN)/pytest -n 2

slow: .venv/.dev  ## real training, kills, power cuts, a browser: minutes
	$(BIN)/pytest -m "slow and not long" -n 3 --dist loadscope

long: .venv/.dev  ## slow tests that CI leaves out: walltimes, silences, a minute or so each
	$(BIN)/pytest -m long -n 3 --dist loadscope

lint: .venv/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/snakemake --lint
	$(BIN)/python -m workflow.study.schemas --check
	$(BIN)/python -m workflow.run.record_model --check

types: .venv/.dev
	$(BIN)/mypy

check: lint types test slow  ## all that CI checks

schemas: .venv/.dev  ## write config/schemas from the models
	$(BIN)/python -m workflow.study.schemas
	$(BIN)/python -m workflow.run.record_model

requirements: .venv/.dev  ## pin anew what the .in files ask for
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --strip-extras --allow-unsafe -o requirements.txt requirements.in
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --strip-extras --allow-unsafe -o requirements-dev.txt requirements-dev.in

clean:  ## forget the demo's results, datasets and cache; the installation stays
	rm -rf .slipway .snakemake

.venv/.run: requirements.txt requirements-torch.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Slipway needs Python 3.11 or newer, found " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements.txt
	$(BIN)/pip install --quiet -r requirements-torch.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	@touch $@

.venv/.dev: .venv/.run requirements-dev.txt
	$(BIN)/pip install --quiet --require-hashes -r requirements-dev.txt
	@touch $@
