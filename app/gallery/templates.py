"""Which packages' templates a gallery's faces have, and SQL for a face's template of a given package.

The faces of a gallery have templates of one package. While the gallery is being re-embedded there are two: a face's row
holds one of them, and the table of second templates the other. Which of the two is in the row depends on when the face
was enrolled and means nothing. What is to be stored or compared is checked here to be what the gallery takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from app.db.schema import FACES, SECOND_TEMPLATES
from app.errors import InvalidInput, PackageMismatch
from app.gallery.records import NewFace, package_mismatch
from app.search.types import IndexSpec
from app.types import Template, Vectors

Package: TypeAlias = str | sa.BindParameter[str]
"""A package's id, or the statement's parameter that takes it."""


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


UNIT_TOLERANCE = 1e-3
"""Largest difference of a template's length from 1."""


def fit_face(face: NewFace, written: Sequence[IndexSpec]) -> NewFace:
    """Return the face with a template for each of these sets. Raises Conflict ``package_mismatch`` if it lacks one, and
    what `check_templates` raises."""
    templates: list[Template] = []
    for spec in written:
        template = face.template_of(spec.key.package)
        if template is None:
            packages = [spec.key.package for spec in written]
            message = f"The gallery takes templates of {' and of '.join(packages)} now."
            raise PackageMismatch(message, expected=packages, given=face.template.package)
        check_templates(spec, [template])
        templates.append(template)
    return replace(face, template=templates[0], second=templates[1] if len(templates) > 1 else None)


def check_templates(wanted: IndexSpec, templates: Sequence[Template]) -> None:
    """Check that the templates are of the wanted package and of length 1.

    Raises Conflict ``package_mismatch``; InvalidInput ``invalid_template``.
    """
    for template in templates:
        if template.package != wanted.key.package:
            raise package_mismatch(wanted, template.package)
        if template.vector.shape != (wanted.dimension,):
            message = f"A template of {wanted.key.package} has {wanted.dimension} numbers."
            raise InvalidInput(message, code="invalid_template")
        if not abs(float(np.linalg.norm(template.vector)) - 1) <= UNIT_TOLERANCE:  # NaN is rejected too
            raise InvalidInput("A template must be a vector of length 1.", code="invalid_template")


def is_unit(vectors: Vectors) -> NDArray[np.bool_]:
    """Return which rows have length 1, (N,). Rows with NaN have not."""
    found: NDArray[np.bool_] = np.abs(np.linalg.norm(vectors, axis=1) - 1) <= UNIT_TOLERANCE
    return found
