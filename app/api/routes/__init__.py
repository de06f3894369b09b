"""The handlers of `app.api.endpoints`, a module for each resource."""

from app.api.routes import (
    audit,
    calibration,
    faces,
    galleries,
    jobs,
    keys,
    recognition,
    reembedding,
    review,
    server,
    subjects,
)

MODULES = (recognition, galleries, calibration, review, reembedding, subjects, faces, keys, audit, jobs, server)
ROUTERS = tuple(module.router for module in MODULES)
