"""What goes over the wire: every request and answer of the REST interface, as pydantic models.

The service, the Python client and the command line share these; nothing here knows a web framework.
Coordinates are pixels of the upright original photo, scores are cosine similarities (-1 to 1, higher =
more alike), times are UTC in ISO 8601, and no number is ever NaN or infinite.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

MAX_ID_LENGTH = 255
MAX_NOTE_LENGTH = 1000
MAX_CANDIDATES = 100
MAX_PAGE = 1000
MAX_GRACE_S = 30 * 24 * 3600
FIRST_YEAR, LAST_YEAR = 1970, 9998
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
EXAMPLE_TIME = "2026-01-31T12:00:00Z"


Id: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="An id in any script, 1 to 255 characters, kept in Unicode's form NFC; neither `.` nor `..`, no "
        "control characters. Percent-encode it in paths (`/` as `%2F`).",
        examples=["collins"],
    ),
]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH, examples=["Eileen Collins"])]
Metadata: TypeAlias = dict[str, JsonValue]
Base64: TypeAlias = Annotated[
    str, Field(description="An image file as base64 (RFC 4648); a data URL (`data:image/jpeg;base64,...`) will do.")
]
Rate: TypeAlias = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


def _time(value: object) -> object:
    """RFC 3339 in text, and nothing else that pydantic would take for a time (numbers among them)."""
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError("a time with its zone is due, as in 2026-01-31T12:00:00Z")
    time = datetime.fromisoformat(value)
    if not FIRST_YEAR <= time.year <= LAST_YEAR:
        raise ValueError(f"a year from {FIRST_YEAR} to {LAST_YEAR} is due")
    return time


Note: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NOTE_LENGTH,
        description="A few words, e.g. where the form is that was signed.",
        examples=["form of 31 January, folder 12"],
    ),
]
Time: TypeAlias = Annotated[AwareDatetime, BeforeValidator(_time)]
KeyIdText: TypeAlias = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        max_length=63,
        description="A key's id: 1 to 63 of a-z, 0-9 and inner hyphens.",
        examples=["door"],
    ),
]
RateText: TypeAlias = Annotated[
    str,
    Field(
        max_length=32,
        description="Requests in a second or a minute, and how many of them at once: `10/s`, `600/m`, `600/m:20`, or "
        "`unlimited`.",
        examples=["10/s"],
    ),
]
ScopeName: TypeAlias = Literal["read", "recognize", "enroll", "admin"]
QualityGate: TypeAlias = Literal["none", "low", "medium", "high"]
StoreMode: TypeAlias = Literal["crop", "none"]
SearchKind: TypeAlias = Literal["fp32", "int8"]
SEARCH_KINDS = (
    "How the vectors are searched, with the same answers either way. `fp32`: as they are. `int8`: by a copy of a "
    "quarter of their size, whose best are scored again exactly; faster, for that much more memory."
)


def _not_removed(kind: object) -> object:
    if kind in ("fp16", "approximate"):
        message = f"{kind!r} was removed: use 'int8' (exact answers too), or Milvus past one machine (docs/milvus.md)"
        raise ValueError(message)
    return kind


AskedSearchKind: TypeAlias = Annotated[SearchKind, BeforeValidator(_not_removed)]
JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled"]
Decision: TypeAlias = Literal["known", "uncertain", "unknown"]
Point: TypeAlias = tuple[float, float]


class Wire(BaseModel):
    """Base of all answers. Unknown fields and NaN are errors for server and client alike."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, from_attributes=True)


