"""Bounded publish and consume jobs: sources, encoding, formats, decoding, results, topic conditions.

Rules: no orchestrator is known here; identity, state, logs and exceptions come from the caller. Modules use the public
names of `pulsar_native` only, and open no socket of their own.
"""
