"""The SQL tables; `migrations/` leads to them from earlier versions."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.schema import SchemaItem

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
KEY = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows only in an INTEGER column, hence the variant."""


def _table(name: str, *parts: SchemaItem, numbered: bool = False) -> Table:
    return Table(name, METADATA, *parts, sqlite_autoincrement=numbered)


def _numbered(name: str, *parts: SchemaItem) -> Table:
    """Return a table with numbered rows. Keys are never reused, so that a late write can't reach another row."""
    return _table(name, Column("key", KEY, primary_key=True), *parts, numbered=True)


GALLERIES = _numbered(
    "galleries",
    Column("id", Text, nullable=False, unique=True),
    Column("embedder", Text, nullable=False),
    Column("dimension", Integer, nullable=False),
    Column("store", String(8), nullable=False),
    Column("metadata", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("last_change", BigInteger, nullable=False, server_default="0"),
    Column("last_stamp", BigInteger, nullable=False, server_default="0"),
    Column("search", String(16), nullable=False, server_default="fp32"),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("calibration", String(16), nullable=False, server_default="package"),
    Column("allow_laxer", Boolean, nullable=False, server_default=false()),
    Column("on_conflict", String(8), nullable=False, server_default="warn"),
    Column("population", Text),  # a JSON list of groups; NULL: not declared
    Column("liveness", String(8), nullable=False, server_default="off"),
)

SUBJECTS = _numbered(
    "subjects",
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), nullable=False),
    Column("id", Text, nullable=False),
    Column("name", Text),
    Column("folded", Text, nullable=False),  # id and name as substring search compares them
    Column("metadata", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("updated_at", String(32), nullable=False),
    Column("expires_at", String(32)),
    Column("consent", Text),  # JSON
    Column("cover", String(32)),  # the id of a face; it counts as long as the face is the subject's
    UniqueConstraint("gallery_key", "id"),
    Index(None, "gallery_key", "key"),
    Index(None, "expires_at"),
)

FACES = _numbered(
    "faces",
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), nullable=False),
    Column("subject_key", KEY, ForeignKey("subjects.key", ondelete="CASCADE"), nullable=False),
    Column("face_id", String(32), nullable=False, unique=True),
    Column("package", Text, nullable=False),
    Column("template", LargeBinary, nullable=False),
    Column("quality", Float, nullable=False),
    Column("reasons", Text, nullable=False),
    Column("x", Float, nullable=False),
    Column("y", Float, nullable=False),
    Column("width", Float, nullable=False),
    Column("height", Float, nullable=False),
    Column("created_at", String(32), nullable=False),
    Index(None, "gallery_key", "key"),
    Index(None, "subject_key", "key"),
)

