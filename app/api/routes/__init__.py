"""The operations of this service's own REST interface, a module for each resource."""

from app.access.grants import Scope
from app.api.routes import (
    access,
    calibration,
    challenges,
    corrections,
    faces,
    galleries,
    jobs,
    recognition,
    reembedding,
    review,
    server,
    subjects,
)

PEOPLE = (subjects, faces, corrections)
MODULES = (recognition, challenges, galleries, calibration, review, reembedding, *PEOPLE, access, jobs, server)
ROUTERS = tuple(module.router for module in MODULES)
OPERATIONS = [operation for router in ROUTERS for operation in router.operations]


def scopes_table() -> str:
    """Return the operations of each scope as a Markdown table."""
    lines = ["| scope | operations |", "|---|---|"]
    for scope in (None, *Scope):
        some = [one for one in OPERATIONS if one.scope == scope and not one.public and one.authenticate is None]
        names = [f"`{one.name}`{'*' if one.unrestricted else ''}" for one in some]
        lines.append(f"| {f'`{scope}`' if scope else 'any'} | {', '.join(names)} |")
    return "\n".join(lines)