class Params(BaseModel):
    """Base of what a caller may say besides images: in the query, as form fields or as JSON fields alike."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# ---------------------------------------------------------------- parameters and request bodies


class DetectParams(Params):
    explain: bool = Field(default=False, description="Add stage timings and batch size to the answer.")


class ModelParams(Params):
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="The model package to use, as `name` or `name@version`; the server's default if absent.",
        examples=["sface"],
    )


class EmbedParams(DetectParams, ModelParams):
    pass


class VerifyParams(DetectParams):
    fmr: Rate | None = Field(
        default=None,
        description="False match rate of the operating point to decide at; the server's default if absent.",
        examples=[0.0001],
    )


class VerifyAnyParams(VerifyParams, ModelParams):
    pass


class IdentifyParams(DetectParams):
    limit: int = Field(default=5, ge=1, le=MAX_CANDIDATES, description="How many candidates each face gets at most.")
    fmr: Rate | None = Field(
        default=None, description="False match rate of each single comparison. Not together with `fpir`."
    )
    fpir: Rate | None = Field(
        default=None,
        description="False positive identification rate: how often someone who is not enrolled may be taken for "
        "anyone in the gallery; corrected for the number of subjects. Not together with `fmr`.",
        examples=[0.01],
    )

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.fmr is not None and self.fpir is not None:
            raise ValueError("give fmr or fpir, not both")
        return self


class EnrollParams(DetectParams):
    quality: QualityGate = Field(default="medium", description="The least quality that is taken; `none` takes all.")
    expires_at: Time | None = Field(
        default=None,
        description="When the subject is to be erased, with all its faces; as it was if absent.",
        examples=["2096-01-31T12:00:00Z"],
    )
    consent: Note | None = Field(default=None, description="On what grounds, given now; as it was if absent.")


class DetectRequest(DetectParams):
    image: Base64


class EmbedRequest(EmbedParams):
    image: Base64


class VerifyRequest(VerifyAnyParams):
    image1: Base64
    image2: Base64


class SubjectVerifyRequest(VerifyParams):
    image: Base64


class IdentifyRequest(IdentifyParams):
    image: Base64


class EnrollRequest(EnrollParams):
    images: list[Base64] = Field(min_length=1, description="One or many photos of the one person.")


class GalleryCreate(Params):
    id: Id
    embedder: str | None = Field(
        default=None,
        max_length=MAX_ID_LENGTH,
        description="The model package whose templates this gallery holds, as `name` or `name@version`; "
        "the server's default if absent.",
    )
    store: StoreMode = Field(
        default="crop",
        description="`crop` keeps each face's aligned 112x112 crop (for display and for moving to another "
        "model); `none` keeps templates alone.",
    )
    search: AskedSearchKind = Field(
        default="fp32",
        description=SEARCH_KINDS,
    )
    metadata: Metadata = Field(default_factory=dict, description="Any JSON object, within the server's size limit.")


class GalleryPatch(Params):
    search: AskedSearchKind | None = Field(default=None, description=SEARCH_KINDS)


class Consent(Params):
    note: Note
    given_at: Time | None = Field(default=None, description="Now if absent.", examples=[EXAMPLE_TIME])


class ReembedStart(Params):
    embedder: str = Field(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="The model package to move to, as `name` or `name@version`.",
    )
    without_crop: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="What to do about faces that have no crop to embed again. `refuse`: nothing is begun. `drop`: they "
        "stay behind, found again by a rollback, until `finish` deletes them.",
    )
    keep_days: float = Field(
        default=7,
        ge=0,
        le=3650,
        allow_inf_nan=False,
        description="How long after the switch a rollback is possible; then `finish` comes by itself.",
    )


class SubjectCreate(Params):
    id: Id
    name: Name | None = Field(default=None, description="How people call the subject; free text in any script.")
    metadata: Metadata = Field(default_factory=dict, description="Any JSON object, within the server's size limit.")
    expires_at: Time | None = Field(
        default=None, description="From then on nobody is answered with the subject, and soon it is erased."
    )
    consent: Consent | None = Field(default=None, description="On what grounds the subject is kept.")


class SubjectPatch(Params):
    """What is given is replaced as a whole (metadata too: nothing is merged); what is absent stays as it is."""

    name: Name | None = Field(default=None, description="The new name; null removes it.")
    metadata: Metadata = Field(default_factory=dict, description="The new metadata, in place of all of the old.")
    expires_at: Time | None = Field(default=None, description="The new time of expiry; null: never.")
    consent: Consent | None = Field(default=None, description="In place of the old one; null removes it.")


class EraseParams(Params):
    rewrite: bool = Field(
        default=False,
        description="PostgreSQL only: rewrite all tables (VACUUM FULL), which locks them meanwhile, so that nothing "
        "stays in their files. SQLite's are overwritten anyway.",
    )


class KeyCreate(Params):
    """What is absent is the server's default, or has no limit."""

    id: KeyIdText | None = Field(default=None, description="Made by the server if absent.")
    name: Name | None = Field(default=None, description="Whose key it is; free text.")
    scopes: list[ScopeName] = Field(min_length=1, description="What the key may do; `admin` implies all of them.")
    galleries: list[Id] | None = Field(
        default=None, min_length=1, max_length=MAX_PAGE, description="The only galleries it may see; all if absent."
    )
    expires_at: Time | None = Field(default=None, description="When it stops working; never if absent.")
    rate: RateText | None = Field(default=None, description="The server's default if absent.")
    aws: bool = Field(
        default=False,
        description="Whether requests may be signed with it too, as AWS's clients do; its secret is then kept, sealed.",
    )


