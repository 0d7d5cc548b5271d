"""The options of a read: what they mean, and the refusals, each with the way out."""

from __future__ import annotations

import pickle
from functools import partial

import pytest

from pulsar_native.exceptions import InvalidConfiguration, InvalidUrl, PulsarException
from pyspark_pulsar.options import ReadOptions, parse_time
from pyspark_pulsar.positions import Position
from pyspark_pulsar.schema import DEFAULT_COLUMNS, SOURCE_COLUMNS
from pyspark_pulsar.write_options import WriteOptions

URL = {"service.url": "pulsar://localhost:6650"}
MINIMUM = {**URL, "topic": "t"}
AUTO = {**MINIMUM, "admin.url": "http://h:8080", "valueFormat": "auto"}


def test_options_defaults() -> None:
    options = ReadOptions.parse(MINIMUM)
    assert options.topics == ("persistent://public/default/t",)
    assert options.starting_offsets.of("any") == "earliest"
    assert options.ending_offsets.of("any") == "latest"
    assert (options.starting_time, options.ending_time, options.time_slack_ms) == (None, None, 60_000)
    assert options.columns == DEFAULT_COLUMNS
    assert options.credentials is None and options.admin_url is None
    assert options.poll_timeout_ms == 60_000
    assert options.push_down_predicate is False


@pytest.mark.proves("D5")
def test_options_fail_on_data_loss_default() -> None:
    assert ReadOptions.parse(MINIMUM).fail_on_data_loss is True
    assert ReadOptions.parse({**MINIMUM, "failOnDataLoss": "FALSE"}).fail_on_data_loss is False


def test_option_names_ignore_case() -> None:
    given = {
        "service.url": "pulsar+ssl://a:1,b:2",
        "topics": "t, tenant/ns/u-partition-3,t",
        "startingoffsets": '{"t": "1:2"}',
        "startingtime": "1000",
        "endingtime": "2000",
        "timeslackms": "5",
        "pushdownpredicate": "TRUE",
        "polltimeoutms": "7",
        "admin.url": "http://localhost:8080/",
        "credentialsref": "env:TOKEN",
        "subscriptionprefix": "me",
        "pulsar.reader.receiverqueuesize": "9",
        "pulsar.client.operationtimeoutms": "1500",
        "pulsar.client.tlshostnameverificationenable": "true",
        "pulsar.client.initialbackoffintervalnanos": "200000000",
    }
    options = ReadOptions.parse(given)
    assert options.topics == ("persistent://public/default/t", "persistent://tenant/ns/u-partition-3")
    assert options.starting_offsets.of("persistent://public/default/t") == Position(1, 2)
    assert (options.starting_time, options.ending_time, options.time_slack_ms) == (1000, 2000, 5)
    assert options.poll_timeout_ms == 7 and options.receiver_queue_size == 9
    assert options.push_down_predicate is True
    assert options.admin_url == "http://localhost:8080"
    assert str(options.credentials) == "env:TOKEN" and options.subscription_prefix == "me"
    config = options.client_config()
    assert config.operation_timeout_seconds == 1.5 and config.tls_validate_hostname is True
    assert config.starting_backoff_interval_ms == 200
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize("text", ["t-.", "public/default/t-.", "persistent://public/default/t-."])
def test_topics_pattern_matches_whole_names(text: str) -> None:
    pattern = ReadOptions.parse({**URL, "topicsPattern": text}).topics_pattern
    assert pattern is not None
    names = ["t-1", "t-12", "at-1", "public/other/t-1", "non-persistent://public/default/t-1"]
    assert [name for name in names if pattern.matches(name)] == ["t-1"]


