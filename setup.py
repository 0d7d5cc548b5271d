"""Build airflow-provider-pulsar: the folder provider/ is the package airflow_provider_pulsar."""

from setuptools import find_namespace_packages, setup

inner = find_namespace_packages("provider", exclude=["*.__pycache__", "__pycache__"])
setup(
    packages=["airflow_provider_pulsar", *(f"airflow_provider_pulsar.{name}" for name in inner)],
    package_dir={"airflow_provider_pulsar": "provider"},
)