class KeyRotate(Params):
    grace_seconds: int = Field(
        default=0, ge=0, le=MAX_GRACE_S, description="How long the last secret goes on working beside the new one."
    )


class FaceMove(Params):
    subject: Id = Field(description="Whose it becomes; somebody of the same gallery.")


class PageParams(Params):
    limit: int = Field(default=100, ge=1, le=MAX_PAGE, description="How many rows one page has at most.")
    cursor: str | None = Field(default=None, max_length=2048, description="`next_cursor` of the page before.")


class SubjectPageParams(PageParams):
    search: str | None = Field(
        default=None, max_length=MAX_ID_LENGTH, description="Only subjects whose id or name contains this text."
    )
    expires_before: Time | None = Field(
        default=None, description="Only subjects that expire before this time.", examples=[EXAMPLE_TIME]
    )


class AuditParams(PageParams):
    """`since` is included, `until` is not; ids match exactly."""

    key: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only what this key did.")
    operation: str | None = Field(default=None, max_length=64, description="Only this operation, e.g. `enroll`.")
    gallery: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only about this gallery.")
    subject: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only about this subject.")
    since: Time | None = Field(default=None, description="Only from this time on.", examples=[EXAMPLE_TIME])
    until: Time | None = Field(default=None, description="Only before this time.", examples=[EXAMPLE_TIME])
    order: Literal["newest", "oldest"] = Field(default="newest", description="Which entries come first.")


class JobPageParams(PageParams):
    gallery: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only jobs of this gallery.")
    state: JobState | None = Field(default=None, description="Only jobs in this state.")


class ImportParams(Params):
    content: Literal["photos", "templates", "archive"] = Field(
        default="photos",
        description="What is in the tar: `photos` in a folder a person; `templates.npy` with `faces.jsonl` or "
        "`ids.txt`; the `archive` that an export made.",
    )
    quality: QualityGate = Field(default="medium", description="Photos: the least quality that is taken.")
    package: str | None = Field(
        default=None, max_length=MAX_ID_LENGTH, description="Templates: the model package that made them."
    )
    normalize: bool = Field(default=False, description="Templates: bring them to length 1 first.")
    trust: str | None = Field(
        default=None,
        max_length=128,
        description="Archives: the public key of the server that signed it, base64, or that key's SHA-256.",
    )

    @model_validator(mode="after")
    def _package_named(self) -> Self:
        if self.content == "templates" and self.package is None:
            raise ValueError("name the package that made the templates")
        return self


class ExportParams(Params):
    crops: bool = Field(default=True, description="Whether the stored crops go with it.")


