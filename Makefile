# Everything a person types here. Each target sets up what it needs (dev/setup) and is quick when that is done.
PY := dev/python
.DEFAULT_GOAL := help
.PHONY: help demo ui test test-long coverage check format test-quick test-client test-spark test-provider test-oldest features mutants docs screenshots bench bench-compare bench-latency bench-goals bench-growth bench-spark py-files broker pins setup clean

help:           ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo:           ## publish, sense, load with Spark, consume: the main job on real data
	@$(PY) dev/demo.py

ui:             ## Airflow with the example DAG and the connection, to look at in a browser
	@$(PY) dev/ui.py

test:           ## checks and all tests, against a real broker, Spark and Airflow
	@$(PY) dev/test.py

test-long:      ## the same with the slow tests, for every night
	@$(PY) dev/test.py --long

coverage:       ## lines and branches of each module that the tests run (.results/coverage.txt); slower than make test
	@$(PY) dev/test.py --coverage

check:          ## format, lint, types, import directions, documentation
	@$(PY) dev/checks.py

format:         ## put the code into its format and mend what the linter can
	@dev/setup dev && .envs/dev/bin/ruff check --quiet --fix . ; .envs/dev/bin/ruff format .

test-quick:     ## tests of the client that need no broker, about a minute, without Java
	@dev/setup dev && PULSAR_TEST_PROFILE=quick .envs/dev/bin/pytest tests/client -q -n auto \
		-m "not broker and not slow and not spark and not airflow"

test-client:    ## tests of the client, with the shared support, integration and compat
	@$(PY) dev/test.py support client integration compat

test-spark:     ## tests of the Spark source, with table formats too
	@$(PY) dev/test.py spark tables

test-provider:  ## tests of the Airflow provider
	@$(PY) dev/test.py provider

test-oldest:    ## tests of the Airflow provider and of the Spark source on the oldest Airflow and Spark they support
	@$(PY) dev/test.py provider-oldest spark-oldest

features:       ## list every feature and the tests that prove it (runs suites that have no results)
	@$(PY) dev/test.py --missing && $(PY) dev/features.py

mutants:        ## change the source in a hundred places and count what the tests notice (nightly, half an hour)
	@$(PY) dev/mutants.py

docs:           ## build the documentation site into docs/_build/html, warnings as errors
	@$(PY) dev/docs.py

screenshots:    ## take the pictures of the documentation site again: Airflow's own pages, in Chromium
	@$(PY) dev/screenshots.py

bench:          ## publish and receive against the official client, as ratios, beside the Java client and a drain
	@dev/setup dev broker && .envs/dev/bin/python benchmarks/run.py --impl both --peer java --peer drain \
		--json .results/bench.json

bench-compare:  ## two results of make bench compared: make bench-compare OLD=before.json NEW=.results/bench.json
	@$(PY) benchmarks/compare.py $(OLD) $(NEW)

bench-latency:  ## latency, memory, creation and import time against the official client, as ratios
	@dev/setup dev broker && .envs/dev/bin/python benchmarks/latency.py --json .results/latency.json

bench-goals:    ## what make bench and make bench-latency found beside what is wanted, as a table
	@$(PY) benchmarks/goals.py

bench-growth:   ## cost per message as messages, partitions, producers, consumers grow, with plots in docs/images
	@dev/setup spark broker && .envs/spark/bin/python benchmarks/growth.py --plots docs/images --json .results/growth.json

bench-spark:    ## Spark reads against the JVM connector and the official client, as ratios: make bench-spark ARGS="--scale 0.1"
	@dev/setup dev spark spark-jvm spark-official broker && .envs/spark/bin/python benchmarks/spark_run.py \
		--json .results/bench-spark.json $(ARGS)

py-files:       ## build the zip for Spark's --py-files into dist/
	@$(PY) dev/py_files.py

broker:         ## run a broker in .demo/broker until Ctrl-C
	@dev/setup broker && $(PY) dev/broker.py start

setup:          ## make all environments, the broker's jars and the browser now
	@dev/setup all

pins:           ## compile requirements/*.in to exact versions
	@dev/setup pins

clean:          ## remove what runs left behind (environments and jars stay)
	@$(PY) dev/broker.py stop && rm -rf .demo .results docs/_build build dist */dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis spark-warehouse metastore_db && find . -path ./.envs -prune -o -name __pycache__ \
		-type d -exec rm -rf {} +
