"""The examples of the README files and the documentation pages run as they stand, against the real broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.brokers import Broker
from support.examples import PAGES, Example, examples, read_page


@pytest.mark.parametrize("example", examples("client"), ids=str)
def test_example_runs_and_prints(example: Example, broker: Broker) -> None:
    program = example.program(broker.service_url, broker.admin_url)
    assert broker.service_url in program or "pulsar://" not in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert example.prints in done.stdout


def test_transactions_page_names_brokers_without_them(default_broker: Broker) -> None:
    (example,) = (
        each for each in examples("client") if "new_transaction" in each.code and "transactions.md" in each.page
    )
    program = example.program(default_broker.service_url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert "OperationNotSupported: " in done.stderr.splitlines()[-1] and "Timeout" not in done.stderr


def test_examples_cover_every_kind() -> None:
    found = [each for path in PAGES if path.exists() for each in read_page(path)]
    assert {"airflow", "spark", "client"} == {each.kind for each in found}
    assert sum(bool(each.prints) for each in found) >= 15


def test_not_run_without_reason_raises(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run:   -->\n```python\nx = 1\n```\n")
    with pytest.raises(ValueError, match="says nothing"):
        read_page(page)
