"""Every operation of the REST interface, declared once. `app.api.routes` has their handlers."""

from __future__ import annotations

from types import NoneType

from app.access.grants import Scope
from app.api import schemas
from app.api.operation import MANY_IMAGES, ONE_IMAGE, TWO_IMAGES, AnyOperation, File, Operation

READ, RECOGNIZE, ENROLL, ADMIN = Scope.READ, Scope.RECOGNIZE, Scope.ENROLL, Scope.ADMIN
GALLERIES = "/v1/galleries"
GALLERY = f"{GALLERIES}/{{gallery}}"
CALIBRATION = f"{GALLERY}/calibration"
CHALLENGES = f"{GALLERY}/challenges"
REEMBED = f"{GALLERY}/reembed"
REVIEW = f"{GALLERY}/review"
FINDING = f"{REVIEW}/{{finding}}"
SUBJECTS = f"{GALLERY}/subjects"
SUBJECT = f"{SUBJECTS}/{{subject}}"
FACES = f"{SUBJECT}/faces"
FACE = f"{FACES}/{{face_id}}"
CORRECTIONS = f"{SUBJECT}/corrections"
JOBS = "/v1/jobs"
JOB = f"{JOBS}/{{job}}"
KEYS = "/v1/keys"
KEY = f"{KEYS}/{{key}}"
RECEIPTS = "/v1/receipts"
SIGN_IN_LINK = "{url}/#code={code}"
"""Signs a browser in. Browsers send nothing behind the `#`, but keep it in their history."""

TAR_TYPE, GZIP_TYPES = "application/x-tar", ("application/gzip", "application/x-gzip")
LINES_TYPE, CSV_TYPE, JPEG_TYPE = "application/x-ndjson", "text/csv", "image/jpeg"
ARCHIVE = File(
    (TAR_TYPE, *GZIP_TYPES, "application/octet-stream", "multipart/form-data"), "A tar, or tar.gz.", field="archive"
)

RATES = ("operating_point_unavailable",)
PACKAGE = ("package_unknown", "package_ambiguous", "package_unavailable")
GALLERY_PACKAGE = (*PACKAGE, "package_not_measured", "licence_not_accepted")
LIVENESS = ("not_live", "liveness_unavailable", "liveness_not_measured")
TEMPLATES = ("package_mismatch", "package_unavailable")
SEARCH = ("search_unavailable",)
SUBJECT_FIELDS = ("invalid_name", "invalid_metadata", "invalid_expiry", "invalid_consent")
NO_SUBJECT = ("subject_not_found",)
NO_FACE = ("subject_not_found", "face_not_found")
NO_JOB = ("job_not_found",)
NO_KEY = ("key_not_found",)
CURSOR = ("invalid_cursor",)
NO_MOVE = ("reembedding_not_found",)
NO_FINDING = ("finding_not_found",)
NOT_SWITCHED = ("reembedding_not_found", "reembedding_not_switched")


def _deletion(
    name: str, path: str, scope: Scope, codes: tuple[str, ...] = (), *, unrestricted: bool = False
) -> Operation[None]:
    return Operation(
        name, "DELETE", path, NoneType, scope, changes=True, unrestricted=unrestricted, status=204, codes=codes
    )


# Photos in, answers out
DETECT = Operation(
    "detect", "POST", "/v1/detect", schemas.DetectAnswer, RECOGNIZE, body=schemas.DetectRequest, images=ONE_IMAGE
)
EMBED = Operation(
    "embed",
    "POST",
    "/v1/embed",
    schemas.EmbedAnswer,
    RECOGNIZE,
    body=schemas.EmbedRequest,
    images=ONE_IMAGE,
    codes=PACKAGE,
)
VERIFY = Operation(
    "verify",
    "POST",
    "/v1/verify",
    schemas.VerifyAnswer,
    RECOGNIZE,
    body=schemas.VerifyRequest,
    images=TWO_IMAGES,
    codes=(*RATES, *PACKAGE, *LIVENESS, "no_face"),
)
IDENTIFY = Operation(
    "identify",
    "POST",
    f"{GALLERY}/identify",
    schemas.IdentifyAnswer,
    RECOGNIZE,
    body=schemas.IdentifyRequest,
    images=ONE_IMAGE,
    codes=(*RATES, *TEMPLATES, *LIVENESS),
)
VERIFY_SUBJECT = Operation(
    "verify_subject",
    "POST",
    f"{SUBJECT}/verify",
    schemas.SubjectVerifyAnswer,
    RECOGNIZE,
    body=schemas.SubjectVerifyRequest,
    images=ONE_IMAGE,
    codes=(*RATES, *TEMPLATES, *LIVENESS, "no_face", "subject_not_found", "subject_without_faces"),
)
ENROLL_FACES = Operation(
    "enroll",
    "POST",
    FACES,
    schemas.EnrollAnswer,
    ENROLL,
    changes=True,
    status=201,
    body=schemas.EnrollRequest,
    images=MANY_IMAGES,
    codes=(
        *TEMPLATES,
        *LIVENESS,
        "no_face",
        "ambiguous_face",
        "low_quality",
        "duplicate_face",
        "face_conflict",
        "nothing_enrolled",
        "subject_expired",
        "invalid_expiry",
        "invalid_consent",
    ),
)

