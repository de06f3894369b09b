"""The server's answers. Fields that a newer server adds are ignored.

Written by clients/python/generate.py from the server's declarations: change those."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class AuditEntry(Answer):
    """An operation that a key called: when, on what, and with which result."""

    at: datetime
    key: str | None
    operation: str
    gallery: str | None
    subject: str | None
    target: str | None
    status: int | None
    request_id: str


class AuditPage(Answer):
    entries: list[AuditEntry]
    next_cursor: str | None


class BiasCard(Answer):
    """False match rates within groups of people."""

    measured_on: str
    calibration: str
    repeats: str
    groups: list[Group]


class Box(Answer):
    """An upright rectangle; it may extend beyond the photo's edge."""

    x: float
    y: float
    width: float
    height: float


class Calibration(Answer):
    name: str
    measured_on: str
    comparisons: int
    mated: int
    default: bool
    points: list[OperatingPoint]
    independence: float | None = None
    scores: Scores | None = None


class CameraList(Answer):
    cameras: list[CameraState]


class CameraState(Answer):
    """A camera: its watcher's report, and its sightings."""

    name: str
    told_at: datetime | None
    visits: int
    known: int
    last_at: datetime | None
    picture: str | None
    problem: str | None = None
    frames: int = 0
    faces: int = 0
    usable: int = 0
    width: float | None = None
    reasons: dict[str, int] = {}


class Candidate(Answer):
    subject: str
    name: str | None
    score: float
    template_score: float | None
    face_id: str


class Challenge(Answer):
    challenge: str
    steps: list[str]
    expires_at: datetime


class ChallengeAnswer(Answer):
    """The answer of the operation that the challenge was made for, about the first frame; the other
    fields are null."""

    operation: str
    verify: SubjectVerifyAnswer | None = None
    identify: IdentifyAnswer | None = None
    enroll: EnrollAnswer | None = None


class Choice(Answer):
    """Which face of a photo was used, and why."""

    index: int
    why: str
    runner_up_share: float | None
    track: list[int] | None = None


class ChosenFace(Answer):
    """The face of a photo that an operation used."""

    box: Box
    landmarks: list[tuple[float, float]] | None
    score: float
    quality: Quality
    image: ImageSize
    faces: int
    liveness: Liveness | None = None


class Cleared(Answer):
    """The places on disk that could hold the data, and how each was cleared."""

    tables: str
    write_ahead_log: str
    index_copies: str


class Correction(Answer):
    """A probe that does not show the subject."""

    id: str
    subject: str
    model: str
    has_crop: bool
    created_at: datetime
    expires_at: datetime


class CorrectionList(Answer):
    corrections: list[Correction]


class DecidedBy(Answer):
    """The calibration that a threshold is from."""

    source: str
    name: str | None
    fallback: str | None = None
    ratio: float | None = None


class Defaults(Answer):
    """The server's default error rates and embedder, which a request or a gallery may override."""

    fmr: float
    fpir: float
    embedder: str


class Deleted(Answer):
    deleted: int


class DetectAnswer(Answer):
    image: ImageSize
    faces: list[DetectedFace]
    explain: Explain | None = None


class DetectedFace(Answer):
    box: Box
    landmarks: list[tuple[float, float]] | None
    score: float
    quality: Quality


class EmbedAnswer(Answer):
    image: ImageSize
    faces: list[EmbeddedFace]
    model: str
    explain: Explain | None = None


class EmbeddedFace(Answer):
    box: Box
    landmarks: list[tuple[float, float]] | None
    score: float
    quality: Quality
    embedding: list[float] | None


class EnrollAnswer(Answer):
    subject: str
    created: bool
    enrolled: list[EnrolledFace]
    rejected: list[RejectedImage]
    model: str
    explain: Explain | None = None


class EnrolledFace(Answer):
    index: int
    face_id: str
    quality: Quality
    box: Box
    duplicate: Resemblance | None = None
    conflict: Resemblance | None = None
    unlike: Resemblance | None = None
    liveness: Liveness | None = None


