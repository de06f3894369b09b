"""The handlers of `app.api.endpoints`, a module for each resource."""

from app.api.routes import audit, faces, galleries, jobs, keys, recognition, reembedding, review, server, subjects

ROUTERS = tuple(
    module.router
    for module in (recognition, galleries, review, reembedding, subjects, faces, keys, audit, jobs, server)
)
