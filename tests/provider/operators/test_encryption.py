"""Encrypted messages of PublishOperator and ConsumeBatchOperator, by key files of the worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.operators.publish import PublishOperator
from airflow_provider_pulsar.sensors.message import MessageSensor
from pulsar_native import AdminClient, Client, ConsumerCryptoFailureAction, MessageId
from support.brokers import Broker, NewTopic
from support.key_files import key_pair
from support.tasks import StateStore, context_of, dag_in, states_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a private key, `orders.key`, and its public key, `orders.pub`."""
    folder = tmp_path_factory.mktemp("keys")
    key_pair(folder, "orders")
    return folder


def consume(topic: str, path: Path | None, **options: Any) -> ConsumeBatchOperator:
    """Return the operator."""
    options.setdefault("subscription", "s")
    return ConsumeBatchOperator(task_id="consume", topic=topic, path=None if path is None else str(path), **options)


def test_encrypted_messages_are_read_with_the_key(
    airflow_home: Path, keys: Path, client: Client, topic: NewTopic, tmp_path: Path
) -> None:
    name, jsonl, parquet = topic(), tmp_path / "out.jsonl", tmp_path / "out.parquet"
    dag = dag_in(
        airflow_home,
        "encrypted",
        f"""
        keys, name = {str(keys)!r}, {name!r}
        publish = PublishOperator(
            task_id="publish", topic=name, messages=[{{"n": 1}}, {{"n": 2}}],
            encryption_keys={{"orders": "{{{{ params.folder }}}}/orders.pub"}}, params={{"folder": keys}},
        )
        private = {{"orders": keys + "/orders.key"}}
        for number, path in enumerate({[str(jsonl), str(parquet)]!r}):
            publish >> ConsumeBatchOperator(
                task_id=f"consume{{number}}", topic=name, subscription=f"s{{number}}", path=path, private_keys=private
            )
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    assert [json.loads(line)["value"] for line in jsonl.read_text().splitlines()] == ['{"n":1}', '{"n":2}']
    assert pq.read_table(parquet)["value"].to_pylist() == [b'{"n":1}', b'{"n":2}']
    # Without the key the broker has nothing readable.
    raw = client.create_reader(name, MessageId.earliest, crypto_failure_action=ConsumerCryptoFailureAction.CONSUME)
    assert b'"n"' not in raw.read_next(5000).data()


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_encrypted_output_that_is_lost_is_written_again(
    ending: str, keys: Path, topic: NewTopic, tmp_path: Path
) -> None:
    name, path, store = topic(), tmp_path / f"out.{ending}", StateStore()
    publish = PublishOperator(
        task_id="p", topic=name, messages=["a", "b"], encryption_keys={"orders": f"file://{keys}/orders.pub"}
    )
    publish.execute(context_of())  # type: ignore[arg-type]
    private = {"orders": str(keys / "orders.key")}
    first = consume(name, path, private_keys=private).execute(context_of(store=store))  # type: ignore[arg-type]
    content = path.read_bytes()
    path.unlink()
    again = consume(name, path, private_keys=private).execute(context_of(store=store))  # type: ignore[arg-type]
    assert (first["count"], again["count"]) == (2, 2) and path.exists()
    assert ending == "parquet" or path.read_bytes() == content


def test_encrypted_messages_without_the_key_fail(keys: Path, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    given = {"orders": str(keys / "orders.pub")}
    PublishOperator(task_id="p", topic=name, messages=["a"], encryption_keys=given).execute(context_of())  # type: ignore[arg-type]
    out = tmp_path / "out.jsonl"
    for path in (out, tmp_path / "out.parquet", None):
        with pytest.raises(AirflowFailException, match=r"1 entries cannot be decrypted.*private_keys"):
            consume(name, path, idle_seconds=0.5, **({} if path else {"process_message": print})).execute(context_of())  # type: ignore[arg-type]
        assert path is None or not path.exists()
    # They stay in the subscription.
    found = consume(name, out, private_keys={"orders": str(keys / "orders.key")}).execute(context_of())  # type: ignore[arg-type]
    assert found["count"] == 1
    with pytest.raises(AirflowException, match=r"missing\.pub"):
        given = {"orders": str(keys / "missing.pub")}
        PublishOperator(task_id="p", topic=name, messages=["a"], encryption_keys=given).execute(context_of())  # type: ignore[arg-type]


def test_decrypted_message_goes_to_no_other_topic(keys: Path, topic: NewTopic, tmp_path: Path) -> None:
    name, private = topic(), {"orders": str(keys / "orders.key")}
    given = {"orders": str(keys / "orders.pub")}
    PublishOperator(task_id="p", topic=name, messages=["a"], encryption_keys=given).execute(context_of())  # type: ignore[arg-type]
    for options in ({"on_error": "dead_letter"}, {"dead_letter_topic": "d"}, {"retry_letter_topic": "r"}):
        with pytest.raises(ValueError, match="private_keys exclude dead-letter and retry topics"):
            consume(name, tmp_path / "out.jsonl", private_keys=private, **options)
    operator = consume(name, None, private_keys=private, process_message=lambda message: "dead_letter")
    with pytest.raises(AirflowException, match="would not be encrypted there"):
        operator.execute(context_of())  # type: ignore[arg-type]


def test_encryption_keys_of_a_task_without_result_fail(airflow_home: Path, topic: NewTopic, admin: AdminClient) -> None:
    name = topic()
    dag = dag_in(
        airflow_home,
        "encryption_keys_missing",
        f"""
        @task
        def keys():
            return None

        PublishOperator(task_id="publish", topic={name!r}, messages=["secret"], encryption_keys=keys())
        """,
    )
    assert states_of(dag.test()) == {"keys": "success", "publish": "failed"}
    assert name not in admin.topics("public/default")


def test_keys_one_is_result_is_read(
    airflow_home: Path, keys: Path, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    name, path = topic(), tmp_path / "out.jsonl"
    dag = dag_in(
        airflow_home,
        "encryption_key_result",
        f"""
        @task
        def file(ending):
            return {str(keys / "orders")!r} + ending

        publish = PublishOperator(
            task_id="publish", topic={name!r}, messages=["secret"], encryption_keys={{"orders": file(".pub")}}
        )
        publish >> ConsumeBatchOperator(
            task_id="batch", topic={name!r}, subscription="s", path={str(path)!r},
            private_keys={{"orders": file(".key")}},
        )
        """,
    )
    assert set(states_of(dag.test()).values()) == {"success"}
    assert [json.loads(line)["value"] for line in path.read_text().splitlines()] == ["secret"]


@pytest.mark.parametrize("more", [{"other": 1}, {"other": "-----BEGIN PRIVATE KEY-----"}, {"other": b"x"}])
def test_keys_beside_a_result_are_checked(more: dict[str, Any]) -> None:
    with DAG("a_dag", schedule=None):
        result = PublishOperator(task_id="before", topic="t", messages=[1]).output
        with pytest.raises(ValueError, match="encryption_keys must be"):
            PublishOperator(task_id="p", topic="t", messages=[1], encryption_keys={"k": result, **more})
        with pytest.raises(ValueError, match="private_keys must be"):
            MessageSensor(task_id="s", topic="t", subscription="s", private_keys={"k": result, **more})
        with pytest.raises(ValueError, match="private_keys exclude dead-letter"):
            consume("t", Path("/o.jsonl"), private_keys={"k": result}, on_error="dead_letter")
        MessageSensor(task_id="known_later", topic="t", subscription="s", private_keys={"k": result})


def test_keys_themselves_are_refused(keys: Path, tmp_path: Path) -> None:
    secret = (keys / "orders.key").read_text()
    for text in (secret, "data:application/x-pem-file;base64,AAAA"):
        with pytest.raises(ValueError, match="private_keys must be paths of files") as refused:
            consume("t", tmp_path / "o.jsonl", private_keys={"orders": text})
        assert text not in str(refused.value)
    with pytest.raises(ValueError, match="not private keys"):
        PublishOperator(task_id="p", topic="t", messages=[1], encryption_keys={"orders": secret})
    for wrong in ({"orders": ""}, {"orders": 1}, ["orders"]):
        with pytest.raises(ValueError, match="encryption_keys must be a dict of texts"):
            PublishOperator(task_id="p", topic="t", messages=[1], encryption_keys=wrong)._public_keys()  # type: ignore[arg-type]
