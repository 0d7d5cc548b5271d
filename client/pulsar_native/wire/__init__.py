"""Bytes of Pulsar's binary protocol to values and back: pure functions, and one decoder that keeps a rest of input.

May not do: sockets, asyncio, threads, clocks, randomness. Bytes come in as arguments, errors go out as
`pulsar_native.exceptions`; what a peer sends is never trusted: every size is checked before it is used.
"""