# Challenges: steps to follow in front of a camera
CREATE_CHALLENGE = Operation(
    "create_challenge",
    "POST",
    CHALLENGES,
    schemas.Challenge,
    RECOGNIZE,
    status=201,
    body=schemas.ChallengeCreate,
)
ANSWER_CHALLENGE = Operation(
    "answer_challenge",
    "POST",
    f"{CHALLENGES}/answer",
    schemas.ChallengeAnswer,
    RECOGNIZE,
    changes=True,
    body=schemas.ChallengeRequest,
    images=MANY_IMAGES,
    codes=("wrong_challenge", "challenge_failed", *VERIFY_SUBJECT.codes, *ENROLL_FACES.codes),
)

# Galleries
LIST_GALLERIES = Operation("list_galleries", "GET", GALLERIES, schemas.GalleryPage, READ, codes=CURSOR)
CREATE_GALLERY = Operation(
    "create_gallery",
    "POST",
    GALLERIES,
    schemas.Gallery,
    ADMIN,
    changes=True,
    unrestricted=True,
    status=201,
    body=schemas.GalleryCreate,
    codes=("invalid_id", "invalid_metadata", "gallery_exists", *SEARCH, *GALLERY_PACKAGE),
)
SHOW_GALLERY = Operation("show_gallery", "GET", GALLERY, schemas.Gallery, READ)
UPDATE_GALLERY = Operation(
    "update_gallery",
    "PATCH",
    GALLERY,
    schemas.Gallery,
    ADMIN,
    changes=True,
    body=schemas.GalleryPatch,
    codes=(*SEARCH, "package_unavailable"),
)
DELETE_GALLERY = _deletion("delete_gallery", GALLERY, ADMIN, unrestricted=True)
CHECK_GALLERY = Operation("check_gallery", "GET", f"{GALLERY}/check", schemas.GalleryCheck, ADMIN)
IMPORT_FACES = Operation(
    "import",
    "POST",
    f"{GALLERY}/import",
    schemas.Job,
    ADMIN,
    changes=True,
    status=202,
    upload=ARCHIVE,
    codes=("package_mismatch", "two_packages", "gallery_restricted"),
)
EXPORT_GALLERY = Operation("export", "POST", f"{GALLERY}/export", schemas.Job, ADMIN, changes=True, status=202)

# A gallery's own operating points
CALIBRATE_GALLERY = Operation(
    "calibrate_gallery",
    "POST",
    CALIBRATION,
    schemas.GalleryCalibration,
    ADMIN,
    changes=True,
    status=202,
    codes=("package_unavailable",),
)
SHOW_CALIBRATION = Operation(
    "show_calibration", "GET", CALIBRATION, schemas.GalleryCalibration, ADMIN, codes=("package_unavailable",)
)

# What is probably wrong in a gallery
REVIEW_GALLERY = Operation(
    "review", "POST", REVIEW, schemas.Job, ADMIN, changes=True, status=202, codes=(*RATES, "package_unavailable")
)
SHOW_REVIEW = Operation(
    "show_review",
    "GET",
    REVIEW,
    schemas.Review,
    READ,
    codes=("review_not_found", "package_unavailable", *RATES, *CURSOR),
)
DISMISS_FINDING = Operation(
    "dismiss_finding", "POST", f"{FINDING}/dismiss", NoneType, ENROLL, changes=True, status=204, codes=NO_FINDING
)
REOPEN_FINDING = _deletion("reopen_finding", f"{FINDING}/dismiss", ENROLL, NO_FINDING)

