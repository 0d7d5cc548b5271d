"""The only asyncio and the only sockets of the client: loop, connections, lookup, producers, consumers, readers.

One logic for both APIs. Control operations are coroutines on the loop; the data path (send, receive, acknowledge) is
plain thread-safe calls, so that nothing crosses threads once per message. Rules live in `protocol`; this package drives
them.
"""
