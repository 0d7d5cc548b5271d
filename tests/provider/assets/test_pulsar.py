"""Assets of topics: one topic is one asset, whatever its spelling, as Airflow itself makes and converts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.lineage import HookLineageCollector

from airflow_provider_pulsar.assets.pulsar import cluster_uri, create_asset, topic_of, topic_uri
from airflow_provider_pulsar.hooks.pulsar import PulsarHook
from support.brokers import Broker, NewTopic
from support.tasks import dag_in, states_of

ORDERS = "pulsar://broker:6650/public/default/orders"


@pytest.mark.proves("A22")
@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("pulsar://broker/orders", ORDERS),
        ("PULSAR://Broker:6650/public/default/orders/", ORDERS),
        ("pulsar://broker/persistent/orders", ORDERS),
        ("pulsar://broker/persistent/public/default/orders", ORDERS),
        ("pulsar://broker/persistent://public/default/orders", ORDERS),
        ("pulsar://broker/public/default/%6frders", ORDERS),
        ("pulsar+ssl://broker/a/b/c", "pulsar+ssl://broker:6651/a/b/c"),
        ("pulsar://b:1,A/a/b/c", "pulsar://a:6650,b:1/a/b/c"),
        ("pulsar://[2001:DB8::1]/a/b/c", "pulsar://[2001:db8::1]:6650/a/b/c"),
        ("pulsar://h/non-persistent://a/b/c", "pulsar://h:6650/non-persistent/a/b/c"),
        ("pulsar://h/a/b/c d%3F", "pulsar://h:6650/a/b/c%20d%3F"),
        ("pulsar://h/a/b/c-partition-0", "pulsar://h:6650/a/b/c-partition-0"),
    ],
)
def test_asset_uri_two_spellings_are_one(given: str, canonical: str) -> None:
    asset = Asset(given)
    assert asset.uri == canonical
    assert Asset(canonical).uri == canonical
    assert topic_uri(canonical.rpartition("/")[0], topic_of(canonical)) == canonical


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("pulsar:///a/b/c", "needs a host"),
        ("pulsar://h:0/a/b/c", "port from 1 to 65535"),
        ("pulsar://h:66500/a/b/c", "port from 1 to 65535"),
        ("pulsar://h:x/a/b/c", "needs a host"),
        ("pulsar://user@h/a/b/c", "must not hold credentials"),
        ("pulsar://h/", "Invalid topic name|names one topic"),
        ("pulsar://h/a/b", "names one topic"),
        ("pulsar://h/a/b/c/d", "names one topic"),
        ("pulsar://h/a/b/c%2Fd", "names one topic"),
        ("pulsar://h/t%20t/b/c", "Invalid tenant"),
        ("pulsar://h/a/b/c?d=e", "no query"),
    ],
)
def test_asset_uri_of_no_topic_raises(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Asset(given)


@pytest.mark.proves("A22")
def test_create_asset_through_airflows_factories() -> None:
    collector = HookLineageCollector()
    given = {"service_url": "pulsar+ssl://broker", "topic": "a/b/c"}
    asset = collector.create_asset(scheme="pulsar+ssl", asset_kwargs=given, asset_extra={"n": 1})
    assert asset == Asset("pulsar+ssl://broker:6651/a/b/c", extra={"n": 1})
    named = create_asset(host="h", port=1, tls=True, topic="t", name="orders", group="sales")
    assert (named.name, named.uri, named.group) == ("orders", "pulsar+ssl://h:1/public/default/t", "sales")
    assert create_asset(service_url="https://h:8443", topic="t").uri == "pulsar+ssl://h:6651/public/default/t"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": "t"}, "exactly one of"),
        ({"topic": "t", "host": "h", "service_url": "pulsar://h"}, "exactly one of"),
        ({"topic": "t", "service_url": "pulsar://h", "port": 1}, "belong to host"),
        ({"topic": "a/b", "host": "h"}, "Invalid short topic name"),
        ({"topic": "t", "service_url": "kafka://h"}, "no scheme of Pulsar"),
    ],
)
def test_create_asset_wrong_arguments_raise(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_asset(**given)


def test_cluster_uri_drops_credentials() -> None:
    assert cluster_uri("pulsar://me@h1,H2:1") == "pulsar://h1:6650,h2:1"


@pytest.mark.proves("A22")
@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl"])
def test_asset_to_openlineage_through_airflow(scheme: str) -> None:
    from airflow.providers.openlineage.utils.utils import translate_airflow_asset

    dataset = translate_airflow_asset(Asset(f"{scheme}://h:1/a/b/c"), PulsarHook())
    assert dataset is not None
    assert (dataset.namespace, dataset.name) == (f"{scheme}://h:1", "persistent://a/b/c")


@pytest.mark.proves("A23")
@pytest.mark.usefixtures("pulsar_conn")
def test_hook_reports_lineage_to_the_collector(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = HookLineageCollector()
    monkeypatch.setattr("airflow.sdk.lineage.get_hook_lineage_collector", lambda: collector)
    PulsarHook().report_lineage(read=["a/b/in"], written=["out", "persistent://public/default/out"])
    found = collector.collected_assets
    assert [each.asset.uri for each in found.inputs] == [f"{broker.service_url}/a/b/in"]
    assert [(each.asset.uri, each.count) for each in found.outputs] == [(f"{broker.service_url}/public/default/out", 2)]


@pytest.mark.proves("A22")
@pytest.mark.usefixtures("pulsar_conn")
def test_outlets_of_operators_get_counts_and_ids(
    airflow_home: Path, tmp_path: Path, broker: Broker, topic: NewTopic
) -> None:
    name, path = topic(partitions=2), tmp_path / "batch.jsonl"
    dag = dag_in(
        airflow_home,
        "outlets_with_extra",
        f"""
        from airflow.sdk import Asset, AssetAlias

        outlets = [
            Asset({create_asset(service_url=broker.service_url, topic=name).uri!r}),
            Asset({broker.service_url + "/another"!r}),
            AssetAlias("published"),
        ]
        publish = PublishOperator(task_id="publish", topic={name!r}, messages=[1, 2, 3], outlets=outlets)
        consume = ConsumeBatchOperator(
            task_id="consume", topic={name!r}, subscription="s", path={str(path)!r}, inline=True,
            outlets=[Asset({path.as_uri()!r})],
        )
        publish >> consume
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}
    events = events_of(run)
    written = events["publish", Asset(f"{broker.service_url}/{name.partition('://')[2]}").uri]
    # One event of the outlet, one of the alias.
    assert len(written) == 2 and written[0] == written[1]
    assert written[0]["count"] == 3 and written[0]["manifest"]["topic"] == name
    assert sum(part["count"] for part in written[0]["manifest"]["partitions"].values()) == 3
    assert set(written[0]["ids"]) == set(written[0]["manifest"]["partitions"])
    assert all(ids["first"] and ids["last"] for ids in written[0]["ids"].values())
    assert events["publish", f"{broker.service_url}/public/default/another"] == [{}]
    (read,) = events["consume", path.as_uri()]
    assert read["count"] == 3 and read["manifest"]["path"] == str(path)
    assert "messages" not in read["manifest"]


def events_of(run: Any) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the extras of the asset events of a run by task and URI."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select  # type: ignore[import-not-found,unused-ignore]

    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with create_session() as session:
        query = select(AssetEvent, AssetModel).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        for event, asset in session.execute(query.where(AssetEvent.source_run_id == run.run_id)):
            found.setdefault((event.source_task_id, asset.uri), []).append(event.extra)
    return found
