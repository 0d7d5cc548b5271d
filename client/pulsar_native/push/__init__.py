"""Push consumer (after RocketMQ's DefaultMQPushConsumer): messages are pulled and pushed to a handler.

`core` runs one loop on the client's engine, a `PartitionPoller` dequeues from each partition, and a `MessageDispatcher`
of the API calls the application's handlers. The public classes are in `sync.push_consumer` and `asyncio.push_consumer`.
"""
