"""Topics pattern: parsing, matching, and changes of the topic list."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName
from pulsar_native.protocol.topic_pattern import TopicPattern, WantedTopics
from pulsar_native.topic import TopicName

N = TopicName.parse
NS = "persistent://public/default/"


def full(*locals_: str) -> list[str]:
    return [NS + local for local in locals_]


@pytest.mark.proves("C162")
@pytest.mark.parametrize(
    ("text", "namespace", "for_broker"),
    [
        ("a.*", "public/default", "public/default/a.*"),
        ("t/n/a.*", "t/n", "t/n/a.*"),
        ("persistent://t/n/a.*", "t/n", "t/n/a.*"),
        ("^persistent://t/n/a.*$", "t/n", "t/n/a.*$"),
        ("non-persistent://t/n.x/a[/]b", "t/n.x", "t/n.x/a[/]b"),
        ("t/n/a|t/n/b", "t/n", "t/n/a|t/n/b"),
    ],
)
def test_parse_namespace_from_text(text: str, namespace: str, for_broker: str) -> None:
    pattern = TopicPattern.parse(re.compile(text))
    assert (pattern.text, pattern.namespace, pattern.for_broker) == (text, namespace, for_broker)
    assert TopicPattern.parse(text).for_broker == for_broker


def test_parse_flags_applied_locally() -> None:
    pattern = TopicPattern.parse(re.compile("persistent://t/n/ab", re.IGNORECASE))
    assert pattern.for_broker == "t/n/.*"
    assert pattern.matches(N("t/n/AB")) and not pattern.matches(N("t/n/AB2"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "persistent://a",
        "persistent://t/n/",
        "t/n/",
        "x://t/n/a",
        "t/(n|m)/a",
        "(?i)persistent://t/n/a",
        "(",
        "\ud800",
    ],
    ids=ascii,
)
def test_parse_invalid_raises(text: str) -> None:
    with pytest.raises((InvalidConfiguration, InvalidTopicName)):
        TopicPattern.parse(text)


@pytest.mark.proves("C162")
def test_collapsed_whole_names_and_partitions() -> None:
    pattern = TopicPattern.parse(NS + "a.*")
    names = [
        *full("a1", "xa1", "a-partition-0", "a-partition-12", "a-partition-x", "b"),
        "non-persistent://public/default/a1",
        "persistent://public/other/a1",
        "persistent://prop/cluster/ns/a1",
        NS + "__change_events",
        NS + "__transaction_buffer_snapshot-partition-1",
        NS + "a-sub__transaction_pending_ack",
    ]
    assert pattern.collapsed(names) == {
        N(NS + "a1"): set(),
        N(NS + "a"): {0, 12},
        N(NS + "a-partition-x"): set(),
        N("non-persistent://public/default/a1"): set(),
    }
    # One partition may be meant by its own name; its topic is what is subscribed to.
    alone = TopicPattern.parse(NS + "a-partition-1")
    assert alone.collapsed(full("a-partition-0", "a-partition-1")) == {N(NS + "a"): {1}}


@pytest.mark.proves("C163")
def test_change_difference() -> None:
    wanted = WantedTopics(TopicPattern.parse("a.*"))
    wanted.replace(full("a1", "a2-partition-0", "a2-partition-1", "b"), "h1")
    assert wanted.hash == "h1"
    assert wanted.change({}) == ([N("a1"), N("a2")], [], [])
    assert wanted.change({N("a1"): 0, N("a2"): 2}) == ([], [], [])
    wanted.update(full("a2-partition-2", "a3", "c"), full("a1"), "h2")
    assert wanted.hash == "h2"
    assert wanted.change({N("a1"): 0, N("a2"): 2}) == ([N("a3")], [N("a1")], [N("a2")])
    # Some partitions are gone, but not the topic.
    wanted.update([], full("a2-partition-0", "a2-partition-2"), "h3")
    assert wanted.change({N("a2"): 3, N("a3"): 0}) == ([], [], [])
    wanted.update([], full("a2-partition-1"), "h4")
    assert wanted.change({N("a2"): 3, N("a3"): 0}) == ([], [N("a2")], [])
    # A topic without partitions does not grow into one with them: there are topics with names of partitions.
    wanted.replace(full("a3", "a3-partition-0"), "h5")
    assert wanted.change({N("a3"): 0}) == ([], [], [])


@pytest.mark.proves("C163")
@pytest.mark.parametrize(
    ("count", "listed"),
    [(0, ["a-partition-0", "a-partition-1"]), (2, ["a"])],
    ids=["with-partitions", "without-partitions"],
)
def test_change_recreated_in_other_form(count: int, listed: list[str]) -> None:
    wanted = WantedTopics(TopicPattern.parse("a.*"))
    wanted.replace(full(*listed), "h")
    assert wanted.change({N("a"): count}) == ([N("a")], [N("a")], [])
    assert wanted.change({N("a"): 2 - count}) == ([], [], [])


@pytest.mark.proves("C160")
def test_leave_until_recreated() -> None:
    wanted = WantedTopics(TopicPattern.parse("a.*"))
    wanted.replace(full("a1", "a2"), "h")
    wanted.leave(N("a1"))
    assert wanted.change({N("a2"): 0}).added == []
    wanted.update(full("a3"), [], "h")
    assert wanted.change({N("a2"): 0}).added == [N("a3")]
    wanted.stay(N("a1"))
    assert wanted.change({N("a2"): 0}).added == [N("a1"), N("a3")]
    wanted.leave(N("a1"))
    wanted.update([], full("a1"), "h")
    wanted.update(full("a1"), [], "h")
    assert wanted.change({N("a2"): 0}).added == [N("a1"), N("a3")]


NAMES = st.sets(st.sampled_from(full("a", "a-partition-0", "a-partition-1", "a1", "a1-partition-0", "b", "xa")))


@given(st.lists(st.tuples(NAMES, NAMES, st.booleans()), max_size=8))
def test_change_after_any_history(steps: list[tuple[set[str], set[str], bool]]) -> None:
    pattern = TopicPattern.parse("a.*")
    wanted = WantedTopics(pattern)
    names: set[str] = set()
    subscribed: dict[TopicName, int] = {}
    for first, second, whole in steps:
        if whole:
            names = set(first)
            wanted.replace(first, "h")
        else:
            names = (names - second) | first
            wanted.update(first, second, "h")
        change = wanted.change(subscribed)
        for topic in change.removed:
            del subscribed[topic]
        listed = pattern.collapsed(names)
        subscribed |= {
            topic: 0 if topic.full in names else max(listed[topic], default=-1) + 1 for topic in change.added
        }
        assert subscribed.keys() == listed.keys()
        assert wanted.change(subscribed)[:2] == ([], [])