class ReportParams(Params):
    format: Literal["jsonl", "csv"] = Field(default="jsonl", description="Lines of JSON, or CSV with a head.")


# ---------------------------------------------------------------- faces in photos


class Box(Wire):
    """An upright rectangle; it may reach over the photo's edge."""

    x: float
    y: float
    width: float
    height: float


class Quality(Wire):
    score: float = Field(ge=0, le=100, description="Higher = fewer false non-matches expected.")
    reasons: list[str] = Field(description="What is poor, e.g. `small_face`, `low_sharpness`, `extreme_pose`.")


class ImageSize(Wire):
    """The upright original's size; boxes and landmarks are in its pixels."""

    width: int = Field(ge=1)
    height: int = Field(ge=1)
    rotated: Literal[0, 90, 180, 270] = Field(
        default=0, description="Clockwise degrees by which the photo had to be turned before a face was found."
    )


class DetectedFace(Wire):
    box: Box
    landmarks: list[Point] = Field(
        min_length=5,
        max_length=5,
        description="x, y of the person's right eye, left eye, nose tip, right and left mouth corner.",
    )
    score: float = Field(ge=0, le=1, description="The detector's own certainty that this is a face.")
    quality: Quality


class EmbeddedFace(DetectedFace):
    embedding: list[float] = Field(description="The face's template: a vector of length 1.")


class ChosenFace(DetectedFace):
    """The face of a photo that an operation used."""

    image: ImageSize
    faces: int = Field(ge=1, description="How many faces the photo has; the most prominent one was used.")


class Choice(Wire):
    """Which face of a photo was used, and why."""

    index: int = Field(ge=0, description="Its place in the list that `/v1/detect` gives for the photo.")
    why: str
    runner_up_share: float | None = Field(
        description="The next most prominent face's prominence as a share of the chosen one's; null if it was alone."
    )


class NearestOther(Wire):
    """The subject that came closest without being the answer: how near a false match was."""

    subject: str
    name: str | None
    score: float


class Explain(Wire):
    """Asked for by `explain=true`."""

    stages: dict[str, float] = Field(
        description="Milliseconds spent in each stage (decode, detect, align, quality, embed, search, store), waiting "
        "included; several photos are added up."
    )
    batch_size: int | None = Field(
        description="How many faces shared the largest embedding batch, those of other requests included."
    )
    chosen: list[Choice] = Field(
        default_factory=list, description="For each photo that had to yield one face: which one, and why."
    )
    nearest_other: list[NearestOther | None] = Field(
        default_factory=list, description="For each face of the answer: the nearest subject that is not its match."
    )


class DetectAnswer(Wire):
    image: ImageSize
    faces: list[DetectedFace]
    explain: Explain | None = None


class EmbedAnswer(Wire):
    image: ImageSize
    faces: list[EmbeddedFace]
    model: str = Field(description="The package that made the embeddings; only equal ones may be compared.")
    explain: Explain | None = None


# ---------------------------------------------------------------- decisions


class VerifyAnswer(Wire):
    match: bool
    score: float
    threshold: float
    fmr: float = Field(description="The false match rate measured at this threshold.")
    fmr_asked: float | None = Field(description="The one that was asked for; null: the server's default.")
    face1: ChosenFace
    face2: ChosenFace
    model: str
    explain: Explain | None = None


class SubjectVerifyAnswer(Wire):
    match: bool
    subject: str
    name: str | None
    score: float = Field(description="The best over the subject's faces; what the decision is made on.")
    template_score: float = Field(description="Against the subject's quality-weighted mean template.")
    face_id: str = Field(description="The enrolled face that gave the score.")
    threshold: float
    fmr: float
    fmr_asked: float | None
    face: ChosenFace
    model: str
    explain: Explain | None = None


