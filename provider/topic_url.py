"""Address of a topic's page in an administration console, by a connection's template. May not import Airflow."""

from __future__ import annotations

import re
from urllib.parse import quote

from pulsar_native.topic import TopicName

FIELDS = ("domain", "tenant", "namespace", "topic", "full_name")
_FIELD = re.compile(r"{([^{}]*)}")


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
    """Raise ValueError for a template that is no web address, holds credentials or has unknown names in braces."""
    if not template.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    if "@" in re.split(r"[/?#]", template.partition("://")[2], maxsplit=1)[0]:
        raise ValueError("must not hold credentials: links are shown")
    for found in _FIELD.findall(template):
        if found not in FIELDS:
            raise ValueError(
                f"has the unknown name {{{found}}}; there are {', '.join(f'{{{each}}}' for each in FIELDS)}"
            )
