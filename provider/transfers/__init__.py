"""Transfers between Pulsar and databases."""