class Candidate(Wire):
    subject: str
    name: str | None
    score: float = Field(description="The best over the subject's faces; what the decision is made on.")
    template_score: float = Field(description="Against the subject's quality-weighted mean template.")
    face_id: str = Field(description="The enrolled face that gave the score.")


class IdentifiedFace(DetectedFace):
    decision: Decision = Field(
        description="`known`: the first candidate's score reaches `threshold`; `uncertain`: it reaches "
        "`threshold_uncertain` only; `unknown`: neither."
    )
    candidates: list[Candidate] = Field(
        description="The nearest subjects, best first, without those given to another face of the photo."
    )
    margin: float | None = Field(description="First candidate's score minus the second's; null without a second.")
    threshold: float = Field(description="From here on a face is `known`.")
    threshold_uncertain: float = Field(
        description="From here to `threshold` a face is `uncertain`: the operating point of ten times the FMR, or the "
        "highest that was measured."
    )


class IdentifyAnswer(Wire):
    image: ImageSize
    faces: list[IdentifiedFace]
    fmr: float = Field(description="The false match rate of one comparison at `threshold`.")
    fpir: float = Field(
        description="What that makes of the whole gallery: the false positive identification rate expected."
    )
    fmr_asked: float | None
    fpir_asked: float | None
    subjects: int = Field(ge=0, description="How many subjects with at least one face the gallery has.")
    model: str
    explain: Explain | None = None


# ---------------------------------------------------------------- enrolled people


class Gallery(Wire):
    id: str
    embedder: str = Field(description="The model package whose templates this gallery holds.")
    store: StoreMode
    search: SearchKind
    metadata: Metadata
    subjects: int = Field(ge=0)
    faces: int = Field(ge=0)
    created_at: datetime


class GalleryPage(Wire):
    galleries: list[Gallery]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


class GalleryCheck(Wire):
    """Whether the database and the search index hold the same faces with the same vectors."""

    ok: bool
    subjects: int
    faces: int = Field(description="Faces in the database, which is the truth.")
    indexed: int = Field(description="Faces in the index.")
    problems: list[str] = Field(description="What disagrees; empty when all is well.")
    examples: list[str] = Field(description="Ids of some faces that are missing or different.")


class GivenConsent(Wire):
    note: str
    given_at: datetime


class Subject(Wire):
    id: str
    name: str | None
    metadata: Metadata
    face_count: int = Field(ge=0)
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = Field(description="From then on nobody is answered with it; null: never.")
    consent: GivenConsent | None


class SubjectPage(Wire):
    subjects: list[Subject]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


class StoredFace(Wire):
    """One enrolled image of a subject."""

    face_id: str
    box: Box = Field(description="Where the face was in the photo that was enrolled.")
    quality: Quality
    model: str
    has_crop: bool = Field(description="Whether `.../crop` has a picture of it.")
    created_at: datetime


class FacePage(Wire):
    faces: list[StoredFace]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


class EnrolledFace(Wire):
    index: int = Field(ge=0, description="Which of the images sent this is, counted from 0.")
    face_id: str
    quality: Quality
    box: Box


class RejectedImage(Wire):
    index: int = Field(ge=0, description="Which of the images sent this is, counted from 0.")
    code: str = Field(description="An error code: `no_face`, `low_quality`, `ambiguous_face`, `invalid_image`, ...")
    reasons: list[str] = Field(description="For `low_quality`: what is poor.")
    message: str


class EnrollAnswer(Wire):
    subject: str
    created: bool = Field(description="Whether the subject was new.")
    enrolled: list[EnrolledFace]
    rejected: list[RejectedImage]
    model: str
    explain: Explain | None = None


# ---------------------------------------------------------------- access


class Key(Wire):
    """A key; its secret is never shown again."""

    id: str
    name: str | None
    scopes: list[ScopeName]
    galleries: list[str] | None = Field(description="The only galleries it may see; null: all of them.")
    rate: str | None = Field(description="Its own rate limit; null: the server's default.")
    created_at: datetime
    expires_at: datetime | None
    rotated_at: datetime | None
    revoked_at: datetime | None
    old_secret_until: datetime | None = Field(description="Until when the secret before the last rotation works.")
    declared: bool = Field(description="Whether the server's keys file declares it.")


