"""Metrics for Prometheus: the counters of `app.api.metrics`, and the current state of the service."""
