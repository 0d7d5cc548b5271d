"""Shared support of all test suites: brokers, unique topics, a fault relay, results; only pytest and the stdlib."""