class NewKey(Key):
    """A key with what its holder has to send. This is the only time that it is shown."""

    secret: str = Field(description="The whole key, as it goes into `Authorization: Bearer` or `x-api-key`.")
    aws_access_key_id: str | None = Field(description="For AWS's clients, where the key was made for them.")
    aws_secret_access_key: str | None = Field(description="The same.")


class OwnKey(Wire):
    """What the key of the request may do, and where."""

    id: str = Field(description="`admin.key` is the data folder's own.")
    scopes: list[ScopeName] = Field(description="As the key was given them; `admin` implies all.")
    galleries: list[str] | None = Field(description="The only galleries it may see; null: all of them.")


class KeyPage(Wire):
    keys: list[Key]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


class AuditEntry(Wire):
    """Who did what, when, to whom, and how it went."""

    at: datetime
    key: str | None = Field(description="The key's id; `admin.key` is the data folder's own; null: no key of ours.")
    operation: str
    gallery: str | None
    subject: str | None
    target: str | None = Field(description="The id of the face or key it was about.")
    status: int | None = Field(
        description="The HTTP status of the answer; 499: the caller left before it; null: begun, outcome unknown."
    )
    request_id: str


class AuditPage(Wire):
    entries: list[AuditEntry]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


# ---------------------------------------------------------------- jobs


class JobError(Wire):
    code: str = Field(description="One of the error codes, or `job_crashed`.")
    message: str