class ErasedCounts(Answer):
    faces: int
    templates: int
    crops: int
    corrections: int = 0
    sightings: int = 0


class ErasedSubject(Answer):
    """The subject, as a hash that can be checked only with its id."""

    salt: str
    digest: str


class ErrorRate(Answer):
    """An error rate measured on the gallery itself, with its 95 % interval, resampled by subject."""

    value: float
    low: float
    high: float
    faces: int
    subjects: int


class Explain(Answer):
    """Explains how the answer came about; only with `explain=true`."""

    stages: dict[str, float]
    batch_size: int | None
    comparisons: float | None = None
    track: list[int] | None = None
    chosen: list[Choice] = []
    nearest_other: list[NearestOther | None] = []
    ruled_out: list[list[RuledOut]] = []


class FacePage(Answer):
    faces: list[StoredFace]
    next_cursor: str | None


class Finding(Answer):
    """Something that is probably wrong in a gallery."""

    id: str
    kind: str
    strength: float
    face: FindingFace
    other: FindingFace | None
    evidence: FindingEvidence
    actions: list[FindingAction]
    dismissed: bool


class FindingAction(Answer):
    """A way to correct a finding: merge `subject` into the subject `to`, split its `faces` off into a
    new subject `to`, move its face to `to`, delete the face, or enroll a better photo of the
    subject."""

    do: str
    subject: str
    face_id: str | None
    to: str | None
    faces: list[str] = []


class FindingEvidence(Answer):
    """The numbers behind a finding, null if they don't apply. Keys without `admin` get coarse scores,
    and null below every operating point."""

    score: float | None
    own_score: float | None
    matching: float | None
    threshold: float | None
    fmr: float | None


class FindingFace(Answer):
    face_id: str
    subject: str
    name: str | None
    faces: int
    quality: float
    has_crop: bool


class Gallery(Answer):
    id: str
    embedder: str
    store: str
    search: str
    calibration: str
    allow_laxer: bool
    on_conflict: str
    metadata: dict[str, Any]
    liveness: str
    subjects: int
    faces: int
    created_at: datetime
    population: list[str] = []


class GalleryCalibration(Answer):
    """The operating points of a gallery's own subjects, beside the package's."""

    gallery: str
    calibration: str
    allow_laxer: bool
    decides: DecidedBy
    measured: GalleryMeasured | None
    points: list[GalleryPoint]
    pairs: list[SuspiciousPair]
    job: Job | None


class GalleryCheck(Answer):
    """Whether the database and the search index contain the same faces with the same vectors."""

    ok: bool
    subjects: int
    faces: int
    indexed: int
    problems: list[str]
    examples: list[str]


class GalleryMeasured(Answer):
    """A gallery's calibration as it was measured."""

    model: str
    measured_at: datetime
    subjects: int
    faces: int
    compared_subjects: int
    compared_faces: int
    comparisons: int
    mated: int
    changed: float
    suspicious: int
    suspicious_expected: float | None
    left_out: int
    missed: float
    scores: Scores | None


class GalleryPage(Answer):
    galleries: list[Gallery]
    next_cursor: str | None


class GalleryPoint(Answer):
    """A threshold of the gallery; `_low`, `_high`: 95 % interval by bootstrap over subjects."""

    fmr: float
    threshold: float | None
    threshold_low: float | None
    threshold_high: float | None
    decides: float | None
    package: float | None
    found: float | None
    found_low: float | None
    found_high: float | None


class GivenConsent(Answer):
    note: str
    given_at: datetime


class Group(Answer):
    name: str
    photos: int
    comparisons: int
    rates: list[GroupRate]


class GroupRate(Answer):
    """How often two different people of the group reach a threshold; `low`, `high`: 95 % interval."""

    fmr: float
    threshold: float
    found: float
    low: float
    high: float


