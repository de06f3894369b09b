"""Answers about the server itself (its models, key, version, health and errors) and its jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from app.api.schemas.base import MODEL, AskedId, NextCursor, PageParams, Params, Wire
from app.choices import JobStateName


class Licence(Wire):
    name: str = Field(examples=["Apache-2.0"], description="SPDX identifier, or the licence's own name.")
    non_commercial: bool
    url: str | None


class OperatingPoint(Wire):
    """A threshold, named by its measured false match rate; `_low`, `_high`: 95 % interval."""

    fmr: float
    threshold: float
    threshold_low: float | None = None
    threshold_high: float | None = None
    fnmr: float | None = None
    fnmr_low: float | None = None
    fnmr_high: float | None = None


class Scores(Wire):
    """A histogram of scores: pairs in each of 100 equal bins from -1 to 1."""

    nonmated: list[int]
    mated: list[int]


class Calibration(Wire):
    name: str = Field(examples=["lfw-view1"])
    measured_on: str
    comparisons: int = Field(description="Non-mated comparisons.")
    mated: int
    default: bool = Field(description="Whether decisions use this one.")
    points: list[OperatingPoint]
    independence: float | None = Field(
        default=None,
        description="Comparisons with n faces of one subject count as n to this power independent ones; null if that "
        "was not measured: then all count.",
    )
    scores: Scores | None = Field(default=None, description="Null if the package's manifest has none.")


class GroupRate(Wire):
    """How often two different people of the group reach a threshold; `low`, `high`: 95 % interval."""

    fmr: float = Field(description="The stated rate of this threshold.")
    threshold: float
    found: float
    low: float
    high: float


class LivenessRate(Wire):
    """A measured error rate with its 95 % interval."""

    value: float
    low: float
    high: float


class Group(Wire):
    name: str = Field(description="Part of another group where there is a slash: `adults-18-59/female-asian`.")
    photos: int
    comparisons: int
    rates: list[GroupRate]


class BiasCard(Wire):
    """False match rates within groups of people."""

    measured_on: str
    calibration: str = Field(description="The calibration whose operating points were measured.")
    repeats: str = Field(description="What was done about people who appear twice.")
    groups: list[Group]


class LivenessPoint(Wire):
    """The errors at one threshold (ISO/IEC 30107-3)."""

    threshold: float
    apcer: LivenessRate = Field(
        description="Share of attacks judged live, for the kind of attack with the highest share."
    )
    bpcer: LivenessRate = Field(description="Share of live faces not judged live.")


class LivenessCalibration(Wire):
    name: str
    measured_on: str
    live: int = Field(description="Photos of live people.")
    attacks: dict[str, int] = Field(description="Photos of each kind of attack.")
    smallest_face: float = Field(description="Longer side of the smallest live face measured, in pixels.")
    points: list[LivenessPoint]
    measured_with: str = Field(description="Hash of the packages whose scores were averaged.")


class LivenessModel(Wire):
    """A liveness package's classes, input and measurements."""

    classes: list[str]
    live: str = Field(description="The class that means a live person.")
    scale: float = Field(description="Sides of the cut, in sides of the face's box.")
    side: int = Field(description="Side of its input in pixels.")
    calibrations: list[LivenessCalibration] = Field(description="Empty: it decides nothing.")


class Model(Wire):
    id: str = Field(examples=[MODEL], description="`name@version`.")
    name: str = Field(examples=["sface"])
    version: str
    task: str = Field(description="`detect`, `embed` or `liveness`.")
    title: str
    description: str
    loaded: bool = Field(description="Whether this server is running it now.")
    added: bool = Field(default=False, description="Whether it was added here, and so can be removed.")
    source: str = Field(description="Where its file comes from: `file`, `carrier` (a Python package) or `url`.")
    sha256: str
    licence: Licence
    dimension: int | None = Field(description="Length of its templates; null for other tasks.")
    calibrations: list[Calibration]
    bias_card: BiasCard | None = Field(
        default=None, description="How its operating points hold within groups of people; null: not measured."
    )
    liveness: LivenessModel | None = Field(default=None, description="Null for other tasks.")
    device: str | None = Field(description="Where it runs, e.g. `cpu`; null when not loaded.")
    providers: list[str] = Field(description="ONNX Runtime's execution providers.")
    provenance: dict[str, Any] = Field(default_factory=dict, description="The package's origin and measurements.")
    warnings: list[str] = Field(
        default_factory=list,
        description="Parts of its manifest that are not used, e.g. another model's operating points.",
    )


class SkippedModel(Wire):
    """A folder in the models folder that contains no usable package."""

    folder: str
    problem: str = Field(description="What is wrong with its manifest.")


class Defaults(Wire):
    """The server's default error rates and embedder, which a request or a gallery may override."""

    fmr: float = Field(description="Verification: false match rate.")
    fpir: float = Field(description="Identification: false positive identification rate.")
    embedder: str = Field(description="The model package of new galleries, `name@version`.")


class ModelList(Wire):
    defaults: Defaults
    models: list[Model]
    skipped: list[SkippedModel] = Field(
        default_factory=list, description="Folders whose manifest can't be used; the server goes on without them."
    )


class Version(Wire):
    name: str
    version: str


class Health(Wire):
    status: Literal["ok", "starting", "draining", "index_unavailable", "storage_unavailable", "audit_unavailable"]
    warnings: list[Literal["clock_ahead"]] = Field(
        default_factory=list,
        exclude_if=lambda warnings: not warnings,
        description="Absent if there are none. `clock_ahead`: the clock is further ahead of the newest stored time "
        "than it can be, so nothing is expired or deleted by its age until it is corrected, or has gone on steadily "
        "for 7 days.",
    )


class Problem(Wire):
    code: str = Field(description="Stable; programs should switch on it.")
    message: str = Field(description="One sentence for people.")
    details: dict[str, Any] = Field(description="Values that belong to the code; empty for most codes.")


class ErrorAnswer(Wire):
    """The shape of every error."""

    error: Problem
    request_id: str = Field(description="Also in the header `x-request-id`, and in the server's log.")


class JobPageParams(PageParams):
    gallery: AskedId | None = Field(default=None, description="Only jobs of this gallery.")
    state: JobStateName | None = Field(default=None, description="Only jobs in this state.")


class ReportParams(Params):
    format: Literal["jsonl", "csv"] = Field(default="jsonl", description="Lines of JSON, or CSV with a header.")


class JobError(Wire):
    code: str = Field(description="One of the error codes, or `job_crashed`.")
    message: str


class Job(Wire):
    """Work that outlasts a request."""

    id: str
    kind: str = Field(description="The kind of work.")
    gallery: str | None = Field(description="The gallery that it works on; null: all, or none.")
    state: JobStateName
    done: int = Field(description="Number of items processed so far.")
    total: int | None = Field(description="Number of all items, if known.")
    counts: dict[str, int] = Field(description="Counters; `refused` and `warned` items are in its report.")
    error: JobError | None = Field(examples=[None], description="Why it failed.")
    has_result: bool = Field(description="Whether it has a result, a file to fetch.")
    key: str | None = Field(description="The id of the key that created it.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class JobPage(Wire):
    jobs: list[Job]
    next_cursor: NextCursor
