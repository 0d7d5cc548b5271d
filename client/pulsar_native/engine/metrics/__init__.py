"""What happens, counted: figures for the application and the reports, and the instruments of OpenTelemetry."""