class GroupedFace(Answer):
    photo: int
    name: str
    face: int
    box: Box
    quality: float


class Health(Answer):
    status: str
    warnings: list[str] = []


class IdentifiedFace(Answer):
    box: Box
    landmarks: list[tuple[float, float]] | None
    score: float
    quality: Quality
    decision: str
    reason: str | None
    candidates: list[Candidate]
    displaced_by: int | None
    margin: float | None
    threshold: float
    threshold_uncertain: float
    liveness: Liveness | None = None


class IdentifyAnswer(Answer):
    image: ImageSize
    faces: list[IdentifiedFace]
    fmr: float
    fpir: float
    fmr_asked: float | None
    fpir_asked: float | None
    limited: bool
    calibration: DecidedBy
    subjects: int
    model: str
    explain: Explain | None = None
    warnings: list[PopulationWarning] | None = None


class ImageSize(Answer):
    """The upright original's size; boxes and landmarks are in its pixels."""

    width: int
    height: int
    rotated: int = 0


class Job(Answer):
    """Work that outlasts a request."""

    id: str
    kind: str
    gallery: str | None
    state: str
    done: int
    total: int | None
    counts: dict[str, int]
    error: JobError | None
    has_result: bool
    key: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class JobError(Answer):
    code: str
    message: str


class JobPage(Answer):
    jobs: list[Job]
    next_cursor: str | None


class Key(Answer):
    """A key, without its secret."""

    id: str
    name: str | None
    scopes: list[str]
    galleries: list[str] | None
    rate: str | None
    created_at: datetime
    expires_at: datetime | None
    rotated_at: datetime | None
    revoked_at: datetime | None
    old_secret_until: datetime | None
    declared: bool


class KeyPage(Answer):
    keys: list[Key]
    next_cursor: str | None


class Licence(Answer):
    name: str
    non_commercial: bool
    url: str | None


class Liveness(Answer):
    """Whether a face is live or a picture of one, decided at measured thresholds; or no decision."""

    live: str
    live_score: float
    reason: str | None


class LivenessCalibration(Answer):
    name: str
    measured_on: str
    live: int
    attacks: dict[str, int]
    smallest_face: float
    points: list[LivenessPoint]
    measured_with: str


class LivenessModel(Answer):
    """A liveness package's classes, input and measurements."""

    classes: list[str]
    live: str
    scale: float
    side: int
    calibrations: list[LivenessCalibration]


class LivenessPoint(Answer):
    """The errors at one threshold (ISO/IEC 30107-3)."""

    threshold: float
    apcer: LivenessRate
    bpcer: LivenessRate


class LivenessRate(Answer):
    """A measured error rate with its 95 % interval."""

    value: float
    low: float
    high: float


class MergedSubject(Answer):
    """The merged subject, and the faces to move back with `.../faces/move` to undo the merge."""

    subject: Subject
    merged: str
    faces: list[str]


class Model(Answer):
    id: str
    name: str
    version: str
    task: str
    title: str
    description: str
    loaded: bool
    source: str
    sha256: str
    licence: Licence
    dimension: int | None
    calibrations: list[Calibration]
    device: str | None
    providers: list[str]
    added: bool = False
    bias_card: BiasCard | None = None
    liveness: LivenessModel | None = None
    provenance: dict[str, Any] = {}
    warnings: list[str] = []


class ModelList(Answer):
    defaults: Defaults
    models: list[Model]
    skipped: list[SkippedModel] = []


class Named(Answer):
    """The sightings that became the subject's."""

    sightings: list[Sighting]


class NearestOther(Answer):
    """The nearest subject besides the answer, which shows how close a false match was."""

    subject: str
    name: str | None
    score: float


