"""Provider information for Airflow: the content of provider.yaml.

May not import Airflow: this runs while Airflow reads its configuration. Rule: provider.yaml is the only source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def get_provider_info() -> dict[str, Any]:
    """Return the content of provider.yaml; called by Airflow through the entry point. Blocks for one file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content = yaml.load(Path(__file__).with_name("provider.yaml").read_bytes(), Loader=loader)
    assert isinstance(content, dict)
    return content
