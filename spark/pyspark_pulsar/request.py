"""Load request: the JSON document given to `load`, checked before Spark starts.

Pure values: no I/O, no Spark. Rules: unknown names raise with the most similar known one. A request never has a secret,
since it is on a command line and in the manifest. Two requests are equal if their canonical text is.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.jobs import interval as intervals
from pulsar_native.jobs import validation
from pyspark_pulsar.options import ALL_FIELDS, ReadOptions, parse_time
from pyspark_pulsar.schema import METADATA_COLUMNS, metadata_among, named_twice
from pyspark_pulsar.tables import IDENTITY, TableOptions

_PARTS = (
    "source", "value", "derive", "metadata", "output", "manifest", "replay", "time_zone", "run", "interval", "since",
    "map_index", "commits", "subscription", "min_rows", "allow_empty", "attempt",
)  # fmt: skip
AUTO = "auto"
FORMATS = ("raw", "json", "avro", AUTO)
# Parts of `value` with format auto: options of the data source.
_AUTO_ONLY = {"mode": "mode", "corrupt_column": "columnNameOfCorruptRecord"}
REPLAYS = ("auto", "never", "require")
SPARK, PYARROW = "spark", "pyarrow"
WRITERS = (AUTO, SPARK, PYARROW)
_STARTS, _ENDS = ("startingtime", "startingoffsets"), ("endingtime", "endingoffsets")
# Scheme and authority alone, such as s3a://bucket.
_ROOT = re.compile(r"([^/:]+:)?//[^/]+")
_DEFAULT_METADATA = ("__key", "__publishTime", "__eventTime")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """Request of one load: source, decoding and output. Immutable; `source` are options of the data source.

    `interval` is "bounded" (both ends are in `source`), "all", or "last_success": from the end of the last load in the
    commit log `commits` to the last message at planning. `subscription` names a durable subscription of the load;
    `table` describes the output in a table format, None for Parquet at `path`; `writer` is who writes its files.
    `value_options` are the data source's options of decoding by the registered schema (value.format auto);
    `min_rows` and `allow_empty` define failures; `attempt` marks the manifest of one try. `map_index` is the place of
    the load among several of one `run`; it may be another one when the run is repeated.
    """

    source: Mapping[str, str]
    path: str
    manifest: str
    table: TableOptions | None = None
    partition_by: tuple[str, ...] = ()
    writer: str = AUTO
    value_format: str = "raw"
    value_schema: str | None = None
    value_options: Mapping[str, str] = field(default_factory=dict)
    derive: Mapping[str, str] = field(default_factory=dict)
    metadata: tuple[str, ...] = _DEFAULT_METADATA
    replay: str = "auto"
    time_zone: str = "UTC"
    run: str | None = None
    map_index: int | None = None
    interval: str = "bounded"
    commits: str | None = None
    subscription: str | None = None
    min_rows: int = 0
    allow_empty: bool = False
    attempt: str | None = None

    @staticmethod
    def parse(text: str) -> LoadRequest:
        """Return the checked request; raises `InvalidConfiguration` naming the part and the fix. Does no I/O."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InvalidConfiguration(f"The request is not valid JSON: {error}") from error
        top = _object(document, "request")
        _known(top, "request", _PARTS)
        source = _texts(top, "source", "request")
        _check_source(source)
        interval = _interval(top, source)
        value = _object(top.get("value", {}), "value")
        _known(value, "value", ("format", "schema", *_AUTO_ONLY))
        output = _object(top.get("output", {}), "output")
        _known(output, "output", ("path", "partition_by", "writer", "format", "table", "mode", "replace_where"))
        path = _text(output, "path", "output").rstrip("/")
        if not path.strip(":/") or path.endswith((":", "/.", "/..")) or _ROOT.fullmatch(path):
            raise InvalidConfiguration("output.path must name a folder of its own: it is replaced as a whole")
        _check_colons("output.path", path)
        metadata = _metadata(top)
        table = TableOptions.parse(output, source, metadata)
        if table is not None and interval == intervals.LAST_SUCCESS:
            raise InvalidConfiguration('"since": "last_success" writes Parquet only: leave out output.format')
        made = LoadRequest(
            source=source,
            path=path,
            manifest=_manifest(top),
            table=table,
            partition_by=_partition_by(output),
            writer=_choice(output, "writer", "output", WRITERS),
            value_format=_choice(value, "format", "value", FORMATS),
            value_schema=_text(value, "schema", "value") if value.get("schema") is not None else None,
            value_options=_value_options(value),
            derive=_derive(top),
            metadata=metadata,
            replay=_choice(top, "replay", "request", REPLAYS),
            time_zone=_text(top, "time_zone", "request") if "time_zone" in top else "UTC",
            run=_optional(top, "run"),
            map_index=_count(top, "map_index") if top.get("map_index") is not None else None,
            interval=interval,
            commits=_commits(top, interval),
            subscription=_optional(top, "subscription"),
            min_rows=_count(top, "min_rows"),
            allow_empty=_flag(top, "allow_empty"),
            attempt=_optional(top, "attempt"),
        )
        if made.writer == PYARROW and (reason := made.needs_spark):
            raise InvalidConfiguration(f"output.writer is pyarrow, but {reason}")
        made._check_read(ReadOptions.parse({**source, **made.column_options()}))
        return made if made.manifest else replace(made, manifest=beside(path + made.suffix))

    @property
    def suffix(self) -> str:
        """Suffix for the names of files beside the output: one of the interval where a table holds several."""
        if self.table is None:
            return ""
        return "-" + hashlib.sha256(json.dumps(self.canonical(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def needs_spark(self) -> str | None:
        """Reason why only Spark can make the rows or folders of the output, None if there is none."""
        if self.value_format not in ("raw", AUTO):
            return f"value.format {self.value_format} is decoded by Spark"
        if self.derive:
            return "derive has expressions of Spark"
        if self.partition_by and self.table is None:
            return "output.partition_by has folders written by Spark"
        return None

    @property
    def takes_registered(self) -> bool:
        """Return True if the load itself decodes by the definition that is registered at planning."""
        return self.value_format in ("json", "avro") and self.value_schema is None

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise `InvalidConfiguration` for columns of the output that are doubled, missing, or all of the folders'."""
        folded = {name.lower() for name in columns}
        missing = [name for name in self.partition_by if name.lower() not in folded]
        if double := named_twice(columns):
            raise InvalidConfiguration(f"The output would have columns twice: {', '.join(double)}")
        if missing:
            raise InvalidConfiguration(
                f"output.partition_by names {', '.join(missing)}; the columns are {', '.join(columns)}"
            )
        if len(self.partition_by) == len(columns):
            raise InvalidConfiguration("output.partition_by names all columns: leave one out, for the files")

    def _check_read(self, read: ReadOptions) -> None:
        """Raise for what the options of the read, which may be more than those of the plan, do not allow."""
        if self.takes_registered and read.admin_url is None:
            raise InvalidConfiguration("Decoding by the registered schema needs admin.url, or give value.schema")
        if self.value_format == "raw":
            # Those of any other format are known with the schema.
            self.check_columns([*read.columns, *(name for name in self.derive if name.lower() != "value")])

    def column_options(self) -> dict[str, str]:
        """Return the options of the read that say which columns it has: their names, and the decoding of values."""
        decoding = {"valueFormat": AUTO, **self.value_options} if self.value_format == AUTO else {}
        return {"columns": ",".join(self.source_columns()), **decoding}

    def read_options(self) -> ReadOptions:
        """Return the options of the planning read."""
        return ReadOptions.parse(self.source)

    def ended_before(self, planned_at: datetime) -> bool:
        """Return True if the request has a fixed end, and the plan was made after that end."""
        options = self.read_options()
        if options.ending_time is not None:
            return planned_at.timestamp() * 1000 >= options.ending_time + options.time_slack_ms
        return options.ending_offsets.default is None

    def source_columns(self) -> tuple[str, ...]:
        """Return the columns that the data source must return."""
        value = ALL_FIELDS if self.value_format == AUTO else "value"
        return (value, *IDENTITY, *(name for name in self.metadata if name not in IDENTITY))

    def canonical(self) -> dict[str, Any]:
        """Return the parts that determine the rows of a load, for the manifest: equal requests have equal documents."""
        return {
            # The place of the credentials says nothing about the rows, and may have another name in each try.
            "source": {name: text for name, text in sorted(self.source.items()) if name.lower() != "credentialsref"},
            "value": {"format": self.value_format, "schema": self.value_schema, **self.value_options},
            "derive": dict(self.derive),
            "metadata": list(self.metadata),
            "output": {
                "path": self.path,
                "partition_by": list(self.partition_by),
                **({} if self.table is None else self.table.canonical()),
            },
            "time_zone": self.time_zone,
            "run": self.run,
            **({} if self.interval == "bounded" else {"interval": self.interval}),
        }


def split_path(path: str) -> tuple[str, str]:
    """Return the folder of a path with the separator after it, empty for a relative name, and the last part."""
    folder, separator, name = path.rstrip("/").rpartition("/")
    return folder + separator, name


def beside(path: str) -> str:
    """Return the default place of the manifest: beside the output, hidden from readers of the folder."""
    folder, name = split_path(path)
    return f"{folder}.{name}.manifest.json"


def _check_colons(part: str, path: str) -> None:
    """Raise for a path, or one with another name in its folder, that Hadoop would take for a scheme and a path."""
    first, last = path.partition("/")[0], path.rpartition("/")[2]
    if ":" in last or ":" in first[:-1]:
        raise InvalidConfiguration(
            f"{part} is {path!r}: Hadoop takes a colon in the first or last part for the end of a scheme, as in file:/ "
            "or s3a://. Leave it out of a relative path, and write a run's id as {{ run_id | replace(':', '') }}"
        )


def _interval(top: Mapping[str, Any], source: Mapping[str, str]) -> str:
    """Return the kind of the interval; raises for a half-open, empty, reversed or doubly given one."""
    folded = {name.lower(): (name, value) for name, value in source.items()}
    starts, ends = ([folded[name] for name in names if name in folded] for names in (_STARTS, _ENDS))
    whole, since = top.get("interval"), top.get("since")
    if whole not in (None, intervals.ALL) or since not in (None, intervals.LAST_SUCCESS) or (whole and since):
        raise InvalidConfiguration('Give at most one of "interval": "all" and "since": "last_success"')
    if whole and (starts or ends):
        raise InvalidConfiguration(f'"interval": "all" takes no bounds: leave out {(starts + ends)[0][0]}')
    if since and ends:
        raise InvalidConfiguration(
            f'"since": "last_success" ends at the last message there is: leave out {ends[0][0]} (a start is for the '
            "first load)"
        )
    try:
        _check_bounds(starts, ends, needs_both=not (whole or since))
    except ValueError as error:
        raise InvalidConfiguration(str(error)) from None
    return intervals.ALL if whole else intervals.LAST_SUCCESS if since else "bounded"


_Bounds = list[tuple[str, str]]


def _check_bounds(starts: _Bounds, ends: _Bounds, *, needs_both: bool) -> None:
    for name, value in (*starts, *ends):
        if intervals.is_missing(value):
            validation.refuse(f"{name} is {value!r}, which is no bound: {intervals.CHOICES}")
    if needs_both and not (starts and ends):
        missing = [what for what, given in (("startingTime", starts), ("endingTime", ends)) if not given]
        validation.refuse(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: {intervals.CHOICES}; where one "
            'end is open on purpose, say so: startingOffsets="earliest" or endingOffsets="latest"'
        )
    times = dict(item for item in (*starts, *ends) if item[0].lower().endswith("time"))
    if len(times) == 2:
        (first, start), (last, end) = times.items()
        intervals.check_order(parse_time(first, start), parse_time(last, end), names=(first, last))


def _manifest(top: Mapping[str, Any]) -> str:
    place = _optional(top, "manifest") or ""
    _check_colons("manifest", place)
    return place


def _commits(top: Mapping[str, Any], interval: str) -> str | None:
    given = _optional(top, "commits")
    if interval != intervals.LAST_SUCCESS:
        if given is not None:
            raise InvalidConfiguration('commits needs "since": "last_success": other loads have no commit log')
        return None
    if given is None:
        # Successive loads have paths and runs of their own: no request shows whether a log is that of another job.
        raise InvalidConfiguration(
            '"since": "last_success" needs commits, the folder of the commit log, such as /warehouse/.orders.commits: '
            "one for each job, as a load begins where the last one in it ended"
        )
    folder = given.rstrip("/")
    # Only its documents have names of their own.
    _check_colons("commits", f"{folder}/")
    return folder


def _check_source(source: Mapping[str, str]) -> None:
    given: dict[str, str] = {}
    for name in source:
        if (other := given.setdefault(name.lower(), name)) != name:
            raise InvalidConfiguration(f"source has one option twice, {other} and {name}: leave one out")
    for name in ("columns", "includemetadata"):
        if name in given:
            raise InvalidConfiguration(f"source must not choose columns ({name}): name them in metadata")
    for name, instead in (("valueformat", "format"), ("mode", "mode"), ("columnnameofcorruptrecord", "corrupt_column")):
        if name in given:
            raise InvalidConfiguration(f"source must not decode values ({given[name]}): set value.{instead}")
    if (name := "pushdownpredicate") in given:
        raise InvalidConfiguration(f"source has no query's filter to apply ({given[name]}): a load reads all rows")
    ReadOptions.parse(source)


def _value_options(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of decoding by the registered schema; raises for parts that the format does not have."""
    is_auto = value.get("format") == AUTO
    if value.get("schema") is not None and value.get("format") not in ("json", "avro"):
        reason = "auto takes the schema that the topic has" if is_auto else "set value.format to one of them"
        raise InvalidConfiguration(f"value.schema is for json and avro: {reason}")
    found = {}
    for part, option in _AUTO_ONLY.items():
        if value.get(part) is not None:
            if not is_auto:
                raise InvalidConfiguration(f"value.{part} needs value.format auto")
            found[option] = _text(value, part, "value")
    return found


def _derive(top: Mapping[str, Any]) -> dict[str, str]:
    """Return the further columns; raises for a name that is empty, doubled, or that of a metadata column."""
    given = _texts(top, "derive", "request") if top.get("derive") is not None else {}
    if not all(name.strip() for name in given):
        raise InvalidConfiguration("derive has an expression without a name: give the column a name")
    if double := named_twice(list(given)):
        raise InvalidConfiguration(f"derive names columns twice: {', '.join(double)}")
    if taken := metadata_among(given):
        raise InvalidConfiguration(
            f"derive must not replace metadata columns ({', '.join(taken)}): they identify the message of a row; give "
            "the columns other names"
        )
    return given


def _partition_by(output: Mapping[str, Any]) -> tuple[str, ...]:
    names = _names(output, "partition_by", "output")
    if double := named_twice(names):
        raise InvalidConfiguration(f"output.partition_by names columns twice: {', '.join(double)}")
    return names


def _metadata(top: Mapping[str, Any]) -> tuple[str, ...]:
    if "metadata" not in top:
        return _DEFAULT_METADATA
    names = _names(top, "metadata", "request")
    for name in names:
        if name not in METADATA_COLUMNS:
            raise InvalidConfiguration(f"metadata: there is no column {name!r}{_hint(name, METADATA_COLUMNS)}")
    return tuple(dict.fromkeys(names))


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidConfiguration(f"{what} must be a JSON object")
    return value


def _known(given: Mapping[str, Any], what: str, names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise InvalidConfiguration(f"{what} has no part {name!r}{_hint(name, names)}")


def _hint(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(names)}"


def _text(given: Mapping[str, Any], name: str, what: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidConfiguration(f"{what}.{name} must be a text that is not empty")
    return value.strip()


def _optional(given: Mapping[str, Any], name: str) -> str | None:
    return _text(given, name, "request") if given.get(name) is not None else None


def _count(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidConfiguration(f"request.{name} must be a whole number of at least 0, not {value!r}")
    return value


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise InvalidConfiguration(f"request.{name} must be true or false, not {value!r}")
    return value


def _texts(given: Mapping[str, Any], name: str, what: str) -> dict[str, str]:
    value = given.get(name)
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InvalidConfiguration(f"{what}.{name} must be a JSON object of texts")
    return value


def _names(given: Mapping[str, Any], name: str, what: str) -> tuple[str, ...]:
    value = given.get(name, [])
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise InvalidConfiguration(f"{what}.{name} must be a list of column names")
    return tuple(value)


def _choice(given: Mapping[str, Any], name: str, what: str, choices: Sequence[str]) -> str:
    value = given.get(name, choices[0])
    if value not in choices:
        raise InvalidConfiguration(f"{what}.{name} must be one of {', '.join(choices)}, not {value!r}")
    return str(value)
