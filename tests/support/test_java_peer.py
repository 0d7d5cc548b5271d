"""The Java peer says what went wrong, never hangs, and comes back after a test that broke it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.brokers import NewTopic
from support.java_peer import JavaClient, JavaError, JavaPeer, PeerGone


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[JavaPeer]:
    """Give a JVM of the test's own, to break."""
    made = JavaPeer(tmp_path, limit_seconds=240)
    made.start()
    yield made
    made.stop()


def test_what_java_raises_is_told_with_its_type(java: JavaClient, topic: NewTopic) -> None:
    with pytest.raises(JavaError, match="InvalidTopicName") as raised:
        java.producer("no-domain://a/b/c")
    assert raised.value.type == "InvalidTopicNameException"
    with pytest.raises(JavaError, match="unknown command"):
        java.peer.ask("dance")
    with pytest.raises(JavaError, match="unknown part"):
        java.producer(topic()).send(b"x", colour="red")
    assert java.peer.ask("ping") is None


def test_what_a_test_leaves_open_is_closed(java: JavaClient, topic: NewTopic) -> None:
    name = topic()
    producer = java.producer(name)
    java.consumer(name)
    java.release()
    with pytest.raises(JavaError, match="nothing is open"):
        producer.send(b"x")
    java.producer(name, accessMode="Exclusive")


def test_a_jvm_that_ends_or_hangs_is_replaced(peer: JavaPeer) -> None:
    assert peer.partition("key1", "JavaStringHash", 7) == 3
    os.kill(peer.process_id, signal.SIGKILL)
    with pytest.raises(PeerGone, match="ping"):
        peer.ask("ping")
    peer.start()
    hung = JavaPeer(peer.folder, limit_seconds=0.5)
    hung.start()
    os.kill(hung.process_id, signal.SIGSTOP)
    with pytest.raises(PeerGone, match="did not answer 'ping'"):
        hung.ask("ping")
    hung.stop()
    assert peer.ask("ping") is None
