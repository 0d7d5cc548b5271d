"""Triggers: the waiting of sensors, and the events of asset watchers, on the event loop of the triggerer."""
