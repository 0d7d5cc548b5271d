"""Bounded publish and consume jobs: sources, encoding, formats, decoding, results, topic conditions.

Nothing here knows an orchestrator: identity, state, logs and exceptions come from the caller. Modules use the public
names of `pulsar_native` only, and may not open a socket of their own.
"""
