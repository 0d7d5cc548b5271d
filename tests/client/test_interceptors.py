"""Interceptors that override nothing pass every message on unchanged."""

from __future__ import annotations

import pytest

from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message import OutgoingMessage
from pulsar_native.message_id import MessageId
from support.jobs import received


def test_producer_interceptor_passes_the_message() -> None:
    made, message = ProducerInterceptor(), OutgoingMessage(b"x")
    assert made.eligible(message) is True
    assert made.before_send(None, message) is message


def test_consumer_interceptor_passes_the_message() -> None:
    made, message = ConsumerInterceptor(), received()
    assert made.on_arrival(None, message) is message
    assert made.before_consume(None, message) is message


def test_reader_interceptor_passes_the_message() -> None:
    message = received()
    assert ReaderInterceptor().before_read(None, message) is message


@pytest.mark.parametrize("error", [None, ValueError("x")])
def test_interceptor_observers_do_nothing(error: Exception | None) -> None:
    message_id = MessageId()
    for observe in (ConsumerInterceptor().on_acknowledge, ConsumerInterceptor().on_acknowledge_cumulative):
        observe(None, message_id, error)
    ProducerInterceptor().on_send_acknowledgement(None, OutgoingMessage(b""), None if error else message_id, error)
    for made in (ProducerInterceptor(), ConsumerInterceptor(), ReaderInterceptor()):
        made.on_partitions_change("t", 3)
        made.close()