@pytest.mark.parametrize(
    ("extra", "columns"),
    [
        ({"includeMetadata": "true"}, DEFAULT_COLUMNS),
        ({"includeMetadata": "false"}, ("value",)),
        ({"includeMetadata": "ALL"}, SOURCE_COLUMNS),
        ({"columns": "__topic, VALUE ,__ledgerid"}, ("__topic", "value", "__ledgerId")),
    ],
)
def test_options_choose_columns(extra: dict[str, str], columns: tuple[str, ...]) -> None:
    assert ReadOptions.parse({**MINIMUM, **extra}).columns == columns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "t"}, "service.url is missing"),
        (URL, "exactly one of topic, topics and topicsPattern, not none"),
        ({**MINIMUM, "topics": "u"}, "not topic and topics"),
        ({**URL, "topic": "a/b"}, "topic: Invalid short topic name"),
        ({**URL, "topics": "t,"}, "topics: Invalid topic name"),
        ({**URL, "topic": "non-persistent://public/default/t"}, "nothing stored"),
        ({**MINIMUM, "startingOfsets": "earliest"}, "no option startingOfsets; did you mean startingOffsets"),
        ({**MINIMUM, "endingtimes": "5"}, "did you mean endingTime"),
        ({**MINIMUM, "TOPIC": "u"}, "Options topic and TOPIC are the same: case is ignored"),
        ({**MINIMUM, "serviceurl": "x"}, "did you mean service.url"),
        ({**MINIMUM, "pulsar.client.operationTimeout": "5"}, "did you mean pulsar.client.operationTimeoutMs"),
        ({**MINIMUM, "zzz": "5"}, "no option zzz; known are service.url"),
        ({**MINIMUM, "predefinedSubscription": "s"}, "leaves no subscription behind; leave it out"),
        ({**MINIMUM, "topicsPattern": "t.*"}, "not topic and topicsPattern"),
        ({**URL, "topicsPattern": "("}, r"topicsPattern '\('"),
        ({**URL, "topicsPattern": "non-persistent://a/b/c"}, "topicsPattern"),
        ({**URL, "topicsPattern": "a/b/"}, "write tenant/namespace/expression"),
        ({**MINIMUM, "minPartitions": "5"}, "minPartitions.* need admin.url"),
        ({**MINIMUM, "maxBytesPerPartition": "5"}, "maxBytesPerPartition need admin.url"),
        ({**MINIMUM, "maxBytesPerTrigger": "5"}, "a batch read has no triggers"),
        ({**MINIMUM, "valueFormat": "auto"}, "valueFormat=auto needs admin.url"),
        ({**MINIMUM, "valueFormat": "avro"}, "valueFormat must be raw or auto, not 'avro'"),
        ({**MINIMUM, "mode": "FAILFAST"}, "mode needs valueFormat=auto"),
        ({**MINIMUM, "columnNameOfCorruptRecord": "c"}, "columnNameOfCorruptRecord needs valueFormat=auto"),
        ({**AUTO, "mode": "drop"}, "mode must be one of FAILFAST, DROPMALFORMED, PERMISSIVE, not 'drop'"),
        ({**AUTO, "columnNameOfCorruptRecord": "c"}, "needs mode=PERMISSIVE: with FAILFAST there is no column"),
        ({**AUTO, "mode": "permissive", "columnNameOfCorruptRecord": " "}, "columnNameOfCorruptRecord is empty"),
        ({**AUTO, "mode": "permissive", "columnNameOfCorruptRecord": "__key"}, "is __key, the name of another column"),
        ({**AUTO, "mode": "permissive", "columnNameOfCorruptRecord": "__PUBLISHTIME"}, "the name of another column"),
        ({**AUTO, "mode": "permissive", "columnNameOfCorruptRecord": "Value"}, "is Value, the name of another column"),
        ({**MINIMUM, "path": "t"}, "takes no path; name the topic"),
        ({**MINIMUM, "paths": '["t"]'}, "takes no path; name the topic"),
        ({**MINIMUM, "provider": "pulsar"}, "tables are not supported; use CREATE TEMPORARY VIEW"),
        ({**MINIMUM, "startingOffsets": ""}, "startingOffsets is empty"),
        ({**MINIMUM, "failOnDataLoss": "yes"}, "failOnDataLoss must be true or false"),
        ({**MINIMUM, "pushDownPredicate": "on"}, "pushDownPredicate must be true or false, not 'on'"),
        ({**MINIMUM, "timeSlackMs": "-1"}, "timeSlackMs must be at least 0"),
        ({**MINIMUM, "pollTimeoutMs": "soon"}, "pollTimeoutMs must be a whole number"),
        ({**MINIMUM, "pulsar.reader.receiverQueueSize": "0"}, "receiverQueueSize must be at least 1"),
        ({**MINIMUM, "startingTime": "2000", "endingTime": "1000"}, "endingTime .* is before startingTime"),
        ({**MINIMUM, "columns": "value,__kye"}, "no column '__kye'; did you mean __key"),
        ({**MINIMUM, "columns": "value,value"}, "named twice"),
        ({**MINIMUM, "columns": "value", "includeMetadata": "true"}, "not both"),
        ({**MINIMUM, "includeMetadata": "some"}, "includeMetadata must be true, false or all"),
        ({**MINIMUM, "admin.url": "localhost:8080"}, "admin.url must be http://"),
        ({**MINIMUM, "pulsar.client.connectionTimeoutMs": "0"}, "connection_timeout_ms must be at least 1"),
        ({**MINIMUM, "pulsar.client.useTls": "1"}, "pulsar.client.useTls must be true or false"),
    ],
)
def test_options_wrong_value_raises_with_fix(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        ReadOptions.parse(options)


@pytest.mark.parametrize("url", ["http://localhost:8080/path", "localhost:6650", "", "pulsar://user:s3cret@host:1"])
def test_service_url_wrong_raises_without_password(url: str) -> None:
    with pytest.raises(InvalidUrl) as refused:
        ReadOptions.parse({"service.url": url, "topic": "t"})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "pulsar.client.authParams",
        "pulsar.client.authPluginClassName",
        "pulsar.client.authParamMap",
        "pulsar.admin.authParams",
        "token",
        "authentication",
        "password",
        "credentials",
    ],
)
def test_options_literal_secret_raises_without_it(name: str) -> None:
    with pytest.raises(PulsarException) as refused:
        ReadOptions.parse({**MINIMUM, name: "token:s3cret-value"})
    assert "credentialsRef=env:VARIABLE, file:NAME" in str(refused.value)
    assert "s3cret-value" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subscriptionPrefix", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.s3cret-value"),
        ("pulsar.client.listenerName", "token:s3cret-value"),
        ("pulsar.client.tlsKeyFilePath", "-----BEGIN PRIVATE KEY-----\ns3cret-value\n-----END PRIVATE KEY-----"),
        ("unknown", "Bearer s3cret-value"),
    ],
)
def test_options_value_like_secret_raises_without_it(name: str, value: str) -> None:
    for parse in (ReadOptions.parse, partial(WriteOptions.parse, streaming=False)):
        with pytest.raises(InvalidConfiguration, match=r"looks like a secret\. Hand the secret over") as refused:
            parse({**MINIMUM, name: value})
        assert "s3cret-value" not in str(refused.value)