CROPS = _table(
    # Separate from FACES, so that reading a million templates doesn't read a million images.
    "crops",
    Column("face_key", KEY, ForeignKey("faces.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("jpeg", LargeBinary, nullable=False),
)

FACE_ORIGINS = _table(
    # The photos of faces, which only some callers need; imported faces have none.
    "face_origins",
    Column("face_key", KEY, ForeignKey("faces.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("gallery_key", KEY, nullable=False),
    Column("image_id", String(32), nullable=False),
    Column("external_id", Text),
    Column("width", Integer, nullable=False),
    Column("height", Integer, nullable=False),
    Column("score", Float, nullable=False),
    Index(None, "gallery_key", "image_id"),
)

CORRECTIONS = _numbered(
    # Probes that were wrongly taken for a subject; see `app.gallery.corrections`.
    "corrections",
    Column("id", String(32), nullable=False),
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), nullable=False),
    Column("subject_key", KEY, ForeignKey("subjects.key", ondelete="CASCADE"), nullable=False),
    Column("package", Text, nullable=False),
    Column("probe", LargeBinary, nullable=False),  # template and crop
    Column("created_at", String(32), nullable=False),
    Column("expires_at", String(32), nullable=False),
    UniqueConstraint("id", "package"),
    Index(None, "gallery_key"),
    Index(None, "subject_key"),
    Index(None, "expires_at"),
)

ANSWERED_REQUESTS = _table(
    # Answers to requests with a token: a repeated request gets the same answer and isn't carried out again.
    "answered_requests",
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("operation", String(32), primary_key=True),
    Column("token", String(64), primary_key=True),
    Column("digest", LargeBinary, nullable=False),  # SHA-256 of the request
    Column("answer", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
    Index(None, "created_at"),
)
SECOND_TEMPLATES = _table(
    # While a gallery is being re-embedded: a face's template by the package that isn't its row's.
    "second_templates",
    Column("face_key", KEY, ForeignKey("faces.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("package", Text, nullable=False),
    Column("template", LargeBinary, nullable=False),
)

PACKAGES = _table(
    "packages",
    Column("id", Text, primary_key=True),
    Column("digest", String(64), nullable=False),
)
"""The model that each package id meant when its first template was made; see `app.gallery.store.bind_package`."""

REEMBEDDINGS = _table(
    "reembeddings",
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("source", Text, nullable=False),
    Column("source_dimension", Integer, nullable=False),
    Column("source_generation", BigInteger, nullable=False, server_default="0"),
    Column("target", Text, nullable=False),
    Column("target_dimension", Integer, nullable=False),
    Column("target_generation", BigInteger, nullable=False, server_default="0"),
    Column("state", String(16), nullable=False),
    Column("without_crop", String(8), nullable=False),
    Column("missing", BigInteger, nullable=False, server_default="0"),
    Column("keep_days", Float, nullable=False),
    Column("job", String(32)),
    Column("started_at", String(32), nullable=False),
    Column("switched_at", String(32)),
    Column("keep_until", String(32)),
)
"""Galleries that are being re-embedded; see `app.features.reembedding.steps`."""

GALLERY_CALIBRATIONS = _table(
    "gallery_calibrations",
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("job", String(32)),
    Column("package", Text),
    Column("document", Text),  # JSON: rates and counts, no ids; NULL until a job has measured
    Column("calibration", Text),  # JSON as in a manifest; NULL if the gallery's pairs support none
    Column("changes", BigInteger, nullable=False, server_default="0"),
    Column("measured_at", String(32)),
)
"""Operating points measured among a gallery's own subjects; see `app.models.calibration`."""

CALIBRATION_PAIRS = _table(
    # Faces of two subjects who may be one person, left out of a calibration; deleted with either face.
    "calibration_pairs",
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("first_key", KEY, ForeignKey("faces.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("second_key", KEY, ForeignKey("faces.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("score", Float, nullable=False),
    Index(None, "first_key"),
    Index(None, "second_key"),
)

CHANGES = _table(
    # Keys only, never a template or a name, so that erased subjects leave nothing here.
    "changes",
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("stamp", BigInteger, nullable=False),
    Column("kind", String(8), nullable=False),
    Column("subject_key", BigInteger),
    Column("face_key", BigInteger),
    Column("created_at", String(32), nullable=False),
    Index(None, "created_at"),
)
"""The changes of each gallery's faces, numbered without gaps; see `app.gallery.store`."""

COLLECTIONS = _table(
    # No foreign key: a row outlives its gallery until the collection has been dropped.
    "collections",
    Column("name", String(63), primary_key=True),
    Column("server", Text, nullable=False),
    Column("gallery_key", BigInteger, nullable=False),
    Column("package", Text, nullable=False),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("state", String(8), nullable=False),
    Column("touched_at", String(32), nullable=False),
    Index(None, "gallery_key"),
)
"""Collections of vectors in Milvus; see `app.features.milvus.collections`."""

API_KEYS = _numbered(
    "api_keys",
    Column("id", String(63), nullable=False, unique=True),
    Column("name", Text),
    Column("scopes", Text, nullable=False),  # separated by spaces
    Column("galleries", Text),  # a JSON list of ids; NULL: all
    Column("rate", Text),
    Column("digest", LargeBinary, nullable=False),  # SHA-256 of the secret
    Column("old_digest", LargeBinary),
    Column("old_until", String(32)),
    Column("declared", LargeBinary),
    Column("expires_at", String(32)),
    Column("created_at", String(32), nullable=False),
    Column("rotated_at", String(32)),
    Column("revoked_at", String(32)),
)

AUDIT = _numbered(
    # Names of keys, galleries and subjects, not references, since the log outlives them.
    "audit",
    Column("at", String(32), nullable=False),
    Column("who", Text),
    Column("operation", Text, nullable=False),
    Column("gallery", Text),
    Column("subject", Text),
    Column("target", Text),
    Column("status", Integer),
    Column("request_id", Text, nullable=False),
    Index(None, "at"),
)

SEEN_SIGNATURES = _table(
    # Used signatures of requests and challenges, while they would be valid, so that no server accepts one again.
    "seen_signatures",
    Column("signature", String(64), primary_key=True),
    Column("attempt", String(255), primary_key=True),
    Column("seen_at", Float, nullable=False),  # seconds since 1970
    Index(None, "seen_at"),
)

SIGN_INS = _table(
    # Codes that sign a browser in once, and sessions: the SHA-256 of each, and the encrypted key that it stands for.
    "sign_ins",
    Column("id", String(16), primary_key=True),
    Column("kind", String(8), nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("made_at", Float, nullable=False),  # seconds since 1970
)

RECEIPTS = _numbered(
    # Receipts of erasures; they name the gallery without a reference, since they outlive it.
    "receipts",
    Column("id", String(32), nullable=False, unique=True),
    Column("gallery", Text, nullable=False),
    Column("state", String(8), nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("document", Text, nullable=False),
)

SECRETS = _table(
    # The server's own secrets, encrypted (`app.db.secrets`); the key isn't in the database.
    "secrets",
    Column("name", String(255), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
)

JOBS = _numbered(
    # A job is deleted with its gallery, and with it the keys of its files and the names in its report.
    "jobs",
    Column("id", String(32), nullable=False, unique=True),
    Column("kind", String(32), nullable=False),
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE")),
    Column("state", String(16), nullable=False),
    Column("done", BigInteger, nullable=False, server_default="0"),
    Column("total", BigInteger),
    Column("params", Text, nullable=False),
    Column("saved", Text, nullable=False, server_default="{}"),
    Column("counts", Text, nullable=False, server_default="{}"),
    Column("result", Text),
    Column("secret", LargeBinary),  # encrypts the job's files; there is no other copy
    Column("place", String(32)),  # the folder with the files
    Column("who", Text),
    Column("cancel_asked", Boolean, nullable=False, server_default=false()),
    Column("error_code", String(64)),
    Column("error_message", Text),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("lease_owner", String(32)),
    Column("lease_until", String(32)),
    Column("not_before", String(32)),
    Column("created_at", String(32), nullable=False),
    Column("started_at", String(32)),
    Column("finished_at", String(32)),
    Index(None, "state"),
    Index(None, "gallery_key"),
)

JOB_REFUSALS = _table(
    "job_refusals",
    Column("job_key", KEY, ForeignKey("jobs.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("item", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("code", String(64), nullable=False),
    Column("message", Text, nullable=False),
    Column("reasons", Text, nullable=False),
    Column("enrolled", Boolean, nullable=False, server_default=false()),
)

REVIEWS = _table(
    # A gallery's reviews by the ids of their jobs: the last one begun, and the one whose findings are shown.
    "reviews",
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("job", String(32), nullable=False),
    Column("published", String(32)),
    Column("summary", Text),  # JSON, of the published one
)

FINDINGS = _numbered(
    # A finding refers to faces, and is deleted when one of them is deleted or given to another subject.
    "findings",
    Column("id", String(32), nullable=False, unique=True),
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), nullable=False),
    Column("review", String(32), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("place", BigInteger),  # in the list, strongest first; NULL until the review is published
    Column("strength", Float, nullable=False),
    Column("face_id", String(32), ForeignKey("faces.face_id", ondelete="CASCADE"), nullable=False),
    Column("other_face_id", String(32), ForeignKey("faces.face_id", ondelete="CASCADE")),
    Column("evidence", Text, nullable=False),  # JSON; numbers, and ids of faces
    Column("dismissed", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("review", "kind", "face_id", "other_face_id"),
    Index(None, "gallery_key", "review", "place"),
    Index(None, "face_id"),
    Index(None, "other_face_id"),
)

DISMISSALS = _numbered(
    # Dismissed findings. A finding is reported again only if its evidence is other faces.
    "dismissals",
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("face_id", String(32), ForeignKey("faces.face_id", ondelete="CASCADE"), nullable=False),
    Column("other_face_id", String(32), ForeignKey("faces.face_id", ondelete="CASCADE")),
    Column("created_at", String(32), nullable=False),
    Index(None, "gallery_key"),
    Index(None, "face_id"),
    Index(None, "other_face_id"),
)

STRANGERS = _numbered(
    # Unnamed people into whom sightings were grouped, apart from the gallery's subjects (`app.features.watching`).
    "strangers",
    Column("id", String(32), nullable=False, unique=True),
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), nullable=False),
    Column("ignored", Boolean, nullable=False, server_default=false()),
    Column("note", Text),
    Column("created_at", String(32), nullable=False),
    Column("expires_at", String(32), nullable=False),
    Index(None, "gallery_key"),
    Index(None, "expires_at"),
)

SIGHTINGS = _numbered(
    # Tracks: who was in front of a camera, from when to when. They are deleted with their subject or stranger.
    "sightings",
    Column("id", String(32), nullable=False, unique=True),
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), nullable=False),
    Column("subject_key", KEY, ForeignKey("subjects.key", ondelete="CASCADE")),
    Column("stranger_key", KEY, ForeignKey("strangers.key", ondelete="CASCADE")),
    Column("camera", Text, nullable=False),
    Column("zone", Text),  # the camera's zone in which the face was last
    Column("decision", String(16), nullable=False),
    Column("score", Float),
    Column("margin", Float),
    Column("threshold", Float, nullable=False),
    Column("fpir", Float, nullable=False),
    Column("frames", Integer, nullable=False),
    Column("quality", Float, nullable=False),
    Column("first_at", String(32), nullable=False),
    Column("last_at", String(32), nullable=False),
    Column("ended", Boolean, nullable=False, server_default=false()),
    Column("said", String(16)),  # the last event about the person; NULL: none yet
    Column("settled", Boolean, nullable=False, server_default=false()),  # decided by a person, a correction or a change
    Column("heard_at", String(32), nullable=False),  # when the watcher last reported it
    Column("expires_at", String(32), nullable=False),
    Column("crop_until", String(32)),
    Column("package", Text, nullable=False),
    Column("template", LargeBinary),
    Column("crop", LargeBinary),
    Index(None, "gallery_key", "key"),
    Index(None, "subject_key"),
    Index(None, "stranger_key"),
    Index(None, "expires_at"),
)

EVENTS = _table(
    # Events about sightings, numbered without gaps by EVENT_NUMBERS; an event is deleted with its sighting.
    "events",
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("id", String(32), nullable=False, unique=True),
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), nullable=False),
    Column("sighting_key", KEY, ForeignKey("sightings.key", ondelete="CASCADE"), nullable=False),
    Column("subject_key", KEY),  # the named subject, while it exists: keys are never reused
    Column("kind", String(16), nullable=False),
    Column("camera", Text, nullable=False),
    Column("document", Text, nullable=False),  # JSON
    Index(None, "gallery_key"),
    Index(None, "sighting_key"),
)

EVENT_NUMBERS = _table(
    # One row. Writers of events lock it until the commit, so that numbers become visible in order.
    "event_numbers",
    Column("key", Integer, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
)

EVENT_CURSORS = _table(
    # The position of a receiver of events other than a webhook, and which server's turn it is to send to it.
    "event_cursors",
    Column("name", String(32), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("owner", String(32), nullable=False),
    Column("until", String(32), nullable=False),
)

CAMERAS = _table(
    # The last state of each camera, as its watcher reported it.
    "cameras",
    Column("gallery_key", KEY, ForeignKey("galleries.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    Column("told_at", String(32), nullable=False),
    Column("document", Text, nullable=False),  # JSON
)

WEBHOOKS = _numbered(
    # Where events are sent, and the position of each. A webhook's secret is among the server's (`SECRETS`).
    "webhooks",
    Column("id", String(32), nullable=False, unique=True),
    Column("url", Text, nullable=False),
    Column("galleries", Text),  # a JSON list of ids; NULL: all
    Column("kinds", Text, nullable=False),  # a JSON list
    Column("cameras", Text),  # a JSON list; NULL: all
    # True: only events about WEBHOOK_SUBJECTS, even if none of them is left.
    Column("personal", Boolean, nullable=False, server_default=false()),
    Column("quiet_s", Float, nullable=False, server_default="0"),
    Column("state", String(16), nullable=False),
    Column("cursor", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("failing_since", String(32)),
    Column("not_before", String(32), nullable=False),
    Column("last_error", Text),
    Column("delivered_at", String(32)),
    Column("created_at", String(32), nullable=False),
)

WEBHOOK_SUBJECTS = _table(
    # The people that a webhook gets events about.
    "webhook_subjects",
    Column("webhook_key", KEY, ForeignKey("webhooks.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("subject_key", KEY, ForeignKey("subjects.key", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Index(None, "subject_key"),
)
