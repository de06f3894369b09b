"""Metrics for Prometheus: what `app.api.metrics` counts, and the present state of the service."""
