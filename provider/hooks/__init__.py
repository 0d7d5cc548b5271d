"""Hooks: clients of a connection of type pulsar."""
