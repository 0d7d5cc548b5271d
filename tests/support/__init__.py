"""What the tests of all suites share: brokers, unique topics, a fault relay, results; only pytest and the stdlib."""
