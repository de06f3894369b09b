"""Which of a face's templates is meant: SQL for the one of a given package.

A face's row has one template. While its gallery is being re-embedded there is a second one in a table of its own, of
the other package; which of the two lies where depends on when the face was enrolled, and means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from app.db.schema import FACES, SECOND_TEMPLATES

Package: TypeAlias = str | sa.BindParameter[str]
"""A package's id, or the parameter of a statement that takes it."""


def with_second(faces: sa.FromClause, package: Package) -> sa.FromClause:
    """`faces`, which has FACES in it, with the second template where that is of this package."""
    second = SECOND_TEMPLATES.c
    return faces.outerjoin(SECOND_TEMPLATES, (second.face_key == FACES.c.key) & (second.package == package))


def template_of(package: Package) -> sa.ColumnElement[bytes | None]:
    """The face's template of this package, NULL where it has none; for a query of what `with_second` gives."""
    return sa.case((FACES.c.package == package, FACES.c.template), else_=SECOND_TEMPLATES.c.template)


def faces_by(package: str) -> Sequence[sa.ColumnElement[Any]]:
    """FACES' columns, ``template`` being the one of this package, or the row's own where the face has none of it."""
    found = template_of(package)
    chosen: Mapping[str, sa.ColumnElement[Any]] = {
        "package": sa.case((found.is_not(None), sa.literal(package)), else_=FACES.c.package).label("package"),
        "template": sa.func.coalesce(found, FACES.c.template).label("template"),
    }
    return [chosen.get(column.name, column) for column in FACES.c]