# Moving a gallery to another model package
SHOW_REEMBEDDING = Operation("show_reembedding", "GET", REEMBED, schemas.Reembedding, READ, codes=NO_MOVE)
REEMBED_GALLERY = Operation(
    "reembed",
    "POST",
    REEMBED,
    schemas.Reembedding,
    ADMIN,
    changes=True,
    status=202,
    body=schemas.ReembedStart,
    codes=(*GALLERY_PACKAGE, "package_unchanged", "crops_missing", "reembedding_exists"),
)
CANCEL_REEMBEDDING = Operation(
    "cancel_reembedding",
    "DELETE",
    REEMBED,
    schemas.Reembedding,
    ADMIN,
    changes=True,
    status=202,
    codes=(*NO_MOVE, "reembedding_switched"),
)
ROLL_BACK_REEMBEDDING = Operation(
    "roll_back_reembedding",
    "POST",
    f"{REEMBED}/rollback",
    schemas.Reembedding,
    ADMIN,
    changes=True,
    codes=NOT_SWITCHED,
)
FINISH_REEMBEDDING = Operation(
    "finish_reembedding",
    "POST",
    f"{REEMBED}/finish",
    schemas.Reembedding,
    ADMIN,
    changes=True,
    status=202,
    codes=NOT_SWITCHED,
)

# Subjects and their faces
LIST_SUBJECTS = Operation(
    "list_subjects", "GET", SUBJECTS, schemas.SubjectPage, READ, codes=("invalid_cursor", "invalid_search")
)
CREATE_SUBJECT = Operation(
    "create_subject",
    "POST",
    SUBJECTS,
    schemas.Subject,
    ENROLL,
    changes=True,
    status=201,
    body=schemas.SubjectCreate,
    codes=(*SUBJECT_FIELDS, "subject_exists"),
)
SHOW_SUBJECT = Operation("show_subject", "GET", SUBJECT, schemas.Subject, READ, codes=NO_SUBJECT)
UPDATE_SUBJECT = Operation(
    "update_subject",
    "PATCH",
    SUBJECT,
    schemas.Subject,
    ENROLL,
    changes=True,
    body=schemas.SubjectPatch,
    codes=(*NO_FACE, *SUBJECT_FIELDS),
)
DELETE_SUBJECT = _deletion("delete_subject", SUBJECT, ENROLL, NO_SUBJECT)
ERASE_SUBJECT = Operation(
    "erase_subject", "POST", f"{SUBJECT}/erase", schemas.Receipt, ADMIN, changes=True, codes=NO_SUBJECT
)
MERGE_SUBJECT = Operation(
    "merge_subject",
    "POST",
    f"{SUBJECT}/merge",
    schemas.MergedSubject,
    ENROLL,
    changes=True,
    body=schemas.SubjectMerge,
    codes=(*NO_SUBJECT, "subject_expired"),
)
LIST_FACES = Operation("list_faces", "GET", FACES, schemas.FacePage, READ, codes=(*NO_SUBJECT, *CURSOR))
SHOW_FACE = Operation("show_face", "GET", FACE, schemas.StoredFace, READ, codes=NO_FACE)
DELETE_FACE = _deletion("delete_face", FACE, ENROLL, NO_FACE)
SHOW_CROP = Operation(
    "show_crop",
    "GET",
    f"{FACE}/crop",
    bytes,
    READ,
    file=File((JPEG_TYPE,), "The aligned face, 112x112."),
    codes=(*NO_FACE, "crop_not_stored"),
)
MOVE_FACE = Operation(
    "move_face",
    "POST",
    f"{FACE}/move",
    schemas.StoredFace,
    ENROLL,
    changes=True,
    body=schemas.FaceMove,
    codes=(*NO_FACE, "subject_expired"),
)
MOVE_FACES = Operation(
    "move_faces",
    "POST",
    f"{FACES}/move",
    schemas.Subject,
    ENROLL,
    changes=True,
    body=schemas.FacesMove,
    codes=(*NO_FACE, "subject_expired"),
)

# Corrections: who a subject is not
LIST_CORRECTIONS = Operation("list_corrections", "GET", CORRECTIONS, schemas.CorrectionList, READ, codes=NO_SUBJECT)
ADD_CORRECTION = Operation(
    "add_correction",
    "POST",
    CORRECTIONS,
    schemas.Correction,
    ENROLL,
    changes=True,
    status=201,
    body=schemas.CorrectionRequest,
    images=ONE_IMAGE,
    codes=(*TEMPLATES, *NO_SUBJECT, "no_face", "subject_expired", "invalid_expiry", "correction_unlikely"),
)
DELETE_CORRECTION = _deletion(
    "delete_correction", f"{CORRECTIONS}/{{correction}}", ENROLL, (*NO_SUBJECT, "correction_not_found")
)

