"""Metrics: statistics for the application and the logs, and the instruments of OpenTelemetry."""
