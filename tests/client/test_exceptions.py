"""The tree of errors: names, numbers, what is worth trying again, and what an error tells of its place."""

from __future__ import annotations

import pickle

import pulsar as official
import pytest

import pulsar_native
from pulsar_native import exceptions
from pulsar_native.enums import Result
from pulsar_native.exceptions import PulsarException, from_server_error
from pulsar_native.wire import pulsar_api_pb2 as pb

KINDS = sorted(
    (kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, PulsarException)),
    key=lambda kind: kind.__name__,
)

# Every ServerError of the protocol, by its name there: our class, and whether a later try may succeed.
SERVER_ERRORS = {
    "UnknownError": (exceptions.UnknownError, True),
    "MetadataError": (exceptions.BrokerMetadataError, True),
    "PersistenceError": (exceptions.BrokerPersistenceError, True),
    "AuthenticationError": (exceptions.AuthenticationError, False),
    "AuthorizationError": (exceptions.AuthorizationError, False),
    "ConsumerBusy": (exceptions.ConsumerBusy, False),
    "ServiceNotReady": (exceptions.ServiceUnitNotReady, True),
    "ProducerBlockedQuotaExceededError": (exceptions.ProducerBlockedQuotaExceededError, True),
    "ProducerBlockedQuotaExceededException": (exceptions.ProducerBlockedQuotaExceededException, False),
    "ChecksumError": (exceptions.ChecksumError, False),
    "UnsupportedVersionError": (exceptions.UnsupportedVersionError, False),
    "TopicNotFound": (exceptions.TopicNotFound, False),
    "SubscriptionNotFound": (exceptions.SubscriptionNotFound, False),
    "ConsumerNotFound": (exceptions.ConsumerNotFound, True),
    "TooManyRequests": (exceptions.TooManyLookupRequestException, True),
    "TopicTerminatedError": (exceptions.TopicTerminated, False),
    "ProducerBusy": (exceptions.ProducerBusy, False),
    "InvalidTopicName": (exceptions.InvalidTopicName, False),
    "IncompatibleSchema": (exceptions.IncompatibleSchema, False),
    "ConsumerAssignError": (exceptions.ConsumerAssignError, False),
    "TransactionCoordinatorNotFound": (exceptions.TransactionCoordinatorNotFoundError, True),
    "InvalidTxnStatus": (exceptions.InvalidTxnStatusError, False),
    "NotAllowedError": (exceptions.NotAllowedError, False),
    "TransactionConflict": (exceptions.TransactionConflict, False),
    "TransactionNotFound": (exceptions.TransactionNotFound, False),
    "ProducerFenced": (exceptions.ProducerFenced, False),
}


def test_every_server_error_of_the_protocol_has_its_class() -> None:
    assert set(SERVER_ERRORS) == set(pb.ServerError.keys())
    for name, (kind, retryable) in SERVER_ERRORS.items():
        error = from_server_error(pb.ServerError.Value(name), "why", topic="t", broker="b:1", request_id=7, attempts=2)
        assert type(error) is kind, name
        assert error.retryable is retryable, name
        assert (error.message, error.topic, error.broker, error.request_id, error.attempts) == ("why", "t", "b:1", 7, 2)


@pytest.mark.parametrize("code", [-1, 26, 10**6])
def test_numbers_of_newer_brokers_are_an_unknown_error(code: int) -> None:
    error = from_server_error(code, "new")
    assert type(error) is exceptions.UnknownError and error.retryable


def test_names_and_results_are_the_official_clients() -> None:
    for result in Result:
        if result is Result.Ok:
            continue
        kind = getattr(exceptions, result.name)
        assert issubclass(kind, KeyboardInterrupt if result is Result.Interrupted else PulsarException)
        assert kind().error() is result
        assert getattr(pulsar_native, result.name) is kind
        assert hasattr(official.exceptions, result.name)
        assert getattr(official.Result, result.name).value == result.value


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_keeps_what_it_knows_when_pickled(kind: type[PulsarException]) -> None:
    error = kind("it broke", topic="persistent://public/default/t", broker="h:6650", request_id=3, attempts=4)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.retryable is error.retryable


def test_the_text_tells_the_place() -> None:
    bare = exceptions.Timeout()
    assert str(bare) == ""
    error = exceptions.Timeout("Nobody answered", topic="t", request_id=0, attempts=2)
    assert str(error) == "Nobody answered [topic=t, request_id=0, attempts=2]"
    error.broker = "h:1"
    assert str(error) == "Nobody answered [topic=t, broker=h:1, request_id=0, attempts=2]"


def test_asyncio_form_gives_result_and_text() -> None:
    error = PulsarException(Result.AlreadyClosed, "gone")
    assert (error.error(), str(error)) == (Result.AlreadyClosed, "15 AlreadyClosed: gone")
    assert str(PulsarException(Result.Timeout)) == "3 Timeout"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(exceptions.Timeout("a", 1)) == "('a', 1)"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (exceptions.Timeout, TimeoutError),
        (exceptions.ConnectError, ConnectionError),
        (exceptions.InvalidConfiguration, ValueError),
        (exceptions.InvalidMessage, ValueError),
        (exceptions.InvalidTopicName, ValueError),
        (exceptions.InvalidUrl, ValueError),
    ],
)
def test_errors_are_also_what_python_programs_expect(kind: type[PulsarException], builtin: type[BaseException]) -> None:
    assert issubclass(kind, builtin)


def test_what_is_wrong_with_the_call_is_never_retryable() -> None:
    for kind in KINDS:
        if issubclass(kind, ValueError):
            assert not kind.retryable, kind
