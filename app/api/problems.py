"""Every error of the REST interface: one table of codes, one shape.

``{"error": {"code", "message", "details"}, "request_id"}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.api.schemas import ErrorAnswer, Problem
from app.errors import LikenessError, Overloaded, Unusable

RETRY_AFTER_S = 1.0
"""The `Retry-After` of an error that has none."""


@dataclass(frozen=True, slots=True)
class Kind:
    status: int
    code: str
    meaning: str


KINDS: tuple[Kind, ...] = (
    Kind(400, "invalid_http", "The request is not HTTP, or its head is longer than 16 KiB."),
    Kind(400, "invalid_json", "The body is not JSON (NaN and Infinity are not JSON either)."),
    Kind(400, "invalid_multipart", "The body is not a well-formed multipart form."),
    Kind(400, "invalid_path", "The path is not percent-encoded UTF-8."),
    Kind(401, "missing_key", "No key came with the request."),
    Kind(401, "wrong_key", "The key is not this server's."),
    Kind(401, "expired_key", "The key has expired."),
    Kind(401, "revoked_key", "The key was revoked."),
    Kind(401, "wrong_sign_in_code", "The sign-in code was used, is older than a minute, or is not this server's."),
    Kind(403, "missing_scope", "The key lacks the scope that the operation needs, which is `details.scope`."),
    Kind(403, "gallery_restricted", "The key is restricted to galleries, and the operation affects all of them."),
    Kind(404, "not_found", "There is no such route."),
    Kind(404, "gallery_not_found", "There is no such gallery, or the key may not see it."),
    Kind(404, "subject_not_found", "There is no such subject in the gallery."),
    Kind(404, "face_not_found", "There is no such face of the subject."),
    Kind(404, "correction_not_found", "There is no such correction of the subject."),
    Kind(404, "crop_not_stored", "The face exists, but its gallery stores no crops."),
    Kind(404, "receipt_not_found", "There is no such receipt, or its erasure is not complete."),
    Kind(404, "review_not_found", "The gallery was never reviewed: start a review first."),
    Kind(404, "finding_not_found", "There is no such finding: its faces were changed, or the gallery reviewed again."),
    Kind(404, "reembedding_not_found", "The gallery is not being moved to another model package."),
    Kind(404, "key_not_found", "There is no such key."),
    Kind(404, "result_not_found", "The job has no result, or not in this server's data folder."),
    Kind(404, "job_not_found", "There is no such job, or the key may not see it."),
    Kind(405, "method_not_allowed", "The route does not take this method."),
    Kind(408, "body_timeout", "The body did not arrive in time."),
    Kind(409, "gallery_exists", "There is already a gallery with this id."),
    Kind(409, "subject_exists", "There is already a subject with this id."),
    Kind(409, "subject_without_faces", "The subject has no enrolled face to compare with."),
    Kind(409, "correction_unlikely", "The photo matches the subject beyond doubt; `confirm` records it all the same."),
    Kind(409, "subject_expired", "The subject has expired and is about to be erased; extend its expiry first."),
    Kind(409, "key_exists", "There is or was a key with this id."),
    Kind(409, "key_revoked", "The key was revoked, which is final."),
    Kind(409, "package_unchanged", "The gallery already has templates of this model package."),
    Kind(409, "crops_missing", "Faces have no stored crop to embed again; `details.without_crop` is their number."),
    Kind(409, "reembedding_exists", "The gallery is already being moved; `details` has the target and the progress."),
    Kind(409, "reembedding_not_switched", "The gallery has not switched to the new model package."),
    Kind(409, "reembedding_switched", "The gallery has already switched to the new model package: roll back first."),
    Kind(
        409,
        "search_unavailable",
        "This server can't search galleries in this way; `details.known` lists the ways it can.",
    ),
    Kind(409, "package_mismatch", "The templates are of another model package than the gallery's."),
    Kind(409, "two_packages", "The gallery is being re-embedded and needs templates of two packages: try again later."),
    Kind(413, "payload_too_large", "The body is larger than the operation accepts."),
    Kind(413, "image_too_large", "The image has more bytes, more pixels or a longer side than is accepted."),
    Kind(415, "unsupported_media_type", "The operation does not accept this content type."),
    Kind(415, "unsupported_image", "The bytes are not an image of a supported format."),
    Kind(421, "host_not_allowed", "The header `Host` is none of the server's names (`LIKENESS_HOSTS`)."),
    Kind(
        422, "invalid_request", "A parameter or field is missing, unknown or out of range; `details.errors` lists them."
    ),
    Kind(
        422,
        "invalid_id",
        "The id is empty, too long, `.` or `..`, or holds control or invisible characters.",
    ),
    Kind(422, "invalid_name", "The name is empty, too long, or holds control or invisible characters."),
    Kind(422, "invalid_search", "The text to search for is too long, or holds control characters."),
    Kind(422, "invalid_cursor", "The cursor is not from this list."),
    Kind(422, "invalid_metadata", "The metadata is no JSON object, too large, or nested too deeply."),
    Kind(422, "invalid_consent", "The note of consent is empty, too long, or holds control characters."),
    Kind(422, "invalid_key_id", "A key's id is 1 to 63 of a-z, 0-9 and inner hyphens."),
    Kind(422, "invalid_rate", "A rate is `10/s`, `600/m`, `600/m:20` (with a burst) or `unlimited`."),
    Kind(422, "invalid_expiry", "The expiry is in the past."),
    Kind(422, "invalid_base64", "The image is not base64."),
    Kind(422, "empty_upload", "The upload is empty."),
    Kind(422, "missing_image", "An image is missing; `details.expected` names the fields."),
    Kind(422, "too_many_images", "There are more images than the operation accepts."),
    Kind(422, "empty_image", "The image has no bytes."),
    Kind(422, "image_too_small", "The image has too few pixels for any face."),
    Kind(422, "invalid_image", "The image is damaged or cut short."),
    Kind(422, "no_face", "No face was found in the image, which `details.image` or `details.rejected` names."),
    Kind(422, "ambiguous_face", "There are several faces, and none is clearly the most prominent."),
    Kind(
        422,
        "not_live",
        "Liveness is required, and the face is judged a spoof or uncertain; `details.live` says which.",
    ),
    Kind(422, "wrong_challenge", "The challenge was used, expired or is for another request; see `details.reason`."),
    Kind(422, "challenge_failed", "A frame does not show its step; `details` has `index`, `step` and `reason`."),
    Kind(422, "low_quality", "The face's quality is too low to enroll; `details.rejected` has the reasons."),
    Kind(422, "duplicate_face", "The face is enrolled already, and the gallery or the request rejects such faces."),
    Kind(422, "face_conflict", "The face matches another subject; `details` says which, if the key may know."),
    Kind(422, "nothing_enrolled", "No image could be enrolled, for different reasons; `details.rejected` lists them."),
    Kind(422, "operating_point_unavailable", "The error rate was never measured; `details` has the measured range."),
    Kind(422, "package_unknown", "No such model package is installed; `details.known` lists those that are."),
    Kind(
        422,
        "package_not_measured",
        "The model package has no operating points, so it decides nothing; measure it first, or give `force`.",
    ),
    Kind(
        422,
        "licence_not_accepted",
        "The model package may not be used commercially; if that is your use, give `accept_non_commercial`.",
    ),
    Kind(422, "package_ambiguous", "Several versions of the model package are installed; name one of them."),
    Kind(429, "overloaded", "Too many requests at once; try again after `Retry-After` seconds."),
    Kind(429, "rate_limited", "The key sends too many requests; try again after `Retry-After` seconds."),
    Kind(429, "too_many_failures", "Too many wrong keys from this address; try again after `Retry-After` seconds."),
    Kind(500, "internal_error", "An error of the server; the log has it under the request id."),
    Kind(503, "not_ready", "The server is starting or stopping."),
    Kind(503, "request_timeout", "The work took too long."),
    Kind(503, "too_many_connections", "The server has no connection or file descriptor left; try again later."),
    Kind(503, "shutting_down", "The server is stopping."),
    Kind(503, "database_busy", "The database is locked; try again after `Retry-After` seconds."),
    Kind(503, "database_unavailable", "The database can't be reached."),
    Kind(503, "sealed_unreadable", "Stored data was altered, or sealed with a key that the server does not have."),
    Kind(
        503,
        "package_unavailable",
        "The model package is not installed, its file is missing or damaged, it computes other templates here than its "
        "manifest says, or galleries have templates of another model of its id; see `details.reason`.",
    ),
    Kind(
        503,
        "liveness_unavailable",
        "Liveness was asked for, and no liveness package is installed, or it can't be used; see `details.reason`.",
    ),
    Kind(
        503,
        "liveness_not_measured",
        "Liveness is required, and its packages were not measured at the server's error rates: measure them first.",
    ),
    Kind(503, "index_unavailable", "Milvus, where vectors are searched, can't be reached."),
    Kind(503, "unusable", "The installation has an error (a model, a device)."),
)
BY_CODE: Mapping[str, Kind] = {kind.code: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class ProblemAnswer:
    """An error as HTTP: status, extra headers and JSON body."""

    status: int
    headers: dict[str, str]
    body: ErrorAnswer


def answer_problem(error: LikenessError, request_id: str) -> ProblemAnswer:
    """Return the HTTP answer to an error; a code that is not in the table is an internal error (500)."""
    kind = BY_CODE.get(error.code) or BY_CODE["unusable" if isinstance(error, Unusable) else "internal_error"]
    headers = {}
    if isinstance(error, Overloaded) or kind.status == 429:
        headers["retry-after"] = str(math.ceil(_seconds(error.details.get("retry_after"))))
    if kind.status == 401:
        headers["www-authenticate"] = 'Bearer realm="Likeness"'
    known = kind.code == error.code
    problem = Problem(
        code=kind.code,
        message=error.message if known else kind.meaning,
        details=plain(dict(error.details)) if known else {},
    )
    return ProblemAnswer(kind.status, headers, ErrorAnswer(error=problem, request_id=request_id))


def plain(value: Any) -> Any:
    """Return ``value`` in JSON's types; NaN becomes null, and bytes their number."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    return str(value)


def problems_table() -> str:
    """Return every code as a Markdown table: status, code, meaning."""
    lines = ["| status | code | meaning |", "|---|---|---|"]
    lines += [f"| {kind.status} | `{kind.code}` | {kind.meaning} |" for kind in KINDS]
    return "\n".join(lines)


def _seconds(value: object) -> float:
    return max(RETRY_AFTER_S, value) if isinstance(value, (int, float)) and math.isfinite(value) else RETRY_AFTER_S
