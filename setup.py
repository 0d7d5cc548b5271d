"""Build airflow-provider-pulsar: the folder provider/ is the package airflow_provider_pulsar.

DOCUMENTATION_URL names the published documentation site. Airflow links to it from the list of providers; it takes the
link from the distribution's metadata, and from nowhere else. Without the variable there is no link.
"""

import os
import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

urls = {
    "Apache Airflow": "https://airflow.apache.org/",
    "Apache Pulsar": "https://pulsar.apache.org/",
    "Apache Spark": "https://spark.apache.org/",
}
if documentation := os.environ.get("DOCUMENTATION_URL"):
    urls["Documentation"] = documentation


def described() -> str:
    """Return the README with the names of the repository's files in place of links to them."""

    def named(link: re.Match[str]) -> str:
        text, path = link.groups()
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    found = re.sub(r"\[([^\[\]]*)\]\((?![a-z]+:|#)([^)#]*)[^)]*\)", named, readme)
    return f"{found}\nThe files named here are those of the source repository.\n"


inner = find_namespace_packages("provider", exclude=["*.__pycache__", "__pycache__"])
setup(
    packages=["airflow_provider_pulsar", *(f"airflow_provider_pulsar.{name}" for name in inner)],
    package_dir={"airflow_provider_pulsar": "provider"},
    project_urls=urls,
    long_description=described(),
    long_description_content_type="text/markdown",
)
