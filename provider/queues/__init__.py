"""Message queue providers of common-messaging."""
