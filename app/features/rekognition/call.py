"""A request, and the steps that several operations share."""

from __future__ import annotations

import binascii
from dataclasses import dataclass

from app.access.audit import AuditEntry
from app.access.grants import Grant, Scope
from app.api.body import decode_base64
from app.api.components import Components
from app.errors import FaceNotFound, GalleryNotFound
from app.face.quality import QualityLevel
from app.features.rekognition import errors
from app.features.rekognition.answers import largest_first
from app.features.rekognition.errors import RekognitionError
from app.features.rekognition.requests import ImageSource
from app.features.similarity import AnsweredSimilarity, of_fmr
from app.gallery.records import Gallery, StoredFace
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.recognition.operations import Operations
from app.types import Face, Photo, Sizes

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""Rekognition's limit for images, in bytes; the server's own limit applies too."""
FACE_SIMILARITY = 0.8
"""Rekognition's default threshold of searches and comparisons, as a similarity from 0 to 1."""
LEVELS = {
    "NONE": QualityLevel.NONE,
    "LOW": QualityLevel.LOW,
    "MEDIUM": QualityLevel.MEDIUM,
    "HIGH": QualityLevel.HIGH,
    "AUTO": QualityLevel.MEDIUM,
}
"""`AUTO` is the default level of enrollment."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request, and the parts of the server that it uses. ``name`` is Rekognition's name of the operation; ``region``
    is the AWS region that the client signed for, which resource names contain."""

    components: Components
    grant: Grant
    entry: AuditEntry
    name: str
    region: str

    @property
    def operations(self) -> Operations:
        return self.components.operations

    @property
    def galleries(self) -> Galleries:
        return self.components.galleries

    @property
    def store(self) -> Store:
        return self.components.store

    def gallery(self, collection: str) -> Gallery:
        """Return a collection's gallery. Raises NotFound (``gallery_not_found``), also if the key may not see it."""
        self.entry.gallery = collection
        if not self.grant.sees(collection):
            raise GalleryNotFound.of(collection)
        return self.store.gallery(collection)

    def image(self, source: ImageSource) -> bytes:
        """Return an image's bytes.

        Raises RekognitionError: InvalidParameterException, InvalidS3ObjectException, ImageTooLargeException,
        SerializationException.
        """
        if (source.Bytes is None) == (source.S3Object is None):
            raise RekognitionError(errors.INVALID_PARAMETER, "An image is either Bytes or S3Object.")
        if source.Bytes is None:
            message = "Unable to get object metadata from S3: this server reads no S3 objects. Send the image as Bytes."
            raise RekognitionError(errors.INVALID_S3, message)
        limit = min(MAX_IMAGE_BYTES, self.components.limits.image_bytes)
        if len(source.Bytes) // 4 * 3 > limit + 2:
            raise _too_large(limit)
        try:
            data = decode_base64(source.Bytes.encode("ascii"))
        except (binascii.Error, UnicodeEncodeError):
            raise RekognitionError(errors.SERIALIZATION, "Bytes is not base64.", code="invalid_base64") from None
        if not data:
            raise RekognitionError(errors.INVALID_PARAMETER, "Value at 'image.bytes': must have at least 1 byte.")
        if len(data) > limit:
            raise _too_large(limit)
        return data

    def similarity_asked(self, threshold: float | None) -> float:
        """Return a request's threshold, in percent, as a similarity (0 to 1). By default it is the higher of
        Rekognition's default and the similarity at the server's FMR, so that the decision is no laxer than that of
        `identify`."""
        return max(FACE_SIMILARITY, of_fmr(self.operations.defaults.fmr)) if threshold is None else threshold / 100

    def answered(self, gallery: Gallery, threshold: float | None, users: Sizes | None = None) -> AnsweredSimilarity:
        """Return the scale and threshold of answered similarities, for single faces, or for users if ``users`` gives
        their numbers of faces.

        ``threshold``: the request's, in percent (`similarity_asked`).
        """
        thresholds = self.operations.thresholds_in(gallery, gallery.embedder)
        return AnsweredSimilarity.of(
            thresholds, self.similarity_asked(threshold), exact=Scope.TEMPLATES in self.grant.allowed, sizes=users
        )

    def count_faces(self, count: int) -> None:
        """Count each face that was compared with enrolled faces as a request of the key (`Guard.count_faces`)."""
        self.components.guard.count_faces(self.grant, count)

    def stored(self, gallery: Gallery, face_id: str) -> StoredFace:
        """Return the enrolled face to search with.

        Raises RekognitionError (InvalidParameterException) if there is no such face.
        """
        try:
            return self.store.face(gallery, face_id)
        except FaceNotFound:
            raise RekognitionError(errors.INVALID_PARAMETER, "faceId was not found in the collection.") from None


def good_enough(photo: Photo, quality: str) -> list[Face]:
    """Return the photo's faces that can be compared and pass a quality filter, largest first."""
    minimum = LEVELS[quality].minimum
    return [face for face in largest_first(photo.faces) if face.template is not None and face.quality.score >= minimum]


def no_faces() -> RekognitionError:
    return RekognitionError(
        errors.INVALID_PARAMETER, "There are no faces in the image. Should be at least 1.", code="no_face"
    )


def _too_large(limit: int) -> RekognitionError:
    return RekognitionError(errors.IMAGE_TOO_LARGE, f"An image may have at most {limit} bytes.", code="image_too_large")
