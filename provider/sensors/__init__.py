"""Sensors: wait for a topic and for what is in it."""
