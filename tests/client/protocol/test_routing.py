"""Message routing."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native._validation import is_argument_error
from pulsar_native.enums import HashingScheme
from pulsar_native.exceptions import InvalidConfiguration, PulsarException, UnknownError
from pulsar_native.message import Message, OutgoingMessage
from pulsar_native.protocol.routing import CustomRouting, RoundRobinRouting, Routing, SingleRouting

JAVA, MURMUR = HashingScheme.JavaStringHash, HashingScheme.Murmur3_32Hash

# Partition of seven, as two Java producers sent the keys to a real broker.
SENT_BY_JAVA = {
    "key1": (3, 6),
    "test": (1, 4),
    "my-key": (3, 6),
    "中文": (0, 0),
    "a": (6, 4),
    "user-42": (4, 0),
    "0": (6, 6),
    "": (0, 0),
}

schemes = st.sampled_from(HashingScheme)


def message(key: str | None = None, sequence_id: int | None = None) -> OutgoingMessage:
    return OutgoingMessage(b"x", partition_key=key, sequence_id=sequence_id)


def modes(scheme: HashingScheme, start: int = 3) -> list[Routing]:
    return [
        RoundRobinRouting(scheme, start),
        RoundRobinRouting(scheme, start, switch_seconds=0.1),
        SingleRouting(scheme, start),
    ]


@pytest.mark.proves("C48", "C86")
@pytest.mark.parametrize("key", SENT_BY_JAVA)
def test_key_routes_as_java_in_every_mode(key: str) -> None:
    for scheme, partition in zip((JAVA, MURMUR), SENT_BY_JAVA[key], strict=True):
        for routing in modes(scheme):
            assert [routing.choose(message(key), 7, now) for now in (0.0, 0.5, 99.9)] == [partition] * 3


def test_key_of_bytes_hashed_as_base64() -> None:
    # KeyBytes("key1") goes to partition 2.
    assert SingleRouting(JAVA, 0).choose(message("a2V5MQ=="), 7, 0.0) == 2


def test_ordering_key_alone_does_not_route() -> None:
    routing = RoundRobinRouting(JAVA, 0)
    chosen = [routing.choose(OutgoingMessage(b"x", ordering_key="o"), 3, 0.0) for _ in range(6)]
    assert sorted(chosen) == [0, 0, 1, 1, 2, 2]


@given(st.integers(0, 1 << 30), st.integers(1, 20), st.integers(1, 5))
def test_round_robin_visits_every_partition(start: int, partitions: int, rounds: int) -> None:
    routing = RoundRobinRouting(JAVA, start)
    chosen = [routing.choose(message(), partitions, 0.0) for _ in range(partitions * rounds)]
    assert Counter(chosen) == dict.fromkeys(range(partitions), rounds)
    assert all((second - first) % partitions == 1 % partitions for first, second in pairwise(chosen))


def test_round_robin_ignores_keyed_messages() -> None:
    routing = RoundRobinRouting(JAVA, 0)
    chosen = []
    for _ in range(4):
        chosen.append(routing.choose(message(), 4, 0.0))
        routing.choose(message("key"), 4, 0.0)
    assert sorted(chosen) == [0, 1, 2, 3]


@pytest.mark.proves("C50")
@given(st.integers(0, 1 << 30), st.floats(0, 10**6), st.integers(2, 20))
def test_round_robin_batching_by_time_slice(start: int, now: float, partitions: int) -> None:
    routing = RoundRobinRouting(JAVA, start, switch_seconds=0.1)
    slice_start = int(now / 0.1) * 0.1
    within = {routing.choose(message(), partitions, slice_start + part / 100) for part in range(1, 9)}
    assert len(within) == 1
    following = routing.choose(message(), partitions, slice_start + 0.15)
    assert following == (within.pop() + 1) % partitions


@given(st.integers(0, 1 << 30), st.integers(1, 20))
def test_single_partition_stays(chosen: int, partitions: int) -> None:
    routing = SingleRouting(JAVA, chosen)
    assert {routing.choose(message(), partitions, now) for now in (0.0, 1.0, 2.0)} == {chosen % partitions}


@given(schemes, st.integers(0, (1 << 63) - 1), st.integers(1, 20))
def test_repeated_sequence_id_same_partition(scheme: HashingScheme, number: int, partitions: int) -> None:
    for routing in modes(scheme):
        chosen = {routing.choose(message(sequence_id=number), partitions, now) for now in (0.0, 7.7)}
        assert chosen == {number % partitions}
        assert routing.choose(message("k", number), partitions, 0.0) == routing.choose(message("k"), partitions, 0.0)


@given(schemes, st.text(), st.integers(1, 1000))
def test_any_key_in_range(scheme: HashingScheme, key: str, partitions: int) -> None:
    for routing in modes(scheme):
        assert 0 <= routing.choose(message(key), partitions, 0.0) < partitions


# --- a router of one's own --------------------------------------------------------------------------------------


@pytest.mark.proves("C49")
def test_custom_router_arguments() -> None:
    seen: list[tuple[object, ...]] = []

    def router(message: Message, partitions: int) -> int:
        seen.append((message.value(), message.properties(), message.partition_key(), partitions))
        return len(message.data()) % partitions

    sent = OutgoingMessage(b"12345", properties={"a": "b"}, partition_key="key")
    assert CustomRouting(router).choose(sent, 4, 0.0) == 1
    assert seen == [(b"12345", {"a": "b"}, "key", 4)]


@pytest.mark.proves("C49")
@pytest.mark.parametrize("answer", [99, 4, -1, None, "x", float("inf")])
def test_custom_router_out_of_range_raises(answer: object) -> None:
    with pytest.raises(InvalidConfiguration, match="0 <= n < 4") as caught:
        CustomRouting(lambda _message, _partitions: answer).choose(message(), 4, 0.0)  # type: ignore[arg-type, return-value]
    assert repr(answer) in str(caught.value)


@pytest.mark.parametrize(("answer", "kind"), [(4, UnknownError), (-1, UnknownError), (None, TypeError)])
def test_custom_router_raises_what_the_official_client_does(answer: object, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        CustomRouting(lambda _message, _partitions: answer).choose(message(), 4, 0.0)  # type: ignore[arg-type, return-value]
    assert isinstance(caught.value, PulsarException) and not caught.value.retryable
    assert is_argument_error(caught.value) is (answer is None)


def test_custom_router_exception_propagates() -> None:
    def router(_message: OutgoingMessage, _partitions: int) -> int:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        CustomRouting(router).choose(message(), 4, 0.0)