class NewKey(Answer):
    """A key with its secret, which is only in this answer."""

    id: str
    name: str | None
    scopes: list[str]
    galleries: list[str] | None
    rate: str | None
    created_at: datetime
    expires_at: datetime | None
    rotated_at: datetime | None
    revoked_at: datetime | None
    old_secret_until: datetime | None
    declared: bool
    secret: str
    aws_access_key_id: str | None
    aws_secret_access_key: str | None


class OperatingPoint(Answer):
    """A threshold, named by its measured false match rate; `_low`, `_high`: 95 % interval."""

    fmr: float
    threshold: float
    threshold_low: float | None = None
    threshold_high: float | None = None
    fnmr: float | None = None
    fnmr_low: float | None = None
    fnmr_high: float | None = None


class OwnKey(Answer):
    """The scopes and galleries of the request's key."""

    id: str
    scopes: list[str]
    galleries: list[str] | None


class PhotoGroups(Answer):
    """The groups of faces that a grouping has found. There are none until its job has ended."""

    job: Job
    groups: list[list[GroupedFace]]
    without: int


class PopulationWarning(Answer):
    """Why a stated rate does not hold for a declared group of people; the figures have a 95 %
    interval."""

    code: str
    message: str
    population: str
    fmr_found: float | None
    fmr_found_low: float | None
    fmr_found_high: float | None


class PullableFile(Answer):
    url: str
    sha256: str | None


class PullableModel(Answer):
    """A model that this version can pull by name."""

    name: str
    installed: bool
    licence: Licence
    accuracy: str | None
    max_bytes: int
    files: list[PullableFile]


class PullableModels(Answer):
    models: list[PullableModel]


class Quality(Answer):
    score: float
    reasons: list[str]


class Receipt(Answer):
    """A record of an erasure, signed with the server's key."""

    format: int
    id: str
    gallery: str
    subject: ErasedSubject
    reason: str
    erased_at: str
    erased: ErasedCounts
    cleared: Cleared
    complete: bool
    completed_at: str
    not_reached: list[str]
    signature: Signature


class ReceiptPage(Answer):
    receipts: list[Receipt]
    next_cursor: str | None


class Reembedding(Answer):
    """A gallery's move from one model package to another."""

    gallery: str
    source: str
    target: str
    state: str
    without_crop: str
    missing: int
    keep_days: float
    started_at: datetime
    switched_at: datetime | None
    keep_until: datetime | None
    job: Job | None


class RejectedImage(Answer):
    index: int
    code: str
    reasons: list[str]
    message: str
    duplicate: Resemblance | None = None
    conflict: Resemblance | None = None


class Resemblance(Answer):
    """The enrolled face that a new one resembles. All fields are null for keys without the scope
    `recognize`."""

    subject: str | None
    name: str | None
    face_id: str | None
    score: float | None
    index: int | None


class Resembling(Answer):
    sighting: Sighting
    score: float


class ResemblingList(Answer):
    """Sightings of unknown people that may be of the same person."""

    resembling: list[Resembling]


class Review(Answer):
    """A page of the findings of a gallery's last finished review."""

    gallery: str
    job: Job | None
    summary: ReviewSummary | None
    findings: list[Finding]
    next_cursor: str | None


class ReviewSummary(Answer):
    """What the last finished review compared, and how well the gallery tells its people apart."""

    model: str
    subjects: int
    faces: int
    finished_at: datetime
    counts: dict[str, int]
    dismissed: int
    fmr: float
    verify_threshold: float
    fnmr: ErrorRate | None
    fpir_expected: float
    identify_threshold: float
    fpir: ErrorRate | None


class RuledOut(Answer):
    """A candidate that a correction rules out: the probe is more like a recorded wrong probe than like
    its faces."""

    subject: str
    score: float | None
    correction: str
    correction_score: float | None


class Scores(Answer):
    """A histogram of scores: pairs in each of 100 equal bins from -1 to 1."""

    nonmated: list[int]
    mated: list[int]


class ServerKey(Answer):
    """The public part of the key that the server signs with."""

    key_id: str
    algorithm: str
    public_key: str
    pem: str


