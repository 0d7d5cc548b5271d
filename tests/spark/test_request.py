"""The request of a load: what it means, and the refusals."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pyspark_pulsar.request import LoadRequest

SOURCE = {"service.url": "pulsar://h:1", "topic": "t"}
ADMIN = {**SOURCE, "admin.url": "http://h:8080", "startingTime": "1000", "endingTime": "2000"}
OUTPUT = {"path": "file:///data/out/"}


def parse(**parts: Any) -> LoadRequest:
    """Return the parsed request of a source, an output and the given parts."""
    whole = {} if {"source", "interval", "since"} & set(parts) else {"interval": "all"}
    return LoadRequest.parse(json.dumps({"source": SOURCE, "output": OUTPUT, **whole, **parts}))


def test_request_defaults() -> None:
    request = parse()
    assert (request.path, request.manifest) == ("file:///data/out", "file:///data/.out.manifest.json")
    assert (request.value_format, request.value_schema, request.replay) == ("raw", None, "auto")
    assert request.source_columns() == (
        "value",
        *("__topic", "__ledgerId", "__entryId", "__batchIndex"),
        *("__key", "__publishTime", "__eventTime"),
    )
    assert request.read_options().topics == ("persistent://public/default/t",)


def test_request_with_all_options() -> None:
    request = parse(
        value={"format": "json", "schema": "a INT"},
        derive={"b": "a + 1"},
        metadata=["__messageId", "__topic"],
        output={"path": "/x", "partition_by": ["b"]},
        manifest="/y.json",
        replay="never",
        time_zone="Europe/Berlin",
        run="r1",
    )
    assert (request.value_format, request.value_schema, request.derive) == ("json", "a INT", {"b": "a + 1"})
    assert request.source_columns()[5:] == ("__messageId",)
    assert (request.path, request.manifest, request.partition_by) == ("/x", "/y.json", ("b",))
    assert (request.replay, request.time_zone, request.run) == ("never", "Europe/Berlin", "r1")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"sauce": {}}, "request has no part 'sauce'; did you mean 'source'"),
        ({"value": {"fromat": "json"}}, "value has no part 'fromat'; did you mean 'format'"),
        ({"value": {"format": "xml"}}, "value.format must be one of raw, json, avro, auto, not 'xml'"),
        ({"value": "json"}, "value must be a JSON object"),
        ({"output": {}}, "output.path must be a text"),
        ({"output": {"path": "/x", "partition_by": "day"}}, "output.partition_by must be a list"),
        ({"output": {"path": "/x", "partition_by": ["a", "b", "A"]}}, "partition_by names columns twice: a"),
        ({"output": {"path": "file:///"}}, "must name a folder of its own"),
        ({"output": {"path": "/x/y/.."}}, "must name a folder of its own"),
        ({"output": {"path": "/x/./"}}, "must name a folder of its own"),
        ({"output": {"path": "s3a://bucket"}}, "must name a folder of its own"),
        ({"output": {"path": "s3a://bucket/"}}, "must name a folder of its own"),
        ({"output": {"path": "//server"}}, "must name a folder of its own"),
        ({"commits": "/c"}, 'commits needs "since": "last_success"'),
        ({"output": {"path": "file:orders"}}, "output.path is 'file:orders': Hadoop takes a colon"),
        ({"output": {"path": "file:orders/1"}}, "output.path is 'file:orders/1': Hadoop takes a colon"),
        ({"output": {"path": "/x/run=1T00:00/"}}, r"output.path is '/x/run=1T00:00': .* \| replace\(':', ''\)"),
        ({"output": {"path": "1T00:00/rows"}}, "output.path is '1T00:00/rows': Hadoop takes a colon"),
        ({"manifest": "file:///x/1T00:00.json"}, "manifest is 'file:///x/1T00:00.json': Hadoop takes a colon"),
        ({"output": {"path": "/x", "sort_by": "a"}}, "output has no part 'sort_by'"),
        ({"metadata": ["__key", "__topik"]}, "no column '__topik'; did you mean '__topic'"),
        ({"derive": {"a": 1}}, "request.derive must be a JSON object of texts"),
        ({"derive": {" ": "1"}}, "derive has an expression without a name"),
        ({"derive": {"a": "1", "A": "2"}}, "derive names columns twice: a"),
        ({"derive": {"__TOPIC": "1"}}, r"derive must not replace metadata columns \(__TOPIC\)"),
        ({"derive": {"__messageId": "1"}, "metadata": []}, "derive must not replace metadata columns"),
        ({"output": {"path": "/x", "partition_by": ["day"]}}, "partition_by names day; the columns are value, __topic"),
        ({"value": {"format": "json"}}, r"needs admin\.url, or give value\.schema"),
        ({"value": {"format": "avro"}}, r"needs admin\.url, or give value\.schema"),
        ({"replay": "yes"}, "request.replay must be one of auto, never, require"),
        ({"source": {**SOURCE, "columns": "value"}}, "source must not choose columns"),
        ({"source": {**SOURCE, "IncludeMetadata": "all"}}, "source must not choose columns"),
        ({"source": {**SOURCE, "valueFormat": "auto"}}, r"source must not decode values .* set value\.format"),
        ({"source": {**SOURCE, "Mode": "FAILFAST"}}, r"source must not decode values .* set value\.mode"),
        ({"source": {**SOURCE, "pushDownPredicate": "true"}}, r"no query's filter to apply \(pushDownPredicate\)"),
        ({"value": {"format": "auto"}}, r"valueFormat=auto needs admin\.url"),
        ({"value": {"format": "auto", "schema": "a INT"}}, r"value\.schema is for json and avro"),
        ({"value": {"schema": "a INT"}}, r"value\.schema is for json and avro: set value\.format"),
        ({"value": {"format": "raw", "schema": "a INT"}}, r"value\.schema is for json and avro: set value\.format"),
        ({"value": {"format": "json", "mode": "PERMISSIVE"}}, r"value\.mode needs value\.format auto"),
        ({"value": {"format": "raw", "corrupt_column": "bad"}}, r"value\.corrupt_column needs value\.format auto"),
        ({"source": ADMIN, "value": {"format": "auto", "mode": "skip"}}, "mode must be one of FAILFAST"),
        ({"source": ADMIN, "value": {"format": "auto", "corrupt_column": "bad"}}, "needs mode=PERMISSIVE"),
        (
            {"source": ADMIN, "value": {"format": "auto", "mode": "PERMISSIVE", "corrupt_column": "value"}},
            "the name of another column",
        ),
        ({"source": {**SOURCE, "topics": "u"}}, "not topic and topics"),
        ({"source": {**SOURCE, "TOPIC": "u"}}, "one option twice, topic and TOPIC: leave one out"),
        ({"source": {"topic": 5}}, "request.source must be a JSON object of texts"),
    ],
)
def test_request_wrong_part_raises_with_its_name(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        parse(**parts)


def test_request_derive_replaces_the_value() -> None:
    output = {"path": "/x", "partition_by": ["day"]}
    request = parse(derive={"VALUE": "cast(value AS STRING)", "day": "1"}, output=output)
    assert list(request.derive) == ["VALUE", "day"]


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "5"])
def test_request_not_a_json_object_raises(text: str) -> None:
    with pytest.raises(InvalidConfiguration):
        LoadRequest.parse(text)


def test_request_literal_secret_raises_without_it() -> None:
    with pytest.raises(PulsarException, match="Hand the secret over by reference") as refused:
        parse(source={**SOURCE, "pulsar.client.authParams": "token:s3cret"})
    assert "s3cret" not in str(refused.value)


def test_request_canonical_document_identifies_run() -> None:
    reordered = dict(reversed(SOURCE.items()))
    again = parse(
        source=reordered, interval="all", replay="never", min_rows=5, allow_empty=True, attempt="x", map_index=1
    )
    assert json.loads(json.dumps(parse().canonical())) == again.canonical()
    assert parse(run="a").canonical() != parse(run="b").canonical()
    strict, lax = ({"format": "auto", "mode": mode} for mode in ("FAILFAST", "DROPMALFORMED"))
    assert parse(source=ADMIN, value=strict).canonical() != parse(source=ADMIN, value=lax).canonical()


def test_request_of_another_credentials_place_is_the_same() -> None:
    table = {"path": "/data/t", "format": "delta"}
    made = [parse(source={**ADMIN, "credentialsRef": place}, output=table) for place in ("file:a.json", "env:B")]
    assert made[0].canonical() == made[1].canonical() == parse(source=ADMIN, output=table).canonical()
    assert made[0].manifest == made[1].manifest and made[0].source != made[1].source


def test_plan_is_final_after_end_and_slack() -> None:
    def at(seconds: int) -> datetime:
        return datetime.fromtimestamp(seconds, UTC)

    start = {**SOURCE, "startingOffsets": "earliest"}
    timed = parse(source={**start, "endingTime": "100000", "timeSlackMs": "5000"})
    assert [timed.ended_before(at(seconds)) for seconds in (99, 104, 105)] == [False, False, True]
    assert parse(source={**start, "endingOffsets": '{"t": "1:2"}'}).ended_before(at(0))
    assert not parse().ended_before(at(10**9))


HOUR = {"startingTime": "2026-01-01T00:00:00Z", "endingTime": "2026-01-01T01:00:00Z"}


def test_interval_kinds() -> None:
    assert parse(source={**SOURCE, **HOUR}).interval == "bounded"
    assert parse(source={**SOURCE, "startingOffsets": "earliest", "endingOffsets": "latest"}).interval == "bounded"
    assert parse(source=SOURCE, interval="all").interval == "all"
    since = parse(source={**SOURCE, "startingTime": "1000"}, since="last_success", commits="/c/")
    assert (since.interval, since.commits) == ("last_success", "/c")


@pytest.mark.parametrize(
    ("commits", "message"),
    [
        (None, r"needs commits, the folder of the commit log, .*: one for each job"),
        ("file:log", "commits is 'file:log/': Hadoop takes a colon"),
    ],
    ids=["none", "scheme"],
)
def test_since_without_a_log_of_its_own_raises(commits: str | None, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        parse(source=SOURCE, since="last_success", commits=commits)


@pytest.mark.parametrize(
    ("path", "manifest"),
    [
        ("orders-1", ".orders-1.manifest.json"),
        ("daily/orders-1/", "daily/.orders-1.manifest.json"),
        ("/orders-1", "/.orders-1.manifest.json"),
        ("file:///a:b/orders-1", "file:///a:b/.orders-1.manifest.json"),
        ("s3a://bucket/orders-1", "s3a://bucket/.orders-1.manifest.json"),
    ],
    ids=["name", "relative", "root", "colon", "store"],
)
def test_manifest_is_beside_the_output(path: str, manifest: str) -> None:
    assert parse(output={"path": path}).manifest == manifest


@pytest.mark.proves("A27")
@pytest.mark.parametrize(
    ("source", "parts", "message"),
    [
        ({}, {}, r"startingTime and endingTime are missing: .*interval='all'.*since='last_success'.*"),
        ({"startingTime": "1000"}, {}, 'endingTime is missing: .*endingOffsets="latest"'),
        ({"ENDINGTIME": "1000"}, {}, 'startingTime is missing: .*startingOffsets="earliest"'),
        ({**HOUR, "endingTime": ""}, {}, "endingTime is ''"),
        ({**HOUR, "startingTime": "None"}, {}, "startingTime is 'None'"),
        ({"startingTime": "5", "endingTime": "5"}, {}, "interval is empty: .*CronDataIntervalTimetable"),
        ({"startingTime": "6", "endingTime": "5"}, {}, r"endingTime .* is before startingTime"),
        (HOUR, {"interval": "all"}, "takes no bounds: leave out startingTime"),
        (HOUR, {"since": "last_success"}, "leave out endingTime"),
        ({}, {"interval": "all", "since": "last_success"}, "at most one"),
        ({}, {"interval": "everything"}, "at most one"),
        ({}, {"interval": "all", "min_rows": -1}, "min_rows must be a whole number"),
        ({}, {"interval": "all", "allow_empty": "yes"}, "allow_empty must be true or false"),
    ],
)
def test_interval_invalid_raises(source: dict[str, str], parts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        parse(source={**SOURCE, **source}, **parts)


# ---- table formats ---------------------------------------------------------------------------------------------------

DELTA = {"path": "/lake/orders", "format": "delta"}


def test_table_overwrite_condition_is_the_interval() -> None:
    request = parse(source={**SOURCE, **HOUR}, output=DELTA)
    assert request.table is not None and request.table.mode == "overwrite"
    condition = str(request.table.replace_where)
    assert (
        condition.startswith("__publishTime >= TIMESTAMP '2026-01-01T00:00:00") and " AND __publishTime < " in condition
    )
    given = parse(source={**SOURCE, **HOUR}, output={**DELTA, "replace_where": "hour = 1"})
    assert given.table is not None and given.table.replace_where == "hour = 1"
    assert parse(source={**SOURCE, **HOUR}).table is None


def test_table_intervals_have_manifests_of_their_own() -> None:
    hours = [{**HOUR, "endingTime": f"2026-01-01T0{number}:00:00Z"} for number in (1, 2)]
    first, second = (parse(source={**SOURCE, **hour}, output=DELTA).manifest for hour in hours)
    assert first != second and first.startswith("/lake/.orders-") and first.endswith(".manifest.json")
    assert first == parse(source={**SOURCE, **hours[0]}, output=DELTA, min_rows=7, replay="never").manifest
    assert parse(source={**SOURCE, **HOUR}, output=DELTA, manifest="/m.json").manifest == "/m.json"


@pytest.mark.parametrize(
    ("output", "parts", "message"),
    [
        ({"format": "orc"}, {}, "output.format must be one of parquet, delta, iceberg, not 'orc'"),
        ({"table": "t"}, {}, "output.table needs output.format delta or iceberg"),
        ({"mode": "merge"}, {}, "output.mode needs output.format"),
        ({"format": "iceberg"}, {}, "iceberg needs output.table"),
        ({"format": "delta", "mode": "append"}, {}, "output.mode must be overwrite or merge"),
        ({"format": "delta", "mode": 1}, {}, "output.mode must be a text"),
        ({"format": "delta", "mode": "merge", "replace_where": "a = 1"}, {}, "is for mode overwrite"),
        ({"format": "delta"}, {"source": SOURCE, "interval": "all"}, "must know which rows"),
        ({"format": "delta"}, {"metadata": ["__key"]}, "must know which rows"),
        ({"format": "delta", "mode": "merge"}, {"source": SOURCE, "since": "last_success"}, "writes Parquet only"),
    ],
)
def test_table_option_wrong_raises(output: dict[str, Any], parts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        parse(**{"source": {**SOURCE, **HOUR}, "output": {"path": "/lake/orders", **output}, **parts})
