"""Policies: their attributes, what they wrap, and what the getters return."""

from __future__ import annotations

from types import ModuleType
from typing import Any

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
def dead_letter_of_empty_texts(pulsar: ModuleType, env: Env) -> Observed:
    empty = pulsar.ConsumerDeadLetterPolicy(3, "", "").policy()
    builder = pulsar.DeadLetterPolicyBuilder().maxRedeliverCount(3)
    built = builder.deadLetterTopic("").initialSubscriptionName("").build()
    return {
        "empty": [empty.getDeadLetterTopic(), empty.getInitialSubscriptionName()],
        "built": [built.getDeadLetterTopic(), built.getInitialSubscriptionName()],
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


# Cases: sizes of the messages, and both limits.
_LIMITS = {
    "bytes reached": ([5, 5, 5, 5, 5], -1, 10),
    "bytes exceeded": ([4, 4, 4, 4, 4], -1, 10),
    "large messages": ([20, 3, 20, 20, 4, 5], -1, 10),
    "different sizes": ([1, 10, 9, 1, 1, 11, 3, 3, 3, 3], -1, 10),
    "number and bytes": ([4, 4, 4, 1, 1, 1, 9, 9, 1], 3, 10),
    "number": ([5, 5, 5, 5, 5], 2, -1),
    "neither": ([5, 5, 5], -1, -1),
    "empty behind the limit": ([5, 5, 0, 0, 5, 5, 0], -1, 10),
    "empty behind a large one": ([12, 0, 0, 5], -1, 10),
    "empty and number": ([5, 5, 0, 0, 0], 3, 10),
    "empty only": ([0, 0, 0], -1, 10),
}


@program(
    cases={
        f"{case}, {'batched' if batched else 'single'}": (*limits, batched)
        for case, limits in _LIMITS.items()
        for batched in (False, True)
    }
)
def batches_within_limits(
    pulsar: ModuleType, env: Env, sizes: list[int], count: int, most: int, batched: bool
) -> Observed:
    client, topic = env.client(), env.topic()
    policy = pulsar.ConsumerBatchReceivePolicy(count, most, 400)
    consumer = client.subscribe(topic, "sub", batch_receive_policy=policy)
    producer = client.create_producer(topic, batching_enabled=batched)
    _publish(env, producer, sizes)
    return {"batches": _batches(consumer)}


@program(cases={"equal": ([5] * 4,), "exceeded": ([4] * 5,), "large": ([11] * 3,)})
def batches_of_partitions(pulsar: ModuleType, env: Env, sizes: list[int]) -> Observed:
    client, topic = env.client(), env.topic(partitions=2)
    policy = pulsar.ConsumerBatchReceivePolicy(-1, 10, 400)
    consumer = client.subscribe(topic, "sub", batch_receive_policy=policy)
    for partition in range(2):
        _publish(env, client.create_producer(f"{topic}-partition-{partition}"), sizes)
    return {"batches": _batches(consumer)}


def _publish(env: Env, producer: Any, sizes: list[int]) -> None:
    """Publish messages of these sizes, and wait until they are in the consumer's queue."""
    for size in sizes:
        producer.send_async(bytes(size), lambda *_: None)
    producer.flush()
    env.wait_delivered(producer.topic(), len(sizes))


def _batches(consumer: Any) -> list[list[int]]:
    batches = []
    while batch := consumer.batch_receive():
        batches.append([len(message.data()) for message in batch])
        for message in batch:
            consumer.acknowledge(message)
    return batches


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
