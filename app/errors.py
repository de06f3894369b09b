"""What can go wrong, as one tree; `app.api.problems` maps each to an HTTP status.

LikenessError
├── InvalidInput            the caller must send something else
│   ├── EmptyImage  InvalidImage  UnsupportedImage  ImageTooLarge  ImageTooSmall
│   ├── NoFace  AmbiguousFace  LowQuality
│   └── OperatingPointUnavailable
├── NotFound                the thing named is not there
├── Conflict                the thing named is already there, or belongs to another model package
├── Overloaded              try again later
└── Unusable                the installation is at fault (a model package, a setting, a device)
"""

from __future__ import annotations

from collections.abc import Mapping


class LikenessError(Exception):
    """Base of every error that is ours; ``code`` is what clients switch on, ``details`` is JSON."""

    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.details: Mapping[str, object] = details


class InvalidInput(LikenessError):
    code = "invalid_request"


class EmptyImage(InvalidInput):
    code = "empty_image"


class InvalidImage(InvalidInput):
    """The bytes are damaged or cut short. Never to be mistaken for "no face"."""

    code = "invalid_image"


class UnsupportedImage(InvalidInput):
    """The bytes are no image, or one of a kind that is not read."""

    code = "unsupported_image"


class ImageTooLarge(InvalidInput):
    code = "image_too_large"


class ImageTooSmall(InvalidInput):
    """No face fits into so few pixels."""

    code = "image_too_small"


class NoFace(InvalidInput):
    code = "no_face"


class AmbiguousFace(InvalidInput):
    """Several faces, none of them clearly the photo's subject."""

    code = "ambiguous_face"


class LowQuality(InvalidInput):
    code = "low_quality"


class OperatingPointUnavailable(InvalidInput):
    """An error rate was asked for that was never measured."""

    code = "operating_point_unavailable"


class NotFound(LikenessError):
    """``code`` says what is missing: ``gallery_not_found``, ``subject_not_found``, ``face_not_found``..."""

    code = "not_found"


class Conflict(LikenessError):
    """``code`` says which: ``gallery_exists``, ``subject_exists``, ``package_mismatch``..."""

    code = "conflict"


class Overloaded(LikenessError):
    code = "overloaded"


class Unusable(LikenessError):
    code = "unusable"
