"""Requests and answers of the operations on photos: detect, embed, verify, identify."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self, TypeAlias, get_args

from pydantic import Field, model_validator

from app.api.schemas.base import (
    MAX_CANDIDATES,
    MAX_ID_LENGTH,
    AskedRate,
    Example,
    Params,
    Population,
    Wire,
    is_none,
    words,
)
from app.choices import (
    CalibrationSource,
    Decision,
    Doubt,
    Fallback,
    LivenessMode,
    LivenessOf,
    PopulationCode,
    QualityName,
    Stage,
)
from app.types import DoubtReason, Verdict

FaceIndex: TypeAlias = Annotated[int, Field(ge=0)]
FACE_INDEX = "The face of {} to use, by its index in the list of `/v1/detect`; the most prominent one if absent."
XY: TypeAlias = tuple[float, float]


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


class PopulationParams(Params):
    population: Population | None = Field(
        default=None,
        description="The group of people that the photo shows, by its name in the model's `bias_card`; by default the "
        "gallery's. The answer then has `warnings`.",
        examples=["children-4-12"],
    )


class PointParams(DetectParams, PopulationParams):
    example: ClassVar[Example] = {"fmr": 0.0001}
    fmr: AskedRate | None = Field(
        default=None,
        description="False match rate of the operating point to decide at; the server's default if absent.",
        examples=[0.0001],
    )


class QualityParams(Params):
    quality: QualityName = Field(
        default="low", description="The least quality of a face to be `known`; one below it is `uncertain` at most."
    )


class LivenessParams(Params):
    liveness: LivenessMode | None = Field(
        default=None,
        description="`report` adds a verdict on whether each face is live, `require` also refuses those that are not "
        "(`not_live`); the gallery's default if absent. A gallery's `require` always holds.",
    )


class TrackParams(Params):
    track: bool = Field(
        default=False,
        description="The images show one person: their templates make one probe, decided once at the rates asked for. "
        "The most prominent face of each counts, if it has the `quality`.",
    )


class VerifyParams(PointParams, ModelParams, LivenessParams, QualityParams, TrackParams):
    face1: FaceIndex | None = Field(default=None, description=FACE_INDEX.format("the first photo"))
    face2: FaceIndex | None = Field(default=None, description=FACE_INDEX.format("the second photo"))
    liveness_of: LivenessOf = Field(
        default="both", description="Which photos are checked for liveness; the other one may show a document."
    )

    @model_validator(mode="after")
    def _faces_or_track(self) -> Self:
        if self.track and (self.face1, self.face2) != (None, None):
            raise ValueError("give face1 and face2, or track, not both")
        return self


class SubjectVerifyParams(PointParams, LivenessParams, QualityParams, TrackParams):
    pass


class IdentifyParams(DetectParams, PopulationParams, LivenessParams, QualityParams, TrackParams):
    example: ClassVar[Example] = {"limit": 5, "fpir": 0.01}
    limit: int = Field(default=5, ge=1, le=MAX_CANDIDATES, description="Maximum candidates for each face.")
    fmr: AskedRate | None = Field(
        default=None, description="False match rate of each single comparison. Can't be combined with `fpir`."
    )
    fpir: AskedRate | None = Field(
        default=None,
        description="False positive identification rate: how often someone who is not enrolled may be taken for "
        "anyone in the gallery; the threshold depends on the numbers of subjects and of their faces. "
        "Can't be combined with `fmr`.",
        examples=[0.01],
    )

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.fmr is not None and self.fpir is not None:
            raise ValueError("give fmr or fpir, not both")
        return self


class PopulationWarning(Wire):
    """Why a stated rate does not hold for a declared group of people; the figures have a 95 % interval."""

    code: PopulationCode
    message: str
    population: str
    fmr_found: float | None = Field(description="Found at a threshold as strict as the answer's or stricter.")
    fmr_found_low: float | None
    fmr_found_high: float | None


Warnings: TypeAlias = Annotated[
    list[PopulationWarning] | None,
    Field(
        exclude_if=is_none,
        description="Only where a population was declared: why `fmr` does not hold for it; empty if nothing is known "
        "against it.",
    ),
]


class Box(Wire):
    """An upright rectangle; it may extend beyond the photo's edge."""

    x: float = Field(examples=[177.4])
    y: float = Field(examples=[68.2])
    width: float = Field(examples=[92.1])
    height: float = Field(examples=[121.7])


class Quality(Wire):
    score: float = Field(ge=0, le=100, examples=[92.4], description="Higher = fewer false non-matches expected.")
    reasons: list[str] = Field(
        description="Why the quality is low, e.g. `small_face`, `low_sharpness`, `extreme_pose`; "
        "`unalignable`: it has no landmarks and is never compared."
    )


