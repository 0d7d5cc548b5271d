"""Hooks: a connection of type pulsar, opened."""
