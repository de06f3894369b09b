"""The operations of this service's own REST interface, a module for each resource."""

from app.api.routes import access, faces, galleries, jobs, recognition, server, subjects

MODULES = (recognition, galleries, subjects, faces, access, jobs, server)
ROUTERS = tuple(module.router for module in MODULES)