class ImageSize(Wire):
    """The upright original's size; boxes and landmarks are in its pixels."""

    width: int = Field(ge=1, examples=[512])
    height: int = Field(ge=1, examples=[512])
    rotated: int = Field(
        default=0,
        ge=0,
        le=270,
        multiple_of=90,
        description="Clockwise degrees by which the photo must be rotated so that its surest face is upright.",
    )


FivePoints: TypeAlias = Annotated[list[XY], Field(min_length=5, max_length=5)]


class DetectedFace(Wire):
    box: Box
    landmarks: FivePoints | None = Field(
        description="x, y of the person's right eye, left eye, nose tip, right and left mouth corner; null if they "
        "could not be measured (`unalignable`): such a face is never compared.",
    )
    score: float = Field(ge=0, le=1, description="The detector's score: how certain it is that this is a face.")
    quality: Quality


class Liveness(Wire):
    """Whether a face is live or a picture of one, decided at measured thresholds; or no decision."""

    live: Annotated[Verdict, words(Verdict)] = Field(
        validation_alias="verdict",
        description="`live`; `spoof`; `uncertain`: between the thresholds, or smaller than what was measured; "
        "`not_measured`: the packages have no operating points, so that nothing is decided.",
    )
    live_score: float = Field(
        validation_alias="score",
        ge=0,
        le=1,
        description="The models' mean probability of being live; it is not an error rate.",
    )
    reason: Annotated[DoubtReason, words(DoubtReason)] | None = Field(
        description="Why the face is not judged live; null if it is."
    )


class EmbeddedFace(DetectedFace):
    embedding: list[float] | None = Field(
        description="The face's template: a vector of length 1; null if its landmarks could not be measured."
    )


class ChosenFace(DetectedFace):
    """The face of a photo that an operation used."""

    image: ImageSize
    faces: int = Field(ge=1, description="How many faces the photo has; the most prominent one was used.")
    liveness: Liveness | None = Field(default=None, description="Null unless it was asked for.")


class Choice(Wire):
    """Which face of a photo was used, and why."""

    index: int = Field(ge=0, description="Its index in the list that `/v1/detect` returns for the photo.")
    why: str
    runner_up_share: float | None = Field(
        description="The next most prominent face's prominence as a share of the chosen one's; null if it is alone."
    )
    track: list[int] | None = Field(
        default=None,
        description="For a track: the indexes of the images that were fused; the face is that of the best one.",
    )


class NearestOther(Wire):
    """The nearest subject besides the answer, which shows how close a false match was."""

    subject: str
    name: str | None
    score: float


class RuledOut(Wire):
    """A candidate that a correction rules out: the probe is more like a recorded wrong probe than like its faces."""

    subject: str
    score: float | None = Field(description="The subject's score; null below the floor.")
    correction: str = Field(description="The id of the correction.")
    correction_score: float | None = Field(description="The score against its probe; null below the floor.")


class Explain(Wire):
    """Explains how the answer came about; only with `explain=true`."""

    stages: dict[str, float] = Field(
        description=f"Milliseconds in each stage ({', '.join(get_args(Stage))}), including waiting; summed over the "
        "photos."
    )
    comparisons: float | None = Field(
        default=None,
        description="Number of independent comparisons of two photos that `threshold` allows for: one per subject; if "
        "the package's calibration has no `fusion`, a subject of n faces counts as n to a measured power. Null if only "
        "photos were compared.",
    )
    track: list[int] | None = Field(
        default=None, description="The indexes of the images whose templates make the probe of a track; else null."
    )
    batch_size: int | None = Field(
        description="Number of faces in the largest embedding batch, including those of other requests."
    )
    chosen: list[Choice] = Field(
        default_factory=list, description="For each photo of which one face was used: which face, and why."
    )
    nearest_other: list[NearestOther | None] = Field(
        default_factory=list,
        description="For each face of the answer: the nearest subject that is not its match; null also if its score "
        "is not answered.",
    )
    ruled_out: list[list[RuledOut]] = Field(
        default_factory=list, description="For each face of the answer: the candidates that corrections rule out."
    )


class DetectAnswer(Wire):
    image: ImageSize
    faces: list[DetectedFace]
    explain: Explain | None = None


class EmbedAnswer(Wire):
    image: ImageSize
    faces: list[EmbeddedFace]
    model: str = Field(
        description="The package that computed the embeddings; only compare embeddings of the same package."
    )
    explain: Explain | None = None