class Session(Answer):
    """A browser that stays signed in."""

    expires_at: datetime


class Sighting(Answer):
    """A visit of one person in front of one camera."""

    camera: str
    zone: str | None
    decision: str
    subject: str | None
    name: str | None
    stranger: str | None
    score: float | None
    margin: float | None
    threshold: float
    fpir: float
    frames: int
    first_at: datetime
    id: str
    quality: float
    last_at: datetime
    ended: bool
    expires_at: datetime
    has_crop: bool


class SightingPage(Answer):
    sightings: list[Sighting]
    next_cursor: str | None


class SignInCode(Answer):
    """A code that signs a browser in with the request's key, once and until it expires."""

    code: str
    expires_at: datetime


class Signature(Answer):
    """A signature over everything else in the document, as UTF-8 JSON with sorted keys and without
    white space."""

    algorithm: str
    key_id: str
    public_key: str
    value: str


class SkippedModel(Answer):
    """A folder in the models folder that contains no usable package."""

    folder: str
    problem: str


class StoredFace(Answer):
    """One enrolled image of a subject."""

    face_id: str
    box: Box
    quality: Quality
    model: str
    has_crop: bool
    created_at: datetime


class Stranger(Answer):
    """An unnamed person, grouped from sightings."""

    id: str
    ignored: bool
    note: str | None
    sightings: int
    first_at: datetime
    last_at: datetime
    cameras: list[str]
    best: str
    expires_at: datetime


class StrangerPage(Answer):
    strangers: list[Stranger]
    next_cursor: str | None


class Subject(Answer):
    id: str
    name: str | None
    metadata: dict[str, Any]
    face_count: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    consent: GivenConsent | None
    cover: str | None = None
    portrait: str | None = None


class SubjectPage(Answer):
    subjects: list[Subject]
    next_cursor: str | None


class SubjectVerifyAnswer(Answer):
    match: bool
    decision: str
    reason: str | None
    score: float | None
    threshold: float
    threshold_uncertain: float
    fmr: float
    fmr_asked: float | None
    calibration: DecidedBy
    model: str
    subject: str
    name: str | None
    template_score: float | None
    face_id: str
    face: ChosenFace
    explain: Explain | None = None
    warnings: list[PopulationWarning] | None = None


class SuspiciousFace(Answer):
    subject: str
    name: str | None
    face_id: str


class SuspiciousPair(Answer):
    """Two subjects who may be one person, with their most similar faces."""

    first: SuspiciousFace
    second: SuspiciousFace
    score: float


class VerifyAnswer(Answer):
    match: bool
    decision: str
    reason: str | None
    score: float
    threshold: float
    threshold_uncertain: float
    fmr: float
    fmr_asked: float | None
    calibration: DecidedBy
    model: str
    face1: ChosenFace
    face2: ChosenFace
    explain: Explain | None = None
    warnings: list[PopulationWarning] | None = None


class Version(Answer):
    name: str
    version: str


class Webhook(Answer):
    id: str
    url: str
    kinds: list[str]
    galleries: list[str] | None
    cameras: list[str] | None
    subjects: list[WebhookSubject] | None
    quiet_s: float
    state: str
    cursor: int
    attempts: int
    failing_since: datetime | None
    last_error: str | None
    delivered_at: datetime | None
    created_at: datetime


class WebhookList(Answer):
    webhooks: list[Webhook]


class WebhookMade(Answer):
    """A new webhook, with its secret, which is not shown again."""

    id: str
    url: str
    kinds: list[str]
    galleries: list[str] | None
    cameras: list[str] | None
    subjects: list[WebhookSubject] | None
    quiet_s: float
    state: str
    cursor: int
    attempts: int
    failing_since: datetime | None
    last_error: str | None
    delivered_at: datetime | None
    created_at: datetime
    secret: str


class WebhookSubject(Answer):
    gallery: str
    subject: str
