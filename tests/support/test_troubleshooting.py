"""Page of errors by their text: each text is one that the sources can print."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("client/pulsar_native", "provider", "spark/pyspark_pulsar")
# Texts of OpenSSL, Spark and Python, which the sources pass on.
OTHERS = (
    "CERTIFICATE_VERIFY_FAILED",
    "DATA_SOURCE_NOT_FOUND",
    "ModuleNotFoundError: No module named 'pyspark_pulsar'",
)


def quoted() -> list[str]:
    """Return the texts of the page's first column."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    return re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)


def test_troubleshooting_texts_are_those_of_the_sources() -> None:
    code = "\n".join(each.read_text() for folder in SOURCES for each in sorted((ROOT / folder).rglob("*.py")))
    # A text may go on in the next line of the source, as an f-string or not.
    printed = re.sub(r'"\s*\n\s*f?"', "", code)
    texts = quoted()
    assert len(texts) >= 15 and set(OTHERS) <= set(texts)
    parts = [part.strip(" :,") for text in texts if text not in OTHERS for part in text.split("…")]
    missing = [part for part in parts if part and part not in printed]
    assert not missing, f"the page has texts that nothing prints: {missing}"