# Jobs
LIST_JOBS = Operation("list_jobs", "GET", JOBS, schemas.JobPage, READ, codes=("invalid_cursor", "invalid_id"))
SHOW_JOB = Operation("show_job", "GET", JOB, schemas.Job, READ, codes=NO_JOB)
CANCEL_JOB = Operation("cancel_job", "POST", f"{JOB}/cancel", schemas.Job, ADMIN, changes=True, codes=NO_JOB)
SHOW_REPORT = Operation(
    "show_report",
    "GET",
    f"{JOB}/report",
    bytes,
    READ,
    file=File((LINES_TYPE, CSV_TYPE), "One line for each rejected item."),
    codes=NO_JOB,
)
FETCH_RESULT = Operation(
    "fetch_result",
    "GET",
    f"{JOB}/result",
    bytes,
    ADMIN,
    file=File((TAR_TYPE,), "The file."),
    codes=(*NO_JOB, "result_not_found"),
)

# Keys, the audit log, receipts of erasures
SHOW_OWN_KEY = Operation("show_own_key", "GET", "/v1/key", schemas.OwnKey, None)
CREATE_SIGN_IN_CODE = Operation(
    "create_sign_in_code", "POST", "/v1/sign-in-codes", schemas.SignInCode, None, changes=True, status=201
)
SIGN_IN = Operation(
    "sign_in",
    "POST",
    "/v1/sign-in",
    schemas.SignedIn,
    None,
    changes=True,
    by_code=True,
    codes=("wrong_sign_in_code",),
)
LIST_KEYS = Operation("list_keys", "GET", KEYS, schemas.KeyPage, ADMIN, unrestricted=True, codes=CURSOR)
CREATE_KEY = Operation(
    "create_key",
    "POST",
    KEYS,
    schemas.NewKey,
    ADMIN,
    changes=True,
    unrestricted=True,
    status=201,
    body=schemas.KeyCreate,
    codes=("invalid_key_id", "invalid_id", "invalid_rate", "invalid_expiry", "key_exists"),
)
SHOW_KEY = Operation("show_key", "GET", KEY, schemas.Key, ADMIN, unrestricted=True, codes=NO_KEY)
REVOKE_KEY = _deletion("revoke_key", KEY, ADMIN, NO_KEY, unrestricted=True)
ROTATE_KEY = Operation(
    "rotate_key",
    "POST",
    f"{KEY}/rotate",
    schemas.NewKey,
    ADMIN,
    changes=True,
    unrestricted=True,
    body=schemas.KeyRotate,
    codes=(*NO_KEY, "key_revoked"),
)
READ_AUDIT = Operation("read_audit", "GET", "/v1/audit", schemas.AuditPage, ADMIN, unrestricted=True, codes=CURSOR)
LIST_RECEIPTS = Operation("list_receipts", "GET", RECEIPTS, schemas.ReceiptPage, ADMIN, unrestricted=True, codes=CURSOR)
SHOW_RECEIPT = Operation(
    "show_receipt",
    "GET",
    f"{RECEIPTS}/{{receipt}}",
    schemas.Receipt,
    ADMIN,
    unrestricted=True,
    codes=("receipt_not_found",),
)

# The server itself
LIST_MODELS = Operation("list_models", "GET", "/v1/models", schemas.ModelList, None)
SHOW_SERVER_KEY = Operation("show_server_key", "GET", "/v1/server-key", schemas.ServerKey, None)
LIVE = Operation("live", "GET", "/livez", schemas.Health, None, monitoring=True, public=True)
READY = Operation("ready", "GET", "/readyz", schemas.Health, None, monitoring=True, public=True)
VERSION = Operation("version", "GET", "/version", schemas.Version, None, monitoring=True, public=True)
METRICS = Operation(
    "metrics",
    "GET",
    "/metrics",
    bytes,
    Scope.METRICS,
    monitoring=True,
    file=File(("text/plain",), "Prometheus' text format."),
    codes=("missing_scope",),
)

ENDPOINTS: tuple[AnyOperation, ...] = tuple(
    found for found in globals().copy().values() if isinstance(found, Operation)
)


def scopes_table() -> str:
    """Return the operations of each scope as a Markdown table."""
    lines = ["| scope | operations |", "|---|---|"]
    for scope in (None, *Scope):
        some = [one for one in ENDPOINTS if one.scope == scope and not (one.public or one.by_code)]
        names = [f"`{one.name}`{'*' if one.unrestricted else ''}" for one in some]
        lines.append(f"| {f'`{scope}`' if scope else 'any'} | {', '.join(names)} |")
    return "\n".join(lines)
