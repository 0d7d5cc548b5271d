"""Extra links of tasks: the page of a topic in an administration console, and the Spark UI of a load.

Rules: a link is computed in the task's process when the task has ended, kept as an XCom, and read by the api-server
from there, which needs no connection. It holds no credentials. Without a place to link to it is empty, and no error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import attrs
from airflow.sdk import BaseOperatorLink

from pulsar_native.topic import TopicName

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

FIELDS = ("domain", "tenant", "namespace", "topic", "full_name")
_FIELD = re.compile(r"{([^{}]*)}")


@attrs.define()
class PulsarTopicLink(BaseOperatorLink):
    """Link "Pulsar topic": the page that `topic_url_template` of the connection gives for the task's topic."""

    name = "Pulsar topic"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, empty without a template or a topic. Blocks for reading the connection."""
        return topic_link(operator)


@attrs.define()
class SparkUILink(BaseOperatorLink):
    """Link "Spark UI": the address of the web interface that the load's driver has logged, or its tracking URL."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, empty if the driver ran elsewhere or told none."""
        hook = getattr(operator, "_load_hook", None)
        return str(getattr(hook, "ui_url", None) or "")


def topic_link(operator: Any) -> str:
    """Return the URL of an operator's topic, empty without one."""
    from airflow_provider_pulsar.hooks.pulsar import PulsarHook

    topic = getattr(operator, "topic", None)
    if isinstance(topic, list | tuple):
        topic = topic[0] if topic else None
    if not isinstance(topic, str) or not topic:
        return ""
    hook = PulsarHook(operator.pulsar_conn_id)
    template = hook.topic_url_template()
    return "" if template is None else topic_url(template, hook.topic_name(topic))


def topic_url(template: str, topic: str) -> str:
    """Return the URL of a topic's page.

    :param template: a URL with {domain}, {tenant}, {namespace}, {topic} and {full_name}, which are percent-encoded.
    :param topic: the topic, in any spelling.

    Raises ValueError for another name in braces.
    """
    name = TopicName.parse(topic)
    values = {
        "domain": name.domain,
        "tenant": name.tenant,
        "namespace": name.namespace_portion,
        "topic": name.local_name,
        "full_name": name.full,
    }
    check_template(template)
    return _FIELD.sub(lambda match: quote(values[match[1]], safe=""), template)


def check_template(template: str) -> None:
    """Raise ValueError for a template that is no web address or has unknown names in braces."""
    if not template.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    for found in _FIELD.findall(template):
        if found not in FIELDS:
            raise ValueError(
                f"has the unknown name {{{found}}}; there are {', '.join(f'{{{each}}}' for each in FIELDS)}"
            )
