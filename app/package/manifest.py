"""The manifest of a model package, `manifest.json`.

The manifest holds every fact about a model: its file's source and hash, its input and output, its measured operating
points, licence and provenance. Nothing is inferred from file or node names. Training writes it and the service reads
it, both through the class `Manifest`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, JsonValue, model_validator

from app.package.cards import BiasCard, ConditionCard, Name, Rate, RateInterval, Score, Sha256, Strict

PackageTask: TypeAlias = Literal["detect", "embed", "liveness"]
Layout: TypeAlias = Literal["nhwc", "nchw"]
Dtype: TypeAlias = Literal["uint8", "float32"]
Colour: TypeAlias = Literal["rgb", "bgr"]
CutShape: TypeAlias = Literal["square", "box"]
CROP_SIDE = 112
"""Height and width in pixels of an aligned crop, from ArcFace (Deng et al. 2019), section 3.1."""
LEAST_CUT_SIDE, MOST_CUT_SIDE = 16, 512
"""Minimum and maximum side in pixels of a model's input; published ones have 80 to 256."""
DEFAULT_MAX_BYTES = 1024**3
"""Default limit of a download; the largest public face models have about 0.5 GB."""
GOLDEN_TOLERANCE = 1e-3
"""Maximum distance from 1 of the length of a manifest's golden vectors, which are rounded."""


def _stays_inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or ":" in path:
        raise ValueError("must be a relative path that stays inside its folder, with / between its parts")
    return path


RelativePath = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_stays_inside)]


class FileSource(Strict):
    """The model file is in the package's own folder."""

    kind: Literal["file"] = "file"
    path: RelativePath = "model.onnx"


class CarrierSource(Strict):
    """The model file is in an installed Python distribution, whose code is never run."""

    kind: Literal["carrier"] = "carrier"
    distribution: str = Field(min_length=1)
    """The distribution's name for pip."""
    module: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The top-level import package that contains the file."""
    path: RelativePath


class UrlSource(Strict):
    """The model file is fetched on demand by `likeness models pull`."""

    kind: Literal["url"] = "url"
    url: str = Field(pattern=r"^https?://")
    max_bytes: int = Field(default=DEFAULT_MAX_BYTES, gt=0)
    """A download that exceeds this is aborted."""


class Cutout(Strict):
    """The crops that the file was trained with, if their size or cut differs from the contract's: the pixel (x, y) of a
    112×112 crop is at (scale * x + left, scale * y + top) in them. Whole crops of another size S have the scale
    S / 112, and (scale - 1) / 2 for left and top."""

    side: int = Field(ge=LEAST_CUT_SIDE, le=MOST_CUT_SIDE)
    """Height and width in pixels."""
    scale: float = Field(gt=0)
    left: float
    top: float


class SourceInput(Strict):
    """The input of the file's graph, if it differs from the contract's uint8 RGB crops."""

    layout: Layout = "nhwc"
    dtype: Dtype = "uint8"
    colour: Colour = "rgb"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Subtracted from pixels 0-255 before the graph, in the graph's own colour order."""
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Pixels are divided by this after the subtraction."""
    cutout: Cutout | None = None
    """The crops are resampled to this by bicubic interpolation; only for graphs that take float32."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(value <= 0 for value in self.std):
            raise ValueError("std must be positive")
        if self.dtype == "uint8" and self.cutout is not None:
            raise ValueError("only crops for a graph that takes float32 are resampled")
        if self.dtype == "uint8" and self.changes_values:
            raise ValueError("a graph that takes uint8 has its normalisation inside: mean 0, std 1")
        return self

    @property
    def changes_values(self) -> bool:
        return self.mean != (0.0, 0.0, 0.0) or self.std != (1.0, 1.0, 1.0)


class RunAsIs(Strict):
    """The file fulfils the contract and is run unchanged."""

    kind: Literal["none"] = "none"


class Rewrite(Strict):
    """`app.models.prepare` rewrites the graph once: adapts it to the contract if needed, and makes it fast."""

    kind: Literal["rewrite"] = "rewrite"
    input: SourceInput = SourceInput()
    unit_output: bool = True
    """Whether the file's own output already has length 1."""


