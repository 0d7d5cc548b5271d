"""The client's engine, the only package with asyncio and sockets: loop, connections, lookup, producers, consumers.

One logic for both APIs. Control operations are coroutines on the loop; the data path (send, receive, acknowledge) is
plain thread-safe calls, so that nothing crosses threads once per message. The rules are in `protocol`; this package
drives its state machines.
"""
