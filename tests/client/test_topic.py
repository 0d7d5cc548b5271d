"""Topic names: what is accepted and how it is understood, as the Java client 4.2.4 does."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.exceptions import InvalidTopicName
from pulsar_native.topic import TopicName

# Given, then what org.apache.pulsar.common.naming.TopicName 4.2.4 answered to it: full name, partition, the name of the
# partitioned topic. (Recorded by asking it; the lookup path differs in the space only: we write %20, Java +.)
AS_JAVA = [
    ("x", "persistent://public/default/x", -1, "persistent://public/default/x"),
    ("t/ns/x", "persistent://t/ns/x", -1, "persistent://t/ns/x"),
    ("persistent://t/ns/x", "persistent://t/ns/x", -1, "persistent://t/ns/x"),
    ("non-persistent://t/ns/x", "non-persistent://t/ns/x", -1, "non-persistent://t/ns/x"),
    ("x-partition-0", "persistent://public/default/x-partition-0", 0, "persistent://public/default/x"),
    ("x-partition-12", "persistent://public/default/x-partition-12", 12, "persistent://public/default/x"),
    ("x-partition-01", "persistent://public/default/x-partition-01", -1, "persistent://public/default/x-partition-01"),
    ("x-partition--1", "persistent://public/default/x-partition--1", -1, "persistent://public/default/x-partition--1"),
    ("x-partition-+1", "persistent://public/default/x-partition-+1", -1, "persistent://public/default/x-partition-+1"),
    ("x-partition-", "persistent://public/default/x-partition-", -1, "persistent://public/default/x-partition-"),
    ("x-PARTITION-1", "persistent://public/default/x-PARTITION-1", -1, "persistent://public/default/x-PARTITION-1"),
    (
        "x-partition-2147483647",
        "persistent://public/default/x-partition-2147483647",
        2147483647,
        "persistent://public/default/x",
    ),
    (
        "x-partition-2147483648",
        "persistent://public/default/x-partition-2147483648",
        -1,
        "persistent://public/default/x-partition-2147483648",
    ),
    (
        "x-partition-1-partition-2",
        "persistent://public/default/x-partition-1-partition-2",
        2,
        "persistent://public/default/x-partition-1",
    ),
    (
        "x-partition-1-DLQ",
        "persistent://public/default/x-partition-1-DLQ",
        -1,
        "persistent://public/default/x-partition-1-DLQ",
    ),
    ("persistent://t-1_.=:/n-s_.=:/x", "persistent://t-1_.=:/n-s_.=:/x", -1, "persistent://t-1_.=:/n-s_.=:/x"),
    ("with space", "persistent://public/default/with space", -1, "persistent://public/default/with space"),
    ("tópic", "persistent://public/default/tópic", -1, "persistent://public/default/tópic"),
    ("x?y", "persistent://public/default/x?y", -1, "persistent://public/default/x?y"),
    ("x%2Fy", "persistent://public/default/x%2Fy", -1, "persistent://public/default/x%2Fy"),
    ("x:y", "persistent://public/default/x:y", -1, "persistent://public/default/x:y"),
    ("persistent://t/ns/a&b", "persistent://t/ns/a&b", -1, "persistent://t/ns/a&b"),
]  # fmt: skip

# What that class refused too.
REFUSED_AS_JAVA = [
    "", "  ", "/", "a/b", "a/b/c/d", "persistent://a/b", "persistent://a/b/c/d", "persistent://a/b/c/d/e",
    "http://a/b/c", "persistent:/a/b/c", "persistent://a//c", "persistent:///b/c", "persistent://a/b/",
    "persistent://a b/ns/x", "persistent://a/n$s/x", "persistent://tés/ns/x", "a//x", "t/ns/", "t/ns/ ",
    "://t/ns/x", "a/b/persistent://x",
]  # fmt: skip


@pytest.mark.proves("C33")
@pytest.mark.parametrize(("given", "full", "partition", "base"), AS_JAVA)
def test_names_are_read_as_java_reads_them(given: str, full: str, partition: int, base: str) -> None:
    name = TopicName.parse(given)
    assert (name.full, name.partition, name.base.full) == (full, partition, base)
    assert str(name) == full
    assert name.is_partition == (partition >= 0)
    assert name.is_persistent == (not full.startswith("non-"))
    assert TopicName.parse(full) == name


@pytest.mark.proves("C33")
@pytest.mark.parametrize("given", REFUSED_AS_JAVA)
def test_names_java_refuses_are_refused(given: str) -> None:
    with pytest.raises(InvalidTopicName, match="nvalid"):
        TopicName.parse(given)


@pytest.mark.parametrize(
    "given", ["x\n", "persistent://public/default/x\x01y", "Persistent://t/ns/x", "x\0", "x\ud800"], ids=ascii
)
def test_names_that_java_lets_pass_but_nobody_means(given: str) -> None:
    with pytest.raises(InvalidTopicName):
        TopicName.parse(given)


@pytest.mark.parametrize("given", [None, 5, b"x", ["x"]])
def test_only_text_is_a_name(given: object) -> None:
    with pytest.raises(InvalidTopicName, match="must be a str"):
        TopicName.parse(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("digits", ["9" * 5000, "0" * 5000, "٣", "1_0", " 1"])
def test_odd_numbers_are_part_of_the_name(digits: str) -> None:
    name = TopicName.parse(f"x-partition-{digits}")
    assert name.partition == -1 and name.base is name


def test_a_refusal_tells_the_accepted_forms() -> None:
    with pytest.raises(InvalidTopicName, match="'tenant/namespace/topic' or 'persistent://tenant/namespace/topic'"):
        TopicName.parse("a/b")
    with pytest.raises(InvalidTopicName, match="'persistent' or 'non-persistent'"):
        TopicName.parse("http://a/b/c")


def test_parts() -> None:
    name = TopicName.parse("non-persistent://t/ns/a b&c-partition-3")
    assert (name.domain, name.tenant, name.namespace_portion) == ("non-persistent", "t", "ns")
    assert (name.namespace, name.local_name) == ("t/ns", "a b&c-partition-3")
    assert name.lookup_path == "non-persistent/t/ns/a%20b%26c-partition-3"
    assert name.schema_path == "schemas/t/ns/a%2520b%2526c-partition-3/schema"
    assert pickle.loads(pickle.dumps(name)) == name


@given(st.text("ab-_.:é ", min_size=1, max_size=9).filter(str.strip), st.integers(0, 2**31 - 1), st.integers(0, 99))
def test_partitions_of_a_topic(local: str, index: int, other: int) -> None:
    topic = TopicName.parse(local)
    partition = topic.with_partition(index)
    assert partition == TopicName.parse(f"{local}-partition-{index}")
    assert (partition.partition, partition.base) == (index, topic)
    assert partition.with_partition(other).base == topic
    assert partition.with_partition(other).partition == other
