"""Notes of runs on batch entries that they consumed in part, for later runs of the same task, as XComs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

    from pulsar_native.jobs.batch import CutEntries
    from pulsar_native.jobs.consuming import ConsumeJob, ConsumeSettings

CUT_KEY = "consume_cut_entries"
"""The XCom for the next run: which messages of batch entries, cut by `max_messages`, this run holds.

Of earlier runs Airflow gives that of the highest logical date; those without one come first or last, by database, and
of them that which stored last. So these have a key of their own, with `_undated`, and cleared ones another, with
`_repeated`, of which all are read.
"""


def cut_notes(context: Context) -> list[Any]:
    """Return the notes of earlier runs of this task on partly consumed entries, the latest among them."""
    ti: Any = context["ti"]
    pull = getattr(ti, "xcom_pull", None)
    if pull is None:
        return []
    of_last = [
        pull(task_ids=ti.task_id, key=key, map_indexes=ti.map_index, include_prior_dates=True)
        for key in (CUT_KEY, f"{CUT_KEY}_undated")
    ]
    repeated = pull(task_ids=ti.task_id, key=_repeated_key(ti.map_index), include_prior_dates=True)
    return [*of_last, *(repeated if isinstance(repeated, list) else [repeated])]


def _repeated_key(map_index: int | None) -> str:
    # Airflow gives those of all mapped tasks.
    return f"{CUT_KEY}_repeated" + ("" if map_index in (None, -1) else f"_{map_index}")


def cut_entries(notes: Sequence[object], settings: ConsumeSettings) -> CutEntries:
    """Return the entries of notes, as far as they are of this subscription, for the job's `cut`."""
    from pulsar_native.jobs.batch import CutEntries

    return CutEntries(notes, [str(settings.cluster), settings.subscription])


def push_cut(context: Context, job: ConsumeJob) -> None:
    """Note the entries that this run holds in part, for later runs."""
    if not job.cut:
        return
    ti, run, key = context["ti"], context.get("dag_run"), CUT_KEY
    if job.is_repeated:
        key = _repeated_key(ti.map_index)
    elif run is not None and run.logical_date is None:
        key = f"{CUT_KEY}_undated"
    ti.xcom_push(key=key, value=job.cut)