class Job(Wire):
    """Work that outlasts a request."""

    id: str
    kind: str = Field(description="What it does.")
    gallery: str | None = Field(description="Whose faces it is about; null: about all, or none.")
    state: JobState
    done: int = Field(description="How many of its items it has been through.")
    total: int | None = Field(description="How many there are, where that is known.")
    counts: dict[str, int] = Field(description="What it counts: `refused` items are in its report.")
    error: JobError | None = Field(description="Why it failed.")
    has_result: bool = Field(description="Whether it has left a file to be fetched.")
    key: str | None = Field(description="The id of the key that asked for it.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class JobPage(Wire):
    jobs: list[Job]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


class Reembedding(Wire):
    """A gallery on its way from one model package to another."""

    gallery: str
    source: str = Field(description="The package that the gallery comes from.")
    target: str = Field(description="The package that it goes to.")
    state: Literal["embedding", "ready", "switched", "ending"] = Field(
        description="`embedding`: faces get templates of the target, the source answers. `ready`: all have both (also "
        "after a rollback), the source answers. `switched`: the target answers. `ending`: what is not needed any more "
        "is being removed."
    )
    without_crop: Literal["refuse", "drop"]
    missing: int = Field(ge=0, description="Faces that have no template of the target, for want of a crop.")
    keep_days: float
    started_at: datetime
    switched_at: datetime | None
    keep_until: datetime | None = Field(description="Until when a rollback is possible.")
    job: Job | None = Field(description="The job that works on it, or did so last.")


# ---------------------------------------------------------------- the server itself


class Licence(Wire):
    name: str = Field(description="SPDX identifier, or the licence's own name.")
    non_commercial: bool
    url: str | None


class OperatingPoint(Wire):
    """A threshold named by the false match rate it was measured at; `_low`, `_high`: 95 % interval."""

    fmr: float
    threshold: float
    threshold_low: float | None = None
    threshold_high: float | None = None
    fnmr: float | None = None
    fnmr_low: float | None = None
    fnmr_high: float | None = None


class Scores(Wire):
    """How many compared pairs had a score in each of 100 equal stretches from -1 to 1."""

    nonmated: list[int]
    mated: list[int]


class Calibration(Wire):
    name: str
    measured_on: str
    comparisons: int = Field(description="Non-mated comparisons.")
    mated: int
    default: bool = Field(description="Whether decisions are made by this one.")
    points: list[OperatingPoint]
    scores: Scores | None = Field(default=None, description="Where the package's manifest has them.")


class Model(Wire):
    id: str = Field(description="`name@version`.")
    name: str
    version: str
    task: str = Field(description="`detect` or `embed`.")
    title: str
    description: str
    loaded: bool = Field(description="Whether this server runs it now.")
    source: str = Field(description="Where its file comes from: `file`, `carrier` (a Python package) or `url`.")
    sha256: str
    licence: Licence
    dimension: int | None = Field(description="Length of its templates; null for detectors.")
    calibrations: list[Calibration]
    device: str | None = Field(description="Where it runs, e.g. `cpu`; null when not loaded.")
    providers: list[str] = Field(description="What computes it: ONNX Runtime's execution providers.")
    provenance: dict[str, Any] = Field(default_factory=dict, description="Where it comes from, and its figures.")


class SkippedModel(Wire):
    """A folder of the models folder that holds no usable package."""

    folder: str
    problem: str = Field(description="What is wrong with its manifest.")


class ModelList(Wire):
    models: list[Model]
    skipped: list[SkippedModel] = Field(
        default_factory=list, description="Folders whose manifest can't be used; the server goes on without them."
    )


class ErasedSubject(Wire):
    """Which subject: known to who knows its id, and to nobody else."""

    salt: str
    digest: str = Field(description="SHA-256, hexadecimal, of the compact JSON list of salt, gallery and subject id.")


class ErasedCounts(Wire):
    faces: int = Field(ge=0)
    templates: int = Field(ge=0)
    crops: int = Field(ge=0)


class Cleared(Wire):
    """What was done to everything on disk that could have held them."""

    tables: str = Field(description="`overwritten` (SQLite), `vacuumed` or `rewritten` (PostgreSQL).")
    write_ahead_log: str
    index_copies: str = Field(description="Index snapshots, or the files of Milvus.")


class Signature(Wire):
    """Over everything else in the document: UTF-8 JSON with sorted keys and without white space."""

    algorithm: Literal["Ed25519"]
    key_id: str
    public_key: str = Field(description="Base64; to be compared with one that was kept before.")
    value: str = Field(description="Base64.")


class Receipt(Wire):
    """What was erased, when, and what that means, signed with the server's key."""

    format: Literal[1]
    id: str
    gallery: str
    subject: ErasedSubject
    reason: Literal["asked", "expired"]
    erased_at: str = Field(description="From then on nobody is answered with the subject.")
    erased: ErasedCounts
    cleared: Cleared
    complete: bool = Field(
        description="Whether all of `cleared` was done at `completed_at`; else it follows by itself."
    )
    completed_at: str
    not_reached: list[str] = Field(description="What the server can't clear.")
    signature: Signature


class ReceiptPage(Wire):
    receipts: list[Receipt]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


class ServerKey(Wire):
    """The public half of the key that the server signs with."""

    key_id: str = Field(description="The first 8 bytes of the public key's SHA-256, hexadecimal.")
    algorithm: Literal["Ed25519"]
    public_key: str = Field(description="Its 32 bytes (RFC 8032) as base64.")
    pem: str = Field(description="The same as other programs read it.")


class Version(Wire):
    name: str
    version: str


class Health(Wire):
    status: Literal["ok", "starting", "draining", "index_unavailable"]


# ---------------------------------------------------------------- errors


class Problem(Wire):
    code: str = Field(description="Stable; what programs switch on.")
    message: str = Field(description="One sentence for people.")
    details: dict[str, Any] = Field(description="What the code's description promises; empty for most.")


class ErrorAnswer(Wire):
    """The one shape of every error."""

    error: Problem
    request_id: str = Field(description="Also in the header `x-request-id`, and in the server's log.")
