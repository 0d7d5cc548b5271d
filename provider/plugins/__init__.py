"""Airflow plugins of this provider."""
