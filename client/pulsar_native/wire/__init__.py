"""Wire format of Pulsar's binary protocol: pure encoders and decoders, and one frame decoder that buffers partial
input.

May not do: sockets, asyncio, threads, clocks, randomness. Input is bytes as arguments, errors are
`pulsar_native.exceptions`; input of a peer is never trusted: every size is checked before it is used.
"""
