"""Every error code that a client may see, in one table.

The REST interface, both drop-ins, the command line and the page read it; `app/page/codes.js` is written from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class About(StrEnum):
    """The subject of an error, which says what could help."""

    KEY = "key"
    """The caller: another key may be allowed."""
    REQUEST = "request"
    """A parameter or a field: another photo doesn't help."""
    PHOTO = "photo"
    """This photo or upload: another one may work."""
    MISSING = "missing"
    """Something that the request names does not exist."""
    STATE = "state"
    """The stored data forbids the request."""
    BUSY = "busy"
    """Only the moment: the same request may succeed later."""
    SERVER = "server"
    """The server, or something between client and server."""


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """A code: its HTTP status, its subject, and its meaning."""

    status: int
    about: About
    code: str
    meaning: str


KEY, REQUEST, PHOTO, MISSING, STATE, BUSY, SERVER = About

_TABLE: Mapping[tuple[int, About], Mapping[str, str]] = {
    (400, SERVER): {"invalid_http": "The request is not HTTP."},
    (400, REQUEST): {
        "invalid_json": "The body is not JSON (NaN and Infinity are not JSON either).",
        "invalid_multipart": "The body is not a well-formed multipart form.",
        "invalid_path": "The path is not percent-encoded UTF-8.",
    },
    (401, KEY): {
        "missing_key": "No key came with the request.",
        "wrong_key": "The key is not this server's.",
        "expired_key": "The key has expired.",
        "revoked_key": "The key was revoked.",
        "wrong_sign_in_code": "The sign-in code was used, is too old, or is not this server's.",
        "session_ended": "The browser's session was ended, or is too old: sign in again.",
    },
    (403, KEY): {
        "sessions_not_allowed": "This server keeps nobody signed in (`LIKENESS_SESSION_DAYS=0`).",
        "missing_scope": "The key lacks the scope that the operation needs, which is `details.scope`.",
        "gallery_restricted": "The key is restricted to galleries, and the operation affects all of them.",
    },
    (404, SERVER): {"not_found": "There is no such route."},
    (404, MISSING): {
        "gallery_not_found": "There is no such gallery, or the key may not see it.",
        "subject_not_found": "There is no such subject in the gallery.",
        "face_not_found": "There is no such face of the subject.",
        "correction_not_found": "There is no such correction of the subject.",
        "crop_not_stored": "The face exists, but its gallery stores no crops.",
        "receipt_not_found": "There is no such receipt, or its erasure is not complete.",
        "review_not_found": "The gallery was never reviewed: start a review first.",
        "sighting_not_found": "There is no such sighting in the gallery.",
        "stranger_not_found": "There is no such stranger in the gallery.",
        "webhook_not_found": "There is no such webhook.",
        "finding_not_found": "There is no such finding: its faces were changed, or the gallery reviewed again.",
        "reembedding_not_found": "The gallery is not being moved to another model package.",
        "key_not_found": "There is no such key.",
        "result_not_found": "The job has no result, or not in this server's data folder.",
        "package_not_found": "There is no such model package.",
        "job_not_found": "There is no such job, or the key may not see it.",
    },
    (405, SERVER): {"method_not_allowed": "The route does not take this method."},
    (408, SERVER): {"body_timeout": "The body did not arrive in time."},
    (409, STATE): {
        "gallery_exists": "There is already a gallery with this id.",
        "sighting_without_face": "The sighting's face is no longer kept.",
        "sighting_taken": "The sighting's id is another gallery's or camera's.",
        "subject_exists": "There is already a subject with this id.",
        "subject_without_faces": "The subject has no enrolled face to compare with.",
        "subject_expired": "The subject has expired and is about to be erased; try again when it is.",
        "correction_unlikely": "The photo matches the subject beyond doubt; `confirm` records it all the same.",
        "key_exists": "There is or was a key with this id.",
        "key_revoked": "The key was revoked, which is final.",
        "package_unchanged": "The gallery already has templates of this model package.",
        "crops_missing": "Faces have no stored crop to embed again; `details.without_crop` is their number.",
        "reembedding_exists": "The gallery is already being moved; `details` has the target and the progress.",
        "reembedding_not_switched": "The gallery has not switched to the new model package.",
        "reembedding_switched": "The gallery has already switched to the new model package: roll back first.",
        "package_mismatch": "The templates are of another model package than the gallery's.",
        "package_in_use": "The model package is needed: by galleries, by one that moves, or by the server itself; see "
        "`details.reason`.",
        "package_shipped": "The model package was not added here, so it is not removed here.",
        "two_packages": "The gallery is being re-embedded and needs templates of two packages: try again later.",
    },
    (409, REQUEST): {
        "search_unavailable": "This server can't search galleries in this way; `details.known` lists the ways it can."
    },
    (413, PHOTO): {
        "payload_too_large": "The body is larger than the operation accepts.",
        "image_too_large": "The image has more bytes, more pixels or a longer side than is accepted.",
    },
    (414, SERVER): {"uri_too_long": "The URL is longer than 8 KiB."},
    (415, PHOTO): {
        "unsupported_media_type": "The operation does not accept this content type.",
        "unsupported_image": "The bytes are not an image of a supported format.",
    },
    (421, SERVER): {"host_not_allowed": "The header `Host` is none of the server's names (`LIKENESS_HOSTS`)."},
    (422, REQUEST): {
        "invalid_request": "A parameter or field is missing, unknown or out of range; `details.errors` lists them.",
        "invalid_id": "The id is empty, too long, `.` or `..`, or holds control or invisible characters.",
        "invalid_name": "The name is empty, too long, or holds control or invisible characters.",
        "invalid_search": "The text to search for is too long, or holds control characters.",
        "invalid_cursor": "The cursor is not from this list.",
        "invalid_metadata": "The metadata is no JSON object, too large, or nested too deeply.",
        "invalid_consent": "The note of consent is empty, too long, or holds control characters.",
        "invalid_key_id": "A key's id is 1 to 63 of a-z, 0-9 and inner hyphens.",
        "invalid_rate": "A rate is `10/s`, `600/m`, `600/m:20` (with a burst) or `unlimited`.",
        "invalid_expiry": "The expiry is in the past.",
        "webhook_refused": "The server may not send to the webhook's address (`LIKENESS_WEBHOOK_NETWORKS`).",
        "wrong_challenge": "The challenge was used, expired or is for another request; see `details.reason`.",
        "operating_point_unavailable": "The error rate was never measured; `details` has the measured range.",
        "package_unknown": "There is no such model package; `details.known` lists those that there are.",
        "package_ambiguous": "Several versions of the model package are installed; name one of them.",
        "package_not_measured": "The model package has no operating points, so it decides nothing; measure it first, "
        "or give `force`.",
        "licence_not_accepted": "The model package may not be used commercially; if that is your use, give "
        "`accept_non_commercial`.",
    },
    (422, PHOTO): {
        "invalid_base64": "The image is not base64.",
        "empty_upload": "The upload is empty.",
        "missing_image": "An image is missing; `details.expected` names the fields.",
        "too_many_images": "There are more images than the operation accepts.",
        "empty_image": "The image has no bytes.",
        "image_too_small": "The image has too few pixels for any face.",
        "invalid_image": "The image is damaged or cut short.",
        "no_face": "No face was found in the image, which `details.image` or `details.rejected` names.",
        "face_unalignable": "The face's landmarks can't be measured, so it can't be compared with others; "
        "`details.image` or `details.rejected` names the photo.",
        "ambiguous_face": "There are several faces, and none is clearly the most prominent.",
        "not_live": "Liveness is required, and the face is judged a spoof or uncertain; `details.live` says which.",
        "challenge_failed": "A frame does not show its step; `details` has `index`, `step` and `reason`.",
        "low_quality": "The face's quality is too low to enroll; `details.rejected` has the reasons.",
        "duplicate_face": "The face is enrolled already, and the gallery or the request rejects such faces.",
        "face_conflict": "The face matches another subject; `details` says which, if the key may know.",
        "nothing_enrolled": "No image could be enrolled, for different reasons; `details.rejected` lists them.",
    },
    (431, SERVER): {"head_too_large": "The request's head is longer than 16 KiB, or has more than 100 headers."},
    (429, BUSY): {
        "overloaded": "Too many requests at once; try again after `Retry-After` seconds.",
        "rate_limited": "The key sends too many requests; try again after `Retry-After` seconds.",
        "too_many_failures": "Too many wrong keys from this address; try again after `Retry-After` seconds.",
    },
    (500, SERVER): {"internal_error": "An error of the server; the log has it under the request id."},
    (503, BUSY): {
        "not_ready": "The server is starting or stopping.",
        "too_many_connections": "The server has no connection or file descriptor left; try again later.",
        "shutting_down": "The server is stopping.",
        "database_busy": "The database is locked; try again after `Retry-After` seconds.",
    },
    (503, SERVER): {
        "request_timeout": "The work took too long.",
        "database_unavailable": "The database can't be reached.",
        "sealed_unreadable": "Stored data was altered, or sealed with a key that the server does not have.",
        "package_unavailable": "The model package is not installed, its file is missing or damaged, it computes other "
        "templates here than its manifest says, or galleries have templates of another model of its id; see "
        "`details.reason`.",
        "liveness_unavailable": "Liveness was asked for, and no liveness package is installed, or it can't be used; "
        "see `details.reason`.",
        "liveness_not_measured": "Liveness is required, and its packages were not measured at the server's error "
        "rates: measure them first.",
        "workers_unusable": "No process that reads photos could be started.",
        "upload_not_kept": "The server can't write the upload to its disk, which may be full.",
        "index_unavailable": "Milvus, where vectors are searched, can't be reached.",
        "unusable": "The installation has an error (a model, a device).",
    },
}
"""Meanings by code, of each status and subject."""
ERROR_CODES = tuple(
    ErrorCode(status, subject, code, meaning)
    for (status, subject), meanings in _TABLE.items()
    for code, meaning in meanings.items()
)
BY_CODE: Mapping[str, ErrorCode] = {error.code: error for error in ERROR_CODES}
LOCAL: Mapping[str, About] = {
    "file_not_found": About.REQUEST,
    "invalid_setting": About.REQUEST,
    "invalid_source": About.REQUEST,
    "unreachable": About.SERVER,
    "unreadable_answer": About.SERVER,
}
"""Codes of commands and clients, which no server answers."""
_BY_STATUS = {
    400: About.REQUEST,
    401: About.KEY,
    403: About.KEY,
    404: About.MISSING,
    409: About.STATE,
    413: About.PHOTO,
    415: About.PHOTO,
    422: About.REQUEST,
    429: About.BUSY,
}


def about(code: str, status: int | None = None) -> About | None:
    """Return an error's subject; for an unknown code, of a newer server, by status; None if this process raised it."""
    if kind := BY_CODE.get(code):
        return kind.about
    return LOCAL.get(code) or (None if status is None else _BY_STATUS.get(status, About.SERVER))


def javascript() -> str:
    """Return the table as the page's module `codes.js`."""
    meanings = {error.code: error.about for error in ERROR_CODES} | dict(LOCAL)
    lines = "".join(f'  {code}: "{about}",\n' for code, about in meanings.items())
    head = "/** What each error code is about. Written from app/error_codes.py: change it there. */"
    return f"{head}\n\n/** @type {{Record<string, string>}} */\nexport const ABOUT = {{\n{lines}}};\n"