class DecidedBy(Wire):
    """The calibration that a threshold is from."""

    source: CalibrationSource
    name: str | None = Field(
        examples=["lfw-view1"], description="Its name; null if the package has no operating points."
    )
    fallback: Fallback | None = Field(
        default=None,
        description="Why the package's calibration decides though the gallery's own is switched on: it was not "
        "measured yet (nor can it be, without the feature), has too few subjects, is of another model, or lacks this "
        "rate.",
    )
    ratio: float | None = Field(
        default=None,
        exclude_if=is_none,
        description="Only for rates below those that the gallery supports: the rate found in the gallery divided by "
        "the one that the package states, at the lowest supported rate. The package's lower rates are corrected by "
        "it.",
    )


UncertainReason: TypeAlias = Annotated[
    Doubt | None, Field(description="Why a face whose score reaches `threshold` is only `uncertain`; null otherwise.")
]


class Verified(Wire):
    match: bool = Field(description="Whether `decision` is `known`.")
    decision: Decision = Field(
        description="`known`: the score reaches `threshold`, and the faces have the quality asked for; `uncertain`: "
        "it reaches only `threshold_uncertain`, or a face is too poor (`reason`); `unknown`: neither."
    )
    reason: UncertainReason
    score: float | None = Field(
        description="The score that the decision is based on (of a subject: see `Candidate`); unless the key has the "
        "scope `templates`, rounded down, and null below the most lenient operating point."
    )
    threshold: float
    threshold_uncertain: float = Field(description="The operating point of ten times the FMR, as in `identify`.")
    fmr: float = Field(description="The false match rate measured at `threshold`.")
    fmr_asked: float | None = Field(description="The requested false match rate; null: the server's default.")
    calibration: DecidedBy = Field(description="The calibration that `threshold` is from.")
    model: str
    explain: Explain | None = None
    warnings: Warnings = None


class VerifyAnswer(Verified):
    score: float
    face1: ChosenFace
    face2: ChosenFace


class Candidate(Wire):
    subject: str
    name: str | None
    score: float = Field(
        description="The score that the decision is based on: the cosine with the subject's face; for several faces, "
        "the cosine with their mean template, reduced to the score of one photo at the same false match rate (the best "
        "face's cosine if the package's calibration has no `fusion`). Rounded down unless the key has the scope "
        "`templates`."
    )
    template_score: float | None = Field(
        description="The cosine with the mean template of the subject's faces; null below the most lenient operating "
        "point, unless the key has the scope `templates`."
    )
    face_id: str = Field(description="The subject's face that is most alike.")


class SubjectVerifyAnswer(Verified):
    subject: str
    name: str | None
    template_score: float | None = Field(
        description="The cosine with the mean template of the subject's faces; null below the most lenient operating "
        "point, unless the key has the scope `templates`."
    )
    face_id: str = Field(description="The subject's face that is most alike.")
    face: ChosenFace


class IdentifiedFace(DetectedFace):
    decision: Decision = Field(
        description="`known`: the first candidate's score reaches `threshold`, and the face has the quality asked "
        "for; `uncertain`: it reaches only `threshold_uncertain`, or the face is too poor (`reason`); `unknown`: "
        "neither, or the face could not be compared."
    )
    reason: UncertainReason
    candidates: list[Candidate] = Field(
        description="The nearest subjects, best first, without those assigned to another face of the photo."
    )
    displaced_by: int | None = Field(
        description="Index of the face that the nearest subject was assigned to, if it is another one: a person is in "
        "a photo only once, except in a mirror, a collage or on an ID card. Null otherwise."
    )
    margin: float | None = Field(
        description="First candidate's answered score minus the second's; null without a second."
    )
    threshold: float = Field(description="A face must reach this score to be `known`.")
    threshold_uncertain: float = Field(
        description="A face between this score and `threshold` is `uncertain`: the operating point of ten times the "
        "FMR, or the highest one that was measured."
    )
    liveness: Liveness | None = Field(
        default=None,
        description="Null unless it was asked for. If liveness is required, a face that is not `live` is not searched "
        "for: it is `unknown` without candidates. If no face is `live`, the answer is an error.",
    )


class IdentifyAnswer(Wire):
    image: ImageSize
    faces: list[IdentifiedFace]
    fmr: float = Field(description="The false match rate of one comparison at `threshold`.")
    fpir: float = Field(
        description="The expected false positive identification rate for the whole gallery; lower than the server's "
        "default where its default FMR is stricter (small galleries), unless a rate was asked for."
    )
    fmr_asked: float | None
    fpir_asked: float | None
    limited: bool = Field(
        description="Whether the server's default rates need an operating point that was not measured; `fpir` is "
        "then what to expect."
    )
    calibration: DecidedBy = Field(description="The calibration that `threshold` is from.")
    subjects: int = Field(ge=0, description="How many subjects with at least one face the gallery has.")
    model: str
    explain: Explain | None = None
    warnings: Warnings = None
