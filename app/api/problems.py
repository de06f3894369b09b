"""Every error the REST interface answers with: one table of codes, one shape.

``{"error": {"code", "message", "details"}, "request_id"}``; `python -m app.api.problems` prints
the table of docs/reference/errors.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.api.schemas import ErrorAnswer, Problem
from app.errors import LikenessError, Overloaded, Unusable

RETRY_AFTER_S = 1.0
"""What a client is told to wait when the error does not say."""


@dataclass(frozen=True, slots=True)
class Kind:
    status: int
    code: str
    meaning: str


KINDS: tuple[Kind, ...] = (
    Kind(400, "invalid_http", "The request is not HTTP, or its head is longer than 16 KiB."),
    Kind(400, "invalid_json", "The body is not JSON (NaN and Infinity are not JSON either)."),
    Kind(400, "invalid_multipart", "The body is not the multipart form its content type promises."),
    Kind(400, "invalid_path", "The path is not percent-encoded UTF-8."),
    Kind(401, "missing_key", "No key came with the request."),
    Kind(401, "wrong_key", "The key is not this server's."),
    Kind(401, "expired_key", "The key was this server's, and has expired."),
    Kind(401, "revoked_key", "The key was this server's, and was revoked."),
    Kind(403, "missing_scope", "The key lacks the scope that the operation needs; `details.scope` names it."),
    Kind(403, "gallery_restricted", "The key is restricted to galleries, and the operation is about all of them."),
    Kind(404, "not_found", "There is no such route."),
    Kind(404, "gallery_not_found", "There is no such gallery, or none that the key may see."),
    Kind(404, "subject_not_found", "There is no such subject in the gallery."),
    Kind(404, "face_not_found", "There is no such face of the subject."),
    Kind(404, "crop_not_stored", "The face is there, but its gallery keeps no crops."),
    Kind(404, "receipt_not_found", "There is no such receipt, or its erasure is still in work."),
    Kind(404, "reembedding_not_found", "The gallery is on its way to no other model package."),
    Kind(404, "key_not_found", "There is no such key."),
    Kind(404, "result_not_found", "The job has left no file, or not in this server's data folder."),
    Kind(404, "job_not_found", "There is no such job, or none that the key may see."),
    Kind(405, "method_not_allowed", "The route is there, the method is not."),
    Kind(408, "body_timeout", "The body did not arrive in time."),
    Kind(409, "gallery_exists", "A gallery of this id is there already."),
    Kind(409, "subject_exists", "A subject of this id is there already."),
    Kind(409, "subject_without_faces", "The subject has no enrolled face to compare with."),
    Kind(409, "subject_expired", "The subject's time is over, and it is about to be erased; give it more first."),
    Kind(409, "key_exists", "A key of this id is there already, or was."),
    Kind(409, "key_revoked", "The key was revoked; no new secret brings it back."),
    Kind(409, "package_unchanged", "The gallery has templates of this model package already."),
    Kind(409, "crops_missing", "Faces have no crop to embed again; `details.without_crop` says how many."),
    Kind(409, "reembedding_exists", "The gallery is on its way already; `details` says where to and how far."),
    Kind(409, "reembedding_not_switched", "The gallery has not switched to the new model package."),
    Kind(409, "reembedding_switched", "The gallery has switched to the new model package: roll back first."),
    Kind(
        409,
        "search_unavailable",
        "Galleries can't be searched by this kind here; `details.known` lists those that are.",
    ),
    Kind(409, "package_mismatch", "The templates are of another model package than the gallery's."),
    Kind(409, "two_packages", "The gallery is being re-embedded, and what came has templates of one package: wait."),
    Kind(413, "payload_too_large", "The body is larger than the route takes."),
    Kind(413, "image_too_large", "The image has more bytes, more pixels or a longer side than is taken."),
    Kind(415, "unsupported_media_type", "The content type is none that the route takes."),
    Kind(415, "unsupported_image", "The bytes are no image, or one of a kind that is not read."),
    Kind(
        422, "invalid_request", "A parameter or field is missing, unknown or out of range; `details.errors` says which."
    ),
    Kind(422, "invalid_id", "The id is empty, too long, `.` or `..`, or holds control characters."),
    Kind(422, "invalid_name", "The name is empty, too long, or holds control characters."),
    Kind(422, "invalid_search", "The text to search for is too long, or holds control characters."),
    Kind(422, "invalid_cursor", "The cursor is none that this list gave."),
    Kind(422, "invalid_metadata", "The metadata is no JSON object, or larger or nested deeper than is taken."),
    Kind(422, "invalid_consent", "The note of consent is empty, too long, or holds control characters."),
    Kind(422, "invalid_key_id", "A key's id is 1 to 63 of a-z, 0-9 and inner hyphens."),
    Kind(422, "invalid_rate", "A rate is `10/s`, `600/m`, `600/m:20` (with a burst) or `unlimited`."),
    Kind(422, "invalid_expiry", "The key or subject would have expired already."),
    Kind(422, "invalid_base64", "The image is not base64."),
    Kind(422, "empty_upload", "There is nothing in the upload."),
    Kind(422, "missing_image", "An image is missing; `details.expected` names the fields."),
    Kind(422, "too_many_images", "More images than the route takes."),
    Kind(422, "empty_image", "The image has no bytes."),
    Kind(422, "image_too_small", "The image has too few pixels for any face."),
    Kind(422, "invalid_image", "The image is damaged or cut short."),
    Kind(422, "no_face", "No face was found in the image (`details.image` or `details.rejected` says which)."),
    Kind(422, "ambiguous_face", "Several faces, none of them clearly the photo's subject."),
    Kind(422, "low_quality", "The face is too poor to enroll; `details.rejected` has the reasons."),
    Kind(422, "nothing_enrolled", "No image could be taken, for different reasons; `details.rejected` lists them."),
    Kind(422, "operating_point_unavailable", "The error rate was never measured; `details` has the measured range."),
    Kind(422, "package_unknown", "No such model package is installed; `details.known` lists those that are."),
    Kind(422, "package_ambiguous", "Several versions of the model package are installed; name one of them."),
    Kind(429, "overloaded", "Too many requests at once; try again after `Retry-After` seconds."),
    Kind(429, "rate_limited", "The key asks too often; try again after `Retry-After` seconds."),
    Kind(429, "too_many_failures", "Too many wrong keys from this address; try again after `Retry-After` seconds."),
    Kind(500, "internal_error", "The server's fault; the log has it under the request id."),
    Kind(503, "not_ready", "The server is starting or stopping."),
    Kind(503, "request_timeout", "The work took longer than a request may."),
    Kind(503, "shutting_down", "The server is stopping."),
    Kind(503, "database_busy", "The database is locked by others; try again after `Retry-After` seconds."),
    Kind(503, "database_unavailable", "The database can't be reached at the moment."),
    Kind(503, "sealed_unreadable", "Stored data was altered, or sealed with a key that the server lacks."),
    Kind(
        503,
        "package_unavailable",
        "The model package is not installed, its file is missing or damaged, or it makes other templates here than its "
        "manifest says; `details.reason` says which.",
    ),
    Kind(503, "index_unavailable", "Milvus, where vectors are searched, can't be reached at the moment."),
    Kind(503, "unusable", "The installation is at fault (a model, a device)."),
)
BY_CODE: Mapping[str, Kind] = {kind.code: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class ProblemAnswer:
    """An error as HTTP: status, extra headers, and the JSON body of the one shape."""

    status: int
    headers: dict[str, str]
    body: ErrorAnswer


def answer_problem(error: LikenessError, request_id: str) -> ProblemAnswer:
    """The HTTP answer of an error of ours; a code that the table lacks is a fault of the server's (500)."""
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
    """``value`` as JSON can say it: no NaN, no bytes, no arrays, nothing but the plain types."""
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
    """Every code as a Markdown table: status, code, meaning."""
    lines = ["| status | code | meaning |", "|---|---|---|"]
    lines += [f"| {kind.status} | `{kind.code}` | {kind.meaning} |" for kind in KINDS]
    return "\n".join(lines)


def _seconds(value: object) -> float:
    return max(RETRY_AFTER_S, value) if isinstance(value, (int, float)) and math.isfinite(value) else RETRY_AFTER_S


if __name__ == "__main__":
    sys.stdout.write(problems_table() + "\n")
