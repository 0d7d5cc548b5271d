# Everything a person types here. Each target sets up what it needs (dev/setup) and is quick when that is done.
PY := dev/python
.DEFAULT_GOAL := help
.PHONY: help demo ui test check format test-client test-spark test-provider features mutants bench broker pins setup clean

help:           ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo:           ## publish, sense, load with Spark, consume: the main job on real data
	@$(PY) dev/demo.py

ui:             ## Airflow with the example DAG and the connection, to look at in a browser
	@$(PY) dev/ui.py

test:           ## checks and all tests, against a real broker, Spark and Airflow
	@$(PY) dev/test.py

check:          ## format, lint, types, import directions
	@$(PY) dev/checks.py

format:         ## put the code into its format and mend what the linter can
	@dev/setup dev && .envs/dev/bin/ruff check --quiet --fix . ; .envs/dev/bin/ruff format .

test-client:    ## tests of the client, with the shared support and integration
	@$(PY) dev/test.py support client integration

test-spark:     ## tests of the Spark source
	@$(PY) dev/test.py spark

test-provider:  ## tests of the Airflow provider
	@$(PY) dev/test.py provider

features:       ## list every feature and the tests that prove it (runs suites that have no results)
	@$(PY) dev/test.py --missing && $(PY) dev/features.py

mutants:        ## change the source in a hundred places and count what the tests notice (nightly, half an hour)
	@$(PY) dev/mutants.py

bench:          ## publish and receive against the official client, as ratios
	@dev/setup dev broker && .envs/dev/bin/python benchmarks/run.py

broker:         ## run a broker in .demo/broker until Ctrl-C
	@dev/setup broker && $(PY) dev/broker.py start

setup:          ## make all environments, the broker's jars and the browser now
	@dev/setup all

pins:           ## compile requirements/*.in to exact versions
	@dev/setup pins

clean:          ## remove what runs left behind (environments and jars stay)
	@$(PY) dev/broker.py stop && rm -rf .demo .results build dist */dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis spark-warehouse metastore_db && find . -path ./.envs -prune -o -name __pycache__ \
		-type d -exec rm -rf {} +
