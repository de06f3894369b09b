"""Faces get a template of each package that their gallery stores, which a re-embedding may change meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import ParamSpec, TypeVar

from app.errors import PackageMismatch, TwoPackages
from app.gallery.records import Gallery, NewFace
from app.inference.embedders import Embedders
from app.types import Template

ATTEMPTS = 3
"""How often something is tried while its gallery's packages change under it."""
T = TypeVar("T")
Arguments = ParamSpec("Arguments")


def retried(work: Callable[Arguments, T]) -> Callable[Arguments, T]:
    """Return a function that calls ``work`` again if the gallery changed its packages meanwhile, by a re-embedding."""

    @wraps(work)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> T:
        for _ in range(ATTEMPTS - 1):
            try:
                return work(*args, **kwargs)
            except (PackageMismatch, TwoPackages):
                continue
        return work(*args, **kwargs)

    return run


def complete(embedders: Embedders, home: Gallery, faces: Sequence[NewFace]) -> list[NewFace]:
    """Return the faces with a template of each package that the gallery stores now, made from their crops.

    A gallery's packages may change before the faces are written; writing then raises Conflict ``package_mismatch``
    (see `retried`).
    """
    own, *others = home.packages
    whole = [replace(face, template=one) for face, one in zip(faces, _by(embedders, faces, own), strict=True)]
    for other in others:
        whole = [replace(face, second=one) for face, one in zip(whole, _by(embedders, faces, other), strict=True)]
    return whole


def _by(embedders: Embedders, faces: Sequence[NewFace], package: str) -> list[Template]:
    """Return the faces' templates of this package, made from their crops where they have none."""
    lacking = [face.crop for face in faces if face.template_of(package) is None and face.crop is not None]
    if not lacking:
        return [face.template_of(package) or face.template for face in faces]
    with embedders.use(package) as used:
        made = iter(used.embedder.embed(lacking)[0])
    return [face.template_of(package) or next(made, face.template) for face in faces]
