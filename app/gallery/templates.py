"""Which packages' templates a gallery's faces have, and SQL for a face's template of a given package.

The faces of a gallery have templates of one package. While the gallery is being re-embedded there are two: a face's row
holds one of them, and the table of second templates the other. Which of the two is in the row depends on when the face
was enrolled and means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa

from app.db.schema import FACES, SECOND_TEMPLATES

Package: TypeAlias = str | sa.BindParameter[str]
"""A package's id, or the statement's parameter that takes it."""


@dataclass(frozen=True, slots=True)
class TemplateSet:
    """The templates that one package made of a gallery's faces."""

    package: str
    dimension: int
    generation: int = 0
    """A new number each time a re-embedding begins to fill the set. An index or snapshot of an earlier generation holds
    other faces, even if the package is the same."""


@dataclass(frozen=True, slots=True)
class TemplatePlan:
    """The template sets of a gallery that answer searches, and those that every new face is written to.

    The gallery's own set comes first in both. A set answers only if it covers all faces (except those without a crop).
    """

    answering: tuple[TemplateSet, ...]
    written: tuple[TemplateSet, ...]

    @classmethod
    def of_one(cls, own: TemplateSet) -> TemplatePlan:
        """Return the plan of a gallery that isn't being re-embedded."""
        return cls((own,), (own,))

    @property
    def own(self) -> TemplateSet:
        return self.answering[0]

    @property
    def packages(self) -> tuple[str, ...]:
        """Ids of the packages of which each new face needs a template, the gallery's own first."""
        return tuple(one.package for one in self.written)

    def find(self, package: str) -> TemplateSet | None:
        return next((one for one in (*self.answering, *self.written) if one.package == package), None)


def join_templates(faces: sa.FromClause, package: Package) -> sa.FromClause:
    """Return `faces`, which includes FACES, joined with the second templates of this package."""
    second = SECOND_TEMPLATES.c
    return faces.outerjoin(SECOND_TEMPLATES, (second.face_key == FACES.c.key) & (second.package == package))


def template_column(package: Package) -> sa.ColumnElement[bytes | None]:
    """Return the face's template of this package, or NULL; for queries over `join_templates`."""
    return sa.case((FACES.c.package == package, FACES.c.template), else_=SECOND_TEMPLATES.c.template)


def face_columns(package: str) -> Sequence[sa.ColumnElement[Any]]:
    """Return FACES' columns with the template of this package, or the row's own if the face has none of it."""
    found = template_column(package)
    chosen: Mapping[str, sa.ColumnElement[Any]] = {
        "package": sa.case((found.is_not(None), sa.literal(package)), else_=FACES.c.package).label("package"),
        "template": sa.func.coalesce(found, FACES.c.template).label("template"),
    }
    return [chosen.get(column.name, column) for column in FACES.c]
