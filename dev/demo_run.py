"""Run the example DAG once, inside Airflow's environment, for one month; called by demo.py.

A run of the same month is replaced, and with it what its tasks know of the messages they published.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path


def main(month: str) -> int:
    """Run and return the exit code; the last task's result goes to DEMO_RESULT."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.utils.state import DagRunState

    folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    bag = BundleDagBag(dag_folder=str(folder), bundle_path=folder, bundle_name="dags-folder")
    if bag.import_errors:
        print(bag.import_errors, file=sys.stderr)
        return 1
    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(bag, "dags-folder", None)
    dag = bag.dags["flights_to_parquet"]
    started = time.monotonic()
    # A run at the moment a month ends owns that month.
    year, number = map(int, month.split("-"))
    end = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)
    # The id of the run comes from run_after: the same for the same month.
    run = dag.test(run_after=end, logical_date=end)
    for instance in run.get_task_instances():
        seconds = (instance.end_date - instance.start_date).total_seconds() if instance.end_date else 0
        print(f"demo: {instance.task_id:<22} {instance.state} in {seconds:.1f} s", flush=True)
    if run.state != DagRunState.SUCCESS:
        return 1
    result = run.get_task_instance("compare").xcom_pull(task_ids="compare")
    result["seconds"] = time.monotonic() - started
    Path(os.environ["DEMO_RESULT"]).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
