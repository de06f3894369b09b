"""The handlers of `app.api.endpoints`, a module for each resource."""

from app.api.routes import (
    audit,
    calibration,
    challenges,
    corrections,
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

PEOPLE = (subjects, faces, corrections)
MODULES = (recognition, challenges, galleries, calibration, review, reembedding, *PEOPLE, keys, audit, jobs, server)
ROUTERS = tuple(module.router for module in MODULES)
