"""Metrics for Prometheus: the counters of `app.api.metrics`, and the present state of the service."""
