"""`check` on a broker and on a port where nobody listens."""

from __future__ import annotations

import json

from broker import free_port
from support.brokers import Broker
from support.cli import run


def test_check_tells_the_stages(broker: Broker) -> None:
    found = run("check", "--url", broker.service_url, "--admin-url", broker.admin_url)
    assert (found.code, found.out) == (0, b"TCP ok\nCONNECT ok (Pulsar 4.2.4)\nlookup ok\nadmin ok\n")


def test_check_failed_stage_exits_with_3() -> None:
    found = run("check", "--url", f"pulsar://127.0.0.1:{free_port()}", "--json")
    assert found.code == 3
    shown = json.loads(found.out)
    assert shown["ok"] is False and shown["stages"][-1]["stage"] == "TCP" and "the check failed" in found.err


def test_check_unknown_topic_fails_at_the_lookup(broker: Broker) -> None:
    url = broker.service_url
    found = run("check", "--url", url, "--topic", "persistent://no-tenant/x/y")
    assert found.code == 3 and b"lookup failed" in found.out