class RewriteClassifier(Strict):
    """`app.models.prepare` rewrites the graph once, to take any number of uint8 RGB cuts and return probabilities."""

    kind: Literal["rewrite_classifier"] = "rewrite_classifier"
    input: SourceInput = SourceInput()
    output: Literal["logits", "probabilities"] = "logits"
    """The file's own output."""


class RewriteYuNet(Strict):
    """`app.models.yunet_graph` rewrites the graph once: it then takes photos of any size, several at once."""

    kind: Literal["rewrite_yunet"] = "rewrite_yunet"


class Tensor(Strict):
    """One input or output of the contract; a letter in the shape stands for any size."""

    shape: tuple[int | str, ...]
    dtype: Dtype
    meaning: str


class Licence(Strict):
    name: str = Field(min_length=1)
    """The licence's SPDX identifier, if it has one."""
    non_commercial: bool
    url: str = ""


class Provenance(Strict):
    """The origin of a model: recipe, data, and measured figures."""

    text: str
    url: str = ""
    figures: dict[str, JsonValue] = Field(default_factory=dict)


class Point(Strict):
    """One operating point: the threshold measured at a false match rate; low and high bound the 95 % interval."""

    fmr: float = Field(gt=0, lt=1)
    threshold: Score
    threshold_low: Score
    threshold_high: Score
    fnmr: Rate | None = None
    fnmr_low: Rate | None = None
    fnmr_high: Rate | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.threshold_low <= self.threshold <= self.threshold_high:
            raise ValueError("threshold must lie between threshold_low and threshold_high")
        rates = (self.fnmr_low, self.fnmr, self.fnmr_high)
        given = [rate for rate in rates if rate is not None]
        if len(given) not in (0, 3) or given != sorted(given):
            raise ValueError("fnmr_low, fnmr, fnmr_high: all three in this order, or none")
        return self


SCORE_BINS = 100
"""Number of equal bins from -1 to 1 in which a calibration's scores are counted."""


class Scores(Strict):
    """Histograms of the compared pairs over SCORE_BINS equal bins.

    Pairs that the points leave out (one person under two names) are counted, too.
    """

    nonmated: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=SCORE_BINS, max_length=SCORE_BINS)
    mated: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=SCORE_BINS, max_length=SCORE_BINS)


class Calibration(Strict):
    """Operating points measured on one set of photos, from the highest FMR to the lowest."""

    name: Name
    measured_on: str
    pairs: str
    """A description of the compared pairs."""
    comparisons: int = Field(gt=0)
    """Non-mated comparisons."""
    mated: int = Field(ge=0)
    """Mated comparisons."""
    points: tuple[Point, ...] = Field(min_length=2)
    default: bool = False
    scores: Scores | None = None
    independence: Annotated[float, Field(ge=0, le=1)] | None = None
    """Comparisons of a probe with n faces of one person count as n to this power; None: not measured."""
    fusion: Annotated[float, Field(ge=0, le=1)] | None = None
    """The threshold of a fused probe is that of one photo / (length of its mean)^fusion; None: not measured."""
    measured_with: Sha256 | None = None
    """`Manifest.recipe_digest` of the model that was measured; manifests of 0.1.0 have none."""

    @model_validator(mode="after")
    def _monotonic(self) -> Self:
        for earlier, later in pairwise(self.points):
            if not (later.fmr < earlier.fmr and later.threshold > earlier.threshold):
                raise ValueError("points must go from high to low fmr, with rising thresholds")
        return self


class Golden(Strict):
    """Templates of two packaged crops (`app.package.golden`), compared each time the package is opened."""

    crops: Sha256
    """SHA-256 of the crops' pixels, since templates of other crops can't be compared."""
    templates: tuple[tuple[Score, ...], ...] = Field(min_length=1, max_length=16)
    """One unit vector of each crop."""


