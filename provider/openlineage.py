"""OpenLineage metadata of the operators: datasets with counts and schema, and a run facet with message ids.

Imports OpenLineage, so operators import this module only when its provider asks them. Rules: a topic is the dataset
(`pulsar://host:port`, full topic name); a file or folder is (`file`, path) or (scheme and bucket, key), by the naming
rules of OpenLineage. Inputs and outputs are known at the start and carry counts once the task has ended; a failed try
reports what it had done. No secret and no payload is in any facet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, OutputDatasetFacet, RunFacet, schema_dataset
from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet
from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

from airflow_provider_pulsar.assets.pulsar import cluster_uri
from airflow_provider_pulsar.lineage import first_and_last
from pulsar_native.topic import TopicName

# Message ids of more partitions are left out of the run facet.
_MOST_PARTITIONS = 100
_PATH = re.compile(r"(?:([A-Za-z][\w+.-]*):(?://([^/]*))?)?(.*)", re.DOTALL)
_AZURE = ("abfs", "abfss", "wasb", "wasbs")
# Comments of columns, whose texts may have commas and angle brackets.
_COMMENT = re.compile(r"""\s+COMMENT\s+('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")""", re.IGNORECASE | re.DOTALL)
_COLUMN = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s:]+)\s*:?\s*(.*\S)\s*", re.DOTALL)
_KEPT = (
    "count",
    "stored",
    "duplicates",
    "failed",
    "bytes",
    "stop_reason",
    "subscription",
    "schema",
    "manifest",
    "rows",
)


@attrs.define
class PulsarRunFacet(RunFacet):
    """Result of a task on topics; the facet `pulsar` of its run."""

    connection: str
    """Id of the Airflow connection."""
    result: dict[str, Any] = attrs.field(factory=dict)
    """Counts of the manifest: messages, duplicates, failures, bytes."""
    partitions: dict[str, Any] = attrs.field(factory=dict)
    """First and last message id of each partition, of at most 100 partitions."""


def topic_name(service_url: str, topic: str) -> tuple[str, str]:
    """Return namespace and name of a topic's dataset; raises ValueError for a wrong address or name."""
    return cluster_uri(service_url), TopicName.parse(topic).base.full


def path_name(path: str) -> tuple[str, str]:
    """Return namespace and name of the dataset of a file or folder, local or of an object storage."""
    # Not as a URL: # and ? are part of a name.
    match = _PATH.fullmatch(path)
    assert match is not None
    scheme, place, name = (match[1] or "file").lower(), match[2] or "", match[3]
    if scheme == "file":
        return "file", name.rstrip("/") or "/"
    owner, _, host = place.rpartition("@")
    # Azure has the container before the account's host, other storages credentials.
    container = f"{owner.partition(':')[0]}@" if owner and scheme in _AZURE else ""
    return f"{scheme}://{container}{host}", name.strip("/") or "/"


def input_dataset(
    name: tuple[str, str], result: Mapping[str, Any] | None = None, fields: Sequence[tuple[str, str]] = ()
) -> InputDataset:
    """Return a dataset that was read, with statistics once there is a result."""
    facets: dict[str, InputDatasetFacet] = {}
    if result:
        rows, size = _number(result, "count", "rows"), _number(result, "bytes")
        facets["inputStatistics"] = InputStatisticsInputDatasetFacet(rowCount=rows, size=size)
    return InputDataset(*name, facets=_schema(fields), inputFacets=facets)


def output_dataset(
    name: tuple[str, str], result: Mapping[str, Any] | None = None, fields: Sequence[tuple[str, str]] = ()
) -> OutputDataset:
    """Return a dataset that was written, with statistics once there is a result."""
    facets: dict[str, OutputDatasetFacet] = {}
    if result:
        rows, size = _number(result, "stored", "count", "rows"), _number(result, "bytes")
        facets["outputStatistics"] = OutputStatisticsOutputDatasetFacet(rowCount=rows, size=size)
    return OutputDataset(*name, facets=_schema(fields), outputFacets=facets)


def lineage(
    connection: str,
    result: Mapping[str, Any] | None,
    *,
    inputs: Sequence[InputDataset] = (),
    outputs: Sequence[OutputDataset] = (),
) -> OperatorLineage[Any, Any]:
    """Return the metadata of a task; the run facet is there once there is a result."""
    facets = {}
    if result:
        parts = result.get("partitions")
        named = list(parts.items())[:_MOST_PARTITIONS] if isinstance(parts, Mapping) else []
        facets["pulsar"] = PulsarRunFacet(
            connection=connection,
            result={name: result[name] for name in _KEPT if result.get(name) is not None},
            partitions={name: first_and_last(part) for name, part in named},
        )
    return OperatorLineage(inputs=list(inputs), outputs=list(outputs), run_facets=facets)


# ---- columns ---------------------------------------------------------------------------------------------------------


def avro_fields(definition: object) -> list[tuple[str, str]]:
    """Return names and types of an Avro record definition, a dict or its JSON; nothing for another one."""
    if isinstance(definition, str):
        try:
            definition = json.loads(definition)
        except ValueError:
            return []
    fields = definition.get("fields") if isinstance(definition, Mapping) else None
    if not isinstance(fields, list):
        return []
    named = [each for each in fields if isinstance(each, Mapping) and "name" in each]
    return [(str(each["name"]), _avro_type(each.get("type"))) for each in named]


def ddl_fields(text: str) -> list[tuple[str, str]]:
    """Return names and types of the columns of a Spark DDL text, without their comments."""
    found, depth, start, is_quoted = [], 0, 0, False
    text = _COMMENT.sub("", text)
    for place, sign in enumerate(f"{text},"):
        is_quoted ^= sign == "`"
        if is_quoted:
            continue
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            match = _COLUMN.fullmatch(text[start:place])
            if match is not None:
                name = match[1]
                found.append((name[1:-1].replace("``", "`") if name.startswith("`") else name, match[2]))
            start = place + 1
    return found


def _avro_type(given: object) -> str:
    if isinstance(given, list):
        return " | ".join(_avro_type(each) for each in given)
    if isinstance(given, Mapping):
        return str(given.get("logicalType") or given.get("type"))
    return str(given)


def _schema(fields: Sequence[tuple[str, str]]) -> dict[str, DatasetFacet]:
    if not fields:
        return {}
    named = [schema_dataset.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in fields]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=named)}


def _number(result: Mapping[str, Any], *names: str) -> int | None:
    return next((value for name in names if isinstance(value := result.get(name), int)), None)
