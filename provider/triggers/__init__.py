"""Triggers: the sensors' waiting on the triggerer's event loop."""
