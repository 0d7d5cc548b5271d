"""Give every test the shared fixtures (support/brokers.py, relay.py, java_peer.py) and record the results."""

pytest_plugins = ["support.results", "support.brokers", "support.relay", "support.java_peer"]

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the environments of Spark, Airflow and the browser have no property tests
    pass
else:
    # Two busy cores say nothing about the code: no test fails because an example took long.
    settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("house")
