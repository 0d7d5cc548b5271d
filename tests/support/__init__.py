"""What the tests of all rooms share: brokers, unique topics, a fault relay, results; only pytest and the stdlib."""
