"""Read the audit log, which `app.access.audit` writes, and copy it to a sink."""