class LivenessCut(Strict):
    """The cut around a face's box that a liveness model takes, as in its training."""

    scale: float = Field(ge=1, le=8)
    """Side of the cut as a multiple of the box's."""
    shape: CutShape = "square"
    """``square``: of the box's longer side. ``box``: in the box's own proportions, squeezed into the square input."""
    edge: Literal["reflect", "move"] = "reflect"
    """What to do at the photo's edge. ``reflect``: the photo is mirrored there. ``move``: the cut is moved into the
    photo, and made smaller if it does not fit."""
    resize: Literal["area", "linear"] = "area"
    """``area``: averages over pixels. ``linear``: between the four nearest pixels, so that fine patterns alias."""


class LivenessContract(Strict):
    """The input of a liveness model, and the meaning of its outputs."""

    cut: LivenessCut
    classes: tuple[Name, ...] = Field(min_length=2, max_length=16)
    """Names of the outputs, in order."""
    live: Name
    """The class that means a live person. Its probability is the score."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if len(set(self.classes)) != len(self.classes) or self.live not in self.classes:
            raise ValueError("classes must have different names, and live must be one of them")
        return self


class LivenessErrors(Strict):
    """The errors at one threshold: a face counts as live if its score is at or above it (ISO/IEC 30107-3)."""

    threshold: Rate
    apcer: RateInterval
    """Share of attack presentations taken for live, for the kind of attack with the highest share."""
    bpcer: RateInterval
    """Share of live presentations not taken for live."""


class LivenessCalibration(Strict):
    """Operating points measured on recordings of live people and of attacks, with rising thresholds."""

    name: Name
    measured_on: str
    live: int = Field(gt=0)
    """Number of photos of live people in which a face was found."""
    attacks: dict[Name, Annotated[int, Field(gt=0)]] = Field(min_length=1)
    """Number of photos in which a face was found, by kind of attack."""
    smallest_face: float = Field(gt=0)
    """Longer side of the smallest measured live face, in pixels; smaller faces were not measured."""
    points: tuple[LivenessErrors, ...] = Field(min_length=1)
    measured_with: Sha256
    """`liveness_digest` of the packages whose scores were averaged."""

    @model_validator(mode="after")
    def _monotonic(self) -> Self:
        for earlier, later in pairwise(self.points):
            if not earlier.threshold < later.threshold:
                raise ValueError("thresholds must rise")
            if earlier.apcer.value < later.apcer.value or earlier.bpcer.value > later.bpcer.value:
                raise ValueError("with the threshold apcer may not rise and bpcer may not fall")
        return self


CONTRACT_INPUT = Tensor(shape=("N", CROP_SIDE, CROP_SIDE, 3), dtype="uint8", meaning="aligned crops, RGB, 0-255")


class Manifest(Strict):
    """Everything known about a model. ``name@version`` is its identity: templates of different ones never compare."""

    name: Name
    version: Name
    task: PackageTask
    title: str
    description: str = ""
    source: Annotated[FileSource | CarrierSource | UrlSource, Field(discriminator="kind")]
    sha256: Sha256
    prepare: Annotated[RunAsIs | Rewrite | RewriteClassifier | RewriteYuNet, Field(discriminator="kind")] = RunAsIs()
    input: Tensor
    output: Tensor
    dimension: int | None = Field(default=None, gt=0)
    """Length D of the vectors (embed only)."""
    canonical_landmarks: tuple[tuple[float, float], ...] | None = None
    """Five (x, y) in pixels of the crop: right eye, left eye, nose, right and left mouth corner (embed only)."""
    licence: Licence
    provenance: Provenance
    golden: Golden | None = None
    """Embed only. A package without golden vectors is opened unchecked."""
    calibrations: tuple[Calibration, ...] = ()
    bias_card: BiasCard | None = None
    """How well the operating points hold within groups of people."""
    condition_card: ConditionCard | None = None
    """How well they hold in poor photos."""
    liveness: LivenessContract | None = None
    """Liveness only."""
    liveness_calibrations: tuple[LivenessCalibration, ...] = ()
    """Liveness only: one for each measured set of packages of which this one is the first."""

    @model_validator(mode="after")
    def _fulfils_contract(self) -> Self:
        if self.task == "embed":
            self._check_embedder()
        if self.task == "liveness":
            self._check_liveness()
        elif self.liveness is not None or self.liveness_calibrations:
            raise ValueError("liveness and liveness_calibrations belong to the task liveness")
        names = [calibration.name for calibration in self.calibrations]
        if len(set(names)) != len(names):
            raise ValueError("two calibrations have the same name")
        if self.calibrations and sum(calibration.default for calibration in self.calibrations) != 1:
            raise ValueError("exactly one calibration must be the default")
        return self

    def _check_embedder(self) -> None:
        if self.dimension is None or self.canonical_landmarks is None or len(self.canonical_landmarks) != 5:
            raise ValueError("an embedder needs its dimension and five canonical_landmarks")
        if (self.input.shape, self.input.dtype) != (CONTRACT_INPUT.shape, CONTRACT_INPUT.dtype):
            raise ValueError(f"an embedder's input is {CONTRACT_INPUT.shape} uint8")
        if (self.output.shape, self.output.dtype) != (("N", self.dimension), "float32"):
            raise ValueError("an embedder's output is (N, dimension) float32")
        for template in self.golden.templates if self.golden else ():
            if len(template) != self.dimension or abs(math.hypot(*template) - 1) > GOLDEN_TOLERANCE:
                raise ValueError("golden: a template is a vector of length 1 with `dimension` numbers")

    def _check_liveness(self) -> None:
        if self.liveness is None:
            raise ValueError("a liveness model needs its liveness contract")
        side = self.input.shape[1] if len(self.input.shape) == 4 else None
        if not isinstance(side, int) or not LEAST_CUT_SIDE <= side <= MOST_CUT_SIDE:
            raise ValueError(f"a liveness model's input is (N, S, S, 3), S from {LEAST_CUT_SIDE} to {MOST_CUT_SIDE}")
        if (self.input.shape, self.input.dtype) != (("N", side, side, 3), "uint8"):
            raise ValueError("a liveness model's input is (N, S, S, 3) uint8")
        if (self.output.shape, self.output.dtype) != (("N", len(self.liveness.classes)), "float32"):
            raise ValueError("a liveness model's output is (N, classes) float32")

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def deciding(self) -> Calibration | None:
        """Return the default calibration, or None."""
        return next((calibration for calibration in self.calibrations if calibration.default), None)

    @property
    def recipe_digest(self) -> str:
        """Return the SHA-256 of everything that determines the output: the file's hash, its preparation, its input.

        Values that equal their default are left out, so that keys of later versions don't change the digest.
        """
        prepare = self.prepare.model_dump(mode="json", exclude_defaults=True) | {"kind": self.prepare.kind}
        parts: list[object] = [self.sha256, prepare, self.dimension, self.canonical_landmarks]
        if self.liveness is not None:
            parts += [self.input.shape, self.liveness.model_dump(mode="json", exclude_defaults=True)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def bind(self, calibration: Calibration) -> Calibration:
        """Return the calibration, marked as measured with this model."""
        return calibration.model_copy(update={"measured_with": self.recipe_digest})

    def without_foreign_points(self) -> tuple[Manifest, tuple[str, ...]]:
        """Return the manifest without calibrations and cards of another model, and the names of those removed.

        If the default calibration is removed, all are: the others were not chosen to decide.
        """
        digest = self.recipe_digest
        usable = tuple(calibration for calibration in self.calibrations if calibration.measured_with in {None, digest})
        if not any(calibration.default for calibration in usable):
            usable = ()
        kept: dict[str, object] = {"calibrations": usable}
        removed = [calibration.name for calibration in self.calibrations if calibration not in usable]
        for name, card in (("bias_card", self.bias_card), ("condition_card", self.condition_card)):
            if card and card.measured_with != digest:
                kept[name] = None
                removed.append(name.replace("_", " "))
        return (self.model_copy(update=kept) if removed else self), tuple(removed)


def liveness_digest(manifests: Iterable[Manifest]) -> str:
    """Return the digest that binds liveness points to the packages whose scores were averaged, in any order."""
    return hashlib.sha256("".join(sorted(manifest.recipe_digest for manifest in manifests)).encode()).hexdigest()
