"""Sensors: wait for a topic and its messages."""
