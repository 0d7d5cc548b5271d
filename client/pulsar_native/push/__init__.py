"""Listener containers: the push model over consumers that are pulled.

`container` lives on the client and has one loop of its own, an `intake` takes from each partition, and `workers` run
the application's handlers.
"""
