"""Operators: publish to a topic, consume a batch of it, load it with Spark."""
