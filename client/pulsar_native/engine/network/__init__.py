"""Sockets, connections, and finding out where a topic is served.

From bytes on a socket up to a handler that attaches to the topic's broker and comes back when the connection is lost.
Knows nothing of messages.
"""
