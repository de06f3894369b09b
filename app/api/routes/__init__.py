"""The operations of this service's own REST interface, a module for each resource."""

from app.api.routes import (
    access,
    calibration,
    challenges,
    corrections,
    faces,
    galleries,
    jobs,
    recognition,
    server,
    subjects,
)

PEOPLE = (subjects, faces, corrections)
MODULES = (recognition, challenges, galleries, calibration, *PEOPLE, access, jobs, server)
ROUTERS = tuple(module.router for module in MODULES)
