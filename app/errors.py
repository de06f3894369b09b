"""The errors of this program, as one tree; `app.api.wire` maps each to an HTTP status.

LikenessError
├── InvalidInput            the caller must send something else
│   ├── EmptyImage  InvalidImage  UnsupportedImage  ImageTooLarge  ImageTooSmall  MissingImage
│   ├── NoFace  AmbiguousFace  LowQuality  Unalignable  NotLive
│   ├── FileMissing  InvalidSource
│   └── OperatingPointUnavailable
├── NotFound                something named in the call doesn't exist
│   └── GalleryNotFound  SubjectNotFound  FaceNotFound
├── Conflict                something named in the call exists already, or its state forbids the call
│   └── PackageMismatch  TwoPackages  ReembeddingIncomplete
├── Overloaded              try again later
│   └── DatabaseBusy
│       └── TransactionEnded  by PostgreSQL, in favour of another, for example in a deadlock
└── Unusable                the installation is at fault (a model package, a setting, a device)
    ├── InvalidSetting
    ├── DatabaseUnavailable  SealedUnreadable
    ├── PackageUnavailable  ModelNotLoadable  DeviceUnavailable
    └── LivenessUnavailable

There is a class for each error that some code handles; others differ only by ``code``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self


class LikenessError(Exception):
    """Base of all errors of this program; ``code`` is for clients to switch on, ``details`` is JSON."""

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
    """The bytes are damaged or cut short. This is never reported as "no face"."""

    code = "invalid_image"


class UnsupportedImage(InvalidInput):
    """The bytes aren't an image, or not of a supported format."""

    code = "unsupported_image"


class ImageTooLarge(InvalidInput):
    code = "image_too_large"


class ImageTooSmall(InvalidInput):
    """The image has too few pixels for any face."""

    code = "image_too_small"


class NoFace(InvalidInput):
    code = "no_face"


class AmbiguousFace(InvalidInput):
    """Several faces, and none is clearly the photo's subject."""

    code = "ambiguous_face"


class LowQuality(InvalidInput):
    code = "low_quality"


class Unalignable(InvalidInput):
    """The face's landmarks could not be confirmed, so that it cannot be compared."""

    code = "face_unalignable"


class NotLive(InvalidInput):
    """Liveness is required, and the face is a spoof or uncertain."""

    code = "not_live"


class OperatingPointUnavailable(InvalidInput):
    """The requested error rate is outside the measured range."""

    code = "operating_point_unavailable"


class MissingImage(InvalidInput):
    code = "missing_image"


class FileMissing(InvalidInput):
    """A file named on the command line doesn't exist or can't be read."""

    code = "file_not_found"


class InvalidSource(InvalidInput):
    """A file to import has a format or columns that aren't supported."""

    code = "invalid_source"


class NotFound(LikenessError):
    """``code`` says what is missing."""

    code = "not_found"


class GalleryNotFound(NotFound):
    code = "gallery_not_found"

    @classmethod
    def of(cls, gallery_id: str, nearest: str | None = None) -> Self:
        """Return the error for a gallery that doesn't exist, or that the key may not see; ``nearest`` is one that it
        may see, and that was probably meant."""
        message = f"There is no gallery {gallery_id!r}."
        if nearest is None:
            return cls(message, gallery=gallery_id)
        return cls(f"{message} Did you mean {nearest}?", gallery=gallery_id, nearest=nearest)


class SubjectNotFound(NotFound):
    code = "subject_not_found"


class FaceNotFound(NotFound):
    code = "face_not_found"


class Conflict(LikenessError):
    """The request contradicts the current state; ``code`` says how."""

    code = "conflict"


class PackageMismatch(Conflict):
    """Templates of different model packages can't be compared."""

    code = "package_mismatch"


class TwoPackages(Conflict):
    """The gallery is being re-embedded, so new faces need templates of two packages."""

    code = "two_packages"


class ReembeddingIncomplete(Conflict):
    code = "reembedding_incomplete"


class Overloaded(LikenessError):
    code = "overloaded"


class DatabaseBusy(Overloaded):
    code = "database_busy"


class TransactionEnded(DatabaseBusy):
    pass


class Unusable(LikenessError):
    code = "unusable"


class InvalidSetting(Unusable):
    code = "invalid_setting"


class DatabaseUnavailable(Unusable):
    code = "database_unavailable"


class SealedUnreadable(Unusable):
    """Stored data was altered, or sealed with a key that isn't there."""

    code = "sealed_unreadable"


class PackageUnavailable(Unusable):
    """The model package isn't installed, or its file is missing or damaged."""

    code = "package_unavailable"


class LivenessUnavailable(Unusable):
    """Liveness was asked for, but no package can judge it."""

    code = "liveness_unavailable"


class PackageTemplatesDiffer(Unusable):
    """The model package makes other templates on this device than those in its manifest."""

    code = "package_templates_differ"


class ModelNotLoadable(Unusable):
    """ONNX Runtime can't open the model."""

    code = "model_not_loadable"


class DeviceUnavailable(Unusable):
    """The requested GPU can't be used."""

    code = "device_unavailable"
