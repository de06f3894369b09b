"""The REST operation that checks a gallery."""

from __future__ import annotations

from pydantic import Field

from app.access.grants import Scope
from app.api.feature import Feature
from app.api.operation import GALLERY_PATH
from app.api.route import Router
from app.api.schemas.base import Wire
from app.errors import PackageUnavailable
from app.features.checks.comparing import check_index
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.inference.embedders import Embedders

router = Router("galleries")


class GalleryCheck(Wire):
    """Whether the database and the search index contain the same faces with the same vectors."""

    ok: bool
    subjects: int
    faces: int = Field(description="Faces in the database, which is authoritative.")
    indexed: int = Field(description="Faces in the index.")
    problems: list[str] = Field(description="The differences; empty if there are none.")
    examples: list[str] = Field(description="Ids of some faces that are missing or different.")


@router.operation("GET", f"{GALLERY_PATH}/check", scope=Scope.ADMIN)
def check_gallery(embedders: Embedders, galleries: Galleries, gallery: Gallery) -> GalleryCheck:
    """Check a gallery.

    Checks that the database and the search index contain the same faces with the same vectors, and that the gallery's
    model package is the one that made the vectors.
    """
    report = GalleryCheck.model_validate(check_index(galleries, gallery))
    if changed := _changed_package(embedders, gallery):
        return report.model_copy(update={"ok": False, "problems": [*report.problems, changed]})
    return report


def _changed_package(embedders: Embedders, gallery: Gallery) -> str | None:
    """Return a problem if the gallery's templates were made by another model than the one now installed under the
    package's id; None otherwise."""
    try:
        embedders.thresholds(gallery.embedder)
    except PackageUnavailable as error:
        return error.message if error.details.get("reason") == "package_changed" else None
    return None


FEATURE = Feature([router])
