"""Extra links of tasks: the page of a topic in an administration console, and the Spark UI of an application.

Rules: a link is computed in the task's process when the task has ended, kept as an XCom, and read by the api-server
from there, which needs no connection. It holds no credentials. Without a place to link to it is empty, and no error.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.topic_url import topic_url

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

_log = logging.getLogger(__name__)


class PulsarTopicLink(BaseOperatorLink):
    """Link "Pulsar topic": the page that `topic_url_template` of the connection gives for the task's topic."""

    name = "Pulsar topic"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, empty without a template, a topic or the connection. Blocks for reading the connection."""
        try:
            return topic_link(operator)
        except (AirflowException, ValueError) as error:
            # A missing connection or a wrong topic has failed the task already, with its own error.
            _log.debug("No link to the topic: %s", error)
            return ""


class SparkUILink(BaseOperatorLink):
    """Link "Spark UI": the address of the web interface that the driver has logged, or its tracking URL."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL, empty if the driver ran elsewhere or told none."""
        hook = getattr(operator, "_hook", None)
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
