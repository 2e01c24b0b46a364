"""The metrics service: windows over telemetry, Prometheus, and step-rate signals."""
