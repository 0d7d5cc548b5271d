"""State machines of the protocol: connection, producer, consumer, acknowledgements, redelivery, routing, back-off.

May not do: I/O, threads, clocks, sleeping. Time (seconds of a monotonic clock, milliseconds of the wall clock) and
randomness are arguments, so that every timing rule has a test in virtual time.
"""
