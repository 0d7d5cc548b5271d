"""Secrets of connections in the log of a real task, run by a real scheduler and executor: none is readable."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from support.airflow_stack import AirflowStack
from support.http_peer import Answer, Asked, http_peer

_DAG = """
import base64, logging
from datetime import datetime
from airflow.sdk import DAG, task

with DAG("show_secrets", schedule=None, start_date=datetime(2024, 1, 1)):

    @task(retries=0)
    def show(conn_id):
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        hook = PulsarHook(conn_id)
        data = hook.client_config().authentication.auth_data().decode()
        for text in (hook.credentials(), data, base64.b64encode(data.encode()).decode(), hook.client_config()):
            print("printed:", text)
            logging.getLogger("shown").warning("logged: %s", text)
        print("the end of", conn_id)

    show.expand(conn_id={conn_ids})
"""
_LOGIN = base64.b64encode(b"me:password-of-basic").decode()


@pytest.mark.proves("A3")
def test_task_log_shows_no_secret(airflow: AirflowStack, tmp_path: Path) -> None:
    def issue(asked: Asked) -> Answer:
        found = {"token_endpoint": f"{issuer.url}/token", "access_token": "token-of-the-issuer", "expires_in": 60}
        return Answer(body=json.dumps(found).encode())

    path = tmp_path / "jwt"
    path.write_text("token-of-the-file")
    key = json.dumps({"client_id": "me", "client_secret": "secret-of-the-key"})
    with http_peer(issue) as issuer:
        connections: dict[str, dict[str, object]] = {
            "by_token": {"token": "token-of-the-field"},
            "by_file": {"jwt_file": str(path)},
            "by_login": {"login": "me", "password": "password-of-basic"},
            "by_key": {"oauth2_issuer_url": issuer.url, "oauth2_private_key": key},
        }
        for name, each in connections.items():
            airflow.define_connection(name, host="127.0.0.1", **each)
        dag_id = airflow.write_dag_file("show_secrets", _DAG.replace("{conn_ids}", repr(list(connections))))
        run = airflow.run(dag_id).succeeded()
    logs = "".join(file.read_text() for index in range(4) for file in run.log_files("show", map_index=index))
    for name in connections:
        assert f"the end of {name}" in logs
    # Per connection four texts, each printed and logged; the last of them shows no secret anyway.
    assert logs.count("***") >= 4 * 2 * 2
    for secret in ("token-of-the-field", "token-of-the-file", "password-of-basic", "secret-of-the-key"):
        assert secret not in logs
    assert "token-of-the-issuer" not in logs
    assert _LOGIN not in logs
