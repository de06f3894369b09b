"""Templates checked against what a gallery takes: of its packages, of their dimension, of length 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidInput
from app.gallery.records import Gallery, NewFace, package_mismatch, packages_missing
from app.gallery.templates import TemplatePlan
from app.types import Template, Vectors

UNIT_TOLERANCE = 1e-3
"""Largest difference of a template's length from 1."""


def fit_face(face: NewFace, plan: TemplatePlan) -> NewFace:
    """Return the face with exactly the templates that `plan` writes. Raises Conflict ``package_mismatch`` if one is
    missing."""
    templates = [face.template_of(package) for package in plan.packages]
    first, *others = templates
    second = others[0] if others else None
    if first is None or None in others:
        raise packages_missing(plan.packages, face.template.package)
    return replace(face, template=first, second=second)


def check_templates(gallery: Gallery, templates: Sequence[Template]) -> Vectors:
    """Return the templates' vectors, (N, D) float32, if all are of the gallery's package and of length 1.

    Raises Conflict ``package_mismatch``; InvalidInput ``invalid_template``.
    """
    for template in templates:
        if template.package != gallery.embedder:
            raise package_mismatch(gallery, template.package)
        if template.vector.shape != (gallery.dimension,):
            message = f"A template of {gallery.embedder} has {gallery.dimension} numbers."
            raise InvalidInput(message, code="invalid_template")
        if not abs(float(np.linalg.norm(template.vector)) - 1) <= UNIT_TOLERANCE:  # NaN is rejected too
            raise InvalidInput("A template must be a vector of length 1.", code="invalid_template")
    if not templates:
        return np.empty((0, gallery.dimension), np.float32)
    return np.stack([template.vector for template in templates]).astype(np.float32)


def is_unit(vectors: Vectors) -> NDArray[np.bool_]:
    """Return which rows have length 1, (N,). Rows with NaN have not."""
    found: NDArray[np.bool_] = np.abs(np.linalg.norm(vectors, axis=1) - 1) <= UNIT_TOLERANCE
    return found
