"""Policies: their attributes, what they wrap, and what the getters return."""

from __future__ import annotations

from types import ModuleType

from compat.program import Env, Observed, program


@program()
def dead_letter(pulsar: ModuleType, env: Env) -> Observed:
    full, few = pulsar.ConsumerDeadLetterPolicy(3, "dlq", "initial"), pulsar.ConsumerDeadLetterPolicy(2)
    wrapped = full.policy()
    return {
        "full": [full.max_redeliver_count, full.dead_letter_topic, full.initial_subscription_name],
        "few": [few.max_redeliver_count, few.dead_letter_topic, few.initial_subscription_name],
        "policy": [
            wrapped.getMaxRedeliverCount(), wrapped.getDeadLetterTopic(), wrapped.getInitialSubscriptionName(),
        ],
        "is class": isinstance(pulsar.ConsumerDeadLetterPolicy, type),
        "instance": isinstance(full, pulsar.ConsumerDeadLetterPolicy),
        "keywords": pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1, dead_letter_topic="t").dead_letter_topic,
    }  # fmt: skip


@program()
def dead_letter_builder(pulsar: ModuleType, env: Env) -> Observed:
    builder = pulsar.DeadLetterPolicyBuilder()
    same = builder.maxRedeliverCount(4).deadLetterTopic("t").initialSubscriptionName("s")
    made = builder.build()
    return {
        "chained": same is builder,
        "values": [made.getMaxRedeliverCount(), made.getDeadLetterTopic(), made.getInitialSubscriptionName()],
        "empty topic": pulsar.DeadLetterPolicyBuilder().maxRedeliverCount(1).build().getDeadLetterTopic(),
        "empty": env.error(lambda: pulsar.DeadLetterPolicyBuilder().build()),
        "zero": env.error(lambda: pulsar.DeadLetterPolicyBuilder().maxRedeliverCount(0).build()),
    }


@program()
def batch_receive(pulsar: ModuleType, env: Env) -> Observed:
    made = pulsar.ConsumerBatchReceivePolicy(10, 2048, 50)
    wrapped = made.policy()
    raw = pulsar.BatchReceivePolicy(1, 2, 3)
    return {
        "values": [wrapped.getMaxNumMessages(), wrapped.getMaxNumBytes(), wrapped.getTimeoutMs()],
        "raw": [raw.getMaxNumMessages(), raw.getMaxNumBytes(), raw.getTimeoutMs()],
        "is class": isinstance(pulsar.ConsumerBatchReceivePolicy, type),
        "keywords": pulsar.ConsumerBatchReceivePolicy(max_num_message=1, max_num_bytes=2, timeout_ms=3)
        .policy()
        .getTimeoutMs(),
    }


@program()
def batch_receive_raw_is_refused(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    return {
        "raw": env.error(
            lambda: client.subscribe(env.topic(), "sub", batch_receive_policy=pulsar.BatchReceivePolicy(1, 2, 3))
        ),
        "raw key": env.error(
            lambda: client.subscribe(env.topic("k"), "sub", key_shared_policy=pulsar.KeySharedPolicy())
        ),
    }


@program()
def key_shared(pulsar: ModuleType, env: Env) -> Observed:
    auto = pulsar.ConsumerKeySharedPolicy()
    sticky = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, True, [(0, 99), (200, 65535)])
    wrapped = sticky.policy()
    return {
        "auto": [str(auto.key_shared_mode), auto.allow_out_of_order_delivery, auto.sticky_ranges],
        "sticky": [str(sticky.key_shared_mode), sticky.allow_out_of_order_delivery],
        "ranges": [list(each) for each in sticky.sticky_ranges],
        "range type": [type(sticky.sticky_ranges).__name__, type(sticky.sticky_ranges[0]).__name__],
        "policy": [str(wrapped.get_key_shared_mode()), wrapped.is_allow_out_of_order_delivery()],
        "policy ranges": [list(each) for each in wrapped.get_sticky_ranges()],
        "is class": isinstance(pulsar.ConsumerKeySharedPolicy, type),
        "type": type(wrapped) is pulsar.KeySharedPolicy,
    }


@program()
def key_shared_setters(pulsar: ModuleType, env: Env) -> Observed:
    policy = pulsar.KeySharedPolicy()
    return {
        "mode": env.error(lambda: policy.set_key_shared_mode(pulsar.KeySharedMode.Sticky)),
        "order": env.error(lambda: policy.set_allow_out_of_order_delivery(True)),
        "ranges": env.error(lambda: policy.set_sticky_ranges([(1, 2)])),
    }


@program()
def dead_letters_arrive(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, letters = env.client(), env.topic(), env.topic("dlq")
    consumer = client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, letters, "first"),
    )  # fmt: skip
    dead = client.subscribe(letters, "first")
    client.create_producer(topic).send(b"bad", properties={"a": "b"}, partition_key="k")
    counts = []
    for _ in range(3):
        message = consumer.receive(10_000)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    letter = dead.receive(15_000)
    return {
        "counts": counts,
        "data": letter.data().decode(),
        "key": letter.partition_key(),
        "properties": sorted(letter.properties()),
        "a": letter.properties()["a"],
        "real topic": env.short(letter.properties()["REAL_TOPIC"]),
    }


@program()
def batches_arrive(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(3, -1, 400))
    producer = client.create_producer(topic)
    for number in range(4):
        producer.send(b"%d" % number)
    first, rest, none = consumer.batch_receive(), consumer.batch_receive(), consumer.batch_receive()
    return {
        "type": [type(each).__name__ for each in (first, none)],
        "contents": [[each.data().decode() for each in batch] for batch in (first, rest, none)],
        "message": isinstance(first[0], pulsar.Message),
    }


@program()
def message_batch(pulsar: ModuleType, env: Env) -> Observed:
    batch = pulsar.MessageBatch()
    # Two messages as a broker stores them in a batch: length of the metadata, metadata (payload size), payload.
    data = b"".join(b"\x00\x00\x00\x02\x18" + bytes([len(each)]) + each for each in (b"one", b"three"))
    chained = batch.with_message_id(pulsar.MessageId(0, 5, 6, -1))
    messages = batch.parse_from(data, 2)
    return {
        "chained": chained is batch,
        "type": type(messages).__name__,
        "data": [each.data().decode() for each in messages],
        "ids": [str(each.message_id()) for each in messages],
        "value": messages[0].value().decode(),
        "wrong id": env.error(lambda: pulsar.MessageBatch().with_message_id("x")),
        "none": pulsar.MessageBatch().with_message_id(pulsar.MessageId()).parse_from(b"", 0),
    }
