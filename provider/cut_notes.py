"""Notes of runs on batch entries that they consumed in part, for later runs of the same task, as XComs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

    from pulsar_native.jobs.batch import CutEntries
    from pulsar_native.jobs.consume_settings import ConsumeSettings
    from pulsar_native.jobs.consuming import ConsumeJob

CUT_KEY = "consume_cut_entries"
"""The XCom for the next run: which messages of batch entries, cut by `max_messages`, this run holds.

Of earlier runs Airflow gives that of the highest logical date; those without one come first or last, by database, and
of them that which stored last. So these have a key of their own, with `_undated`, and cleared ones another, with
`_repeated`, of which all are read. Those of a mapped task have the key of what is consumed, and all are read, too: its
index is a place in a list that may be another one in the next run.
"""


def cut_notes(context: Context, settings: ConsumeSettings) -> list[Any]:
    """Return the notes of earlier runs of this task on partly consumed entries, the latest among them."""
    ti: Any = context["ti"]
    pull = getattr(ti, "xcom_pull", None)
    if pull is None:
        return []
    pull = partial(pull, task_ids=ti.task_id, include_prior_dates=True)
    if _is_mapped(ti):
        return _all(pull(key=_mapped_key(settings)))
    of_last = [pull(key=key, map_indexes=ti.map_index) for key in (CUT_KEY, f"{CUT_KEY}_undated")]
    return [*of_last, *_all(pull(key=f"{CUT_KEY}_repeated"))]


def _is_mapped(ti: Any) -> bool:
    return ti.map_index not in (None, -1)


def _mapped_key(settings: ConsumeSettings) -> str:
    pattern = "" if settings.pattern is None else settings.pattern.pattern
    consumed = [settings.cluster, settings.subscription, sorted(settings.topics), pattern]
    return f"{CUT_KEY}_{hashlib.sha256(json.dumps(consumed).encode()).hexdigest()[:16]}"


def _all(pulled: Any) -> list[Any]:
    # Without a map index, Airflow gives a list, but of a single one that itself.
    return pulled if isinstance(pulled, list) else [pulled]


def cut_entries(notes: Sequence[object], settings: ConsumeSettings) -> CutEntries:
    """Return the entries of notes, as far as they are of this subscription, for the job's `cut`."""
    from pulsar_native.jobs.batch import CutEntries

    return CutEntries(notes, [str(settings.cluster), settings.subscription])


def push_cut(context: Context, job: ConsumeJob, settings: ConsumeSettings) -> None:
    """Note the entries that this run holds in part, for later runs."""
    if not job.cut:
        return
    ti, run, key = context["ti"], context.get("dag_run"), CUT_KEY
    if _is_mapped(ti):
        key = _mapped_key(settings)
    elif job.is_repeated:
        key = f"{CUT_KEY}_repeated"
    elif run is not None and run.logical_date is None:
        key = f"{CUT_KEY}_undated"
    ti.xcom_push(key=key, value=job.cut)