def test_options_secret_as_reference_is_not_repeated() -> None:
    with pytest.raises(InvalidConfiguration, match="must be env:VARIABLE, file:NAME or conf:KEY") as refused:
        ReadOptions.parse({**MINIMUM, "credentialsRef": "token:s3cret-value"})
    assert "s3cret" not in str(refused.value)
    with pytest.raises(InvalidConfiguration) as refused:
        ReadOptions.parse({**MINIMUM, "admin.url": "http://me:s3cret-value@host:8080"})
    assert "s3cret" not in str(refused.value)


SECRETS = {
    "bare": ("pulsar.client.authParams", "s3cret-value"),
    "form": ("pulsar.client.listenerName", "token:s3cret-value"),
    "reference": ("credentialsRef", "s3cret-value"),
    "key": ("pulsar.reader.defaultCryptoKeyReader", "s3cret-value"),
    "service-url": ("service.url", "pulsar://me:s3cret-value@host:6650"),
    "service-url-user": ("service.url", "pulsar://s3cret-value@host:6650"),
    "admin-url": ("admin.url", "http://s3cret-value@host:8080"),
}


@pytest.mark.parametrize("prefix", ["", "option."], ids=["option", "table"])
@pytest.mark.parametrize(("name", "value"), SECRETS.values(), ids=list(SECRETS))
def test_options_secret_is_refused_first(name: str, value: str, prefix: str) -> None:
    # As Spark passes the options of a table, in an order of its own.
    options = {"option.topic": "t", "provider": "pulsar", "zzz": "", **MINIMUM, prefix + name: value}
    for parse in (ReadOptions.parse, partial(WriteOptions.parse, streaming=False)):
        with pytest.raises(PulsarException, match="revoke it") as refused:
            parse(options)
        assert "s3cret" not in str(refused.value) and "tables" not in str(refused.value)
    with pytest.raises(InvalidConfiguration, match=r"^Option provider: tables are not supported"):
        ReadOptions.parse({"option.topic": "t", "zzz": "", **MINIMUM, "provider": "pulsar"})


# ---- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1357000000123", 1357000000123),
        ("2013-01-01T00:00:00Z", 1356998400000),
        ("2013-01-01T00:00:00+00:00", 1356998400000),
        ("2013-01-01 01:00:00.5+01:00", 1356998400500),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("2013-01-01T00:00:00.000999Z", 1356998400001),
        ("2013-01-01T00:00:00.001Z", 1356998400001),
    ],
)
def test_times_iso_and_milliseconds_round_up(text: str, milliseconds: int) -> None:
    assert parse_time("startingTime", text) == milliseconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2013-01-01T00:00:00", "endingTime .* without a zone; add Z"),
        ("2013-01-01", "without a zone"),
        ("yesterday", "write milliseconds since 1970 or ISO-8601"),
        ("", "write milliseconds"),
        ("-5", "write milliseconds"),
        ("1.5", "write milliseconds"),
        ("1969-12-31T23:59:59Z", "before 1970"),
        ('{"t": 5}', "one time for all partitions"),
        ("1767225600000000", "beyond the year 2200; are these microseconds"),
        ("1767225600", r"1970-01-21T10:53:45.600000.*seconds\? Write 2026-01-01T00:00:00\+00:00 as 1767225600000"),
        ("1000000000", "are these seconds"),
        ("9999999999", "are these seconds"),
        ("20271231", r"is 1970-01-01T05:37:51\.231\+00:00; write a date as 2027-12-31T00:00:00Z"),
    ],
)
def test_times_wrong_form_raises_with_right_form(text: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        parse_time("endingTime", text)
