"""Images and files in requests and answers: their fields and media types."""

from __future__ import annotations

from dataclasses import dataclass

TAR_TYPE, GZIP_TYPES = "application/x-tar", ("application/gzip", "application/x-gzip")
LINES_TYPE, CSV_TYPE, JPEG_TYPE = "application/x-ndjson", "text/csv", "image/jpeg"


@dataclass(frozen=True, slots=True)
class ImageFields:
    """The image fields of a body: these names, each once; or, if ``many``, one name any number of times."""

    names: tuple[str, ...]
    many: bool = False

    @property
    def raw(self) -> bool:
        """Return whether the body may be the image itself."""
        return len(self.names) == 1


ONE_IMAGE = ImageFields(("image",))
TWO_IMAGES = ImageFields(("image1", "image2"))
MANY_IMAGES = ImageFields(("images",), many=True)


@dataclass(frozen=True, slots=True)
class File:
    """A body or an answer that is a file, in one of ``media_types``."""

    media_types: tuple[str, ...]
    description: str
    field: str | None = None
    """A body's name in a multipart form."""


ARCHIVE = File(
    (TAR_TYPE, *GZIP_TYPES, "application/octet-stream", "multipart/form-data"), "A tar, or tar.gz.", field="archive"
)
