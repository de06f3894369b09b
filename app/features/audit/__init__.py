"""Reading the audit log, which `app.access.audit` writes."""
