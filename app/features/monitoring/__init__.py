"""Metrics for Prometheus: what `app.api.metrics` counts, and how the service is at the moment."""
