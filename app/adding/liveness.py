"""Add an ONNX file as a liveness package: what its graph says is read, what live photos show is tried, the rest stated.

Which class is live, colour order and normalisation may be tried on photos of live people: the right ones separate
these from drawn faces, which are pictures. What does not separate clearly is an error, never a guess. How much of the
surroundings a model is shown can't be measured and must be stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from app.adding.add import NORMALISATIONS, Colour, Normalisation, drawn_crops
from app.adding.graph_facts import ClassifierFacts, read_classifier
from app.adding.new_package import NewPackage
from app.errors import Unusable
from app.inference.manifest import (
    LivenessContract,
    LivenessCut,
    Manifest,
    RewriteClassifier,
    SourceInput,
    Tensor,
)
from app.inference.package import Package
from app.inference.prepare import softmax
from app.inference.reference import run_plain
from app.inference.session import open_liveness
from app.types import Pixels

LIVE = "live"
LEAST_FACES = 20
"""Live faces that forms of input are tried on, at least."""
LEAST_SEPARATION = 0.9
"""Area under the ROC of live faces against drawn ones below which a file tells them apart too badly to conclude."""
SAME_SCORES = 0.02
"""Mean difference of scores up to which two forms are the same in effect, so that either will do."""
ROUNDS = 400
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StatedLiveness:
    """The facts of a file that the caller states; what is None is found by trying."""

    cut: LivenessCut
    classes: tuple[str, ...] | None = None
    """Names of the outputs in order, `LIVE` among them."""
    colour: Colour | None = None
    normalisation: Normalisation | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the file: the form of its input, and which of its classes is live."""

    form: SourceInput
    normalisation: Normalisation
    live: int
    separation: float = math.nan
    """Area under the ROC of live faces against drawn ones; NaN where nothing had to be tried."""
    mean_live: float | None = None
    """Mean score of the live faces."""

    @property
    def name(self) -> str:
        return f"{self.form.colour} {self.normalisation}, class {self.live} live"


@dataclass(frozen=True, slots=True)
class AddedLiveness:
    """A package that was added, and what it rests on; ``readings`` are those that were compared, best first."""

    package: Package
    facts: ClassifierFacts
    chosen: Reading
    readings: tuple[Reading, ...]
    faces: int


def add_liveness(
    new: NewPackage, stated: StatedLiveness, *, live_cuts: Callable[[int], Pixels] | None = None
) -> AddedLiveness:
    """Add a liveness model's file. What fails leaves nothing behind.

    ``live_cuts`` returns (N, side, side, 3) uint8 RGB cuts of live faces for a side in pixels.
    Raises Unusable: package_exists, liveness_facts_missing (to be stated), too_few_faces, model_input_ambiguous (the
    faces do not tell), model_input_contradicted, and the codes of `read_classifier` and `open_liveness`.
    """
    new.check_free()
    model, facts = read_classifier(new.file)
    readings = _readings(facts, stated)
    cuts = live_cuts(facts.side) if live_cuts is not None else None
    tried = _tried(model, facts, readings, cuts) if cuts is not None else []
    chosen = _chosen(facts, readings, tried)
    manifest = _manifest(new, stated, facts, chosen)
    with new.held():
        open_liveness(Package(new.folder, manifest), new.cache, "cpu")  # prepares it, and compares it with the file
        package = new.finish(manifest)
    compared = tuple(one.reading for one in tried)
    return AddedLiveness(package, facts, chosen, compared, 0 if cuts is None else len(cuts))


def _readings(facts: ClassifierFacts, stated: StatedLiveness) -> list[Reading]:
    """Return every way to read the file that agrees with what was stated."""
    if stated.classes is not None and (len(stated.classes) != facts.classes or stated.classes.count(LIVE) != 1):
        message = f"The file has {facts.classes} classes: name them in the order of its outputs, one of them `{LIVE}`."
        raise Unusable(message, code="model_input_contradicted", classes=facts.classes)
    normalisations = [stated.normalisation] if stated.normalisation else list(NORMALISATIONS)
    if facts.dtype == "uint8":
        if stated.normalisation not in {None, "0-255"}:
            message = f"The file takes uint8 input: --normalisation {stated.normalisation} contradicts it."
            raise Unusable(message, code="model_input_contradicted")
        normalisations = ["0-255"]
    colours: list[Colour] = [stated.colour] if stated.colour else ["rgb", "bgr"]
    classes = range(facts.classes) if stated.classes is None else [stated.classes.index(LIVE)]
    readings = []
    for normalisation in normalisations:
        mean, std = NORMALISATIONS[normalisation]
        for colour in colours:
            ordered = (mean, std) if colour == "rgb" else (mean[::-1], std[::-1])  # in the graph's own colour order
            form = SourceInput(layout=facts.layout, dtype=facts.dtype, colour=colour, mean=ordered[0], std=ordered[1])
            readings += [Reading(form, normalisation, live) for live in classes]
    return readings


@dataclass(frozen=True, slots=True)
class _Tried:
    """A reading with its scores of live faces, (N,), and of drawn ones, (M,)."""

    reading: Reading
    live: Floats
    drawn: Floats


def _tried(model: ModelProto, facts: ClassifierFacts, readings: Sequence[Reading], cuts: Pixels) -> list[_Tried]:
    """Run the file on the faces in each reading; return the readings with their figures, the best first."""
    if len(cuts) < LEAST_FACES:
        message = f"The photos show {len(cuts)} live faces; at least {LEAST_FACES} are needed."
        raise Unusable(message, code="too_few_faces", found=len(cuts), needed=LEAST_FACES)
    drawn, found = _drawn(facts.side), []
    rows: dict[str, tuple[Floats, Floats]] = {}
    for reading in readings:
        key = reading.form.model_dump_json()
        if key not in rows:
            rows[key] = _probabilities(model, facts, reading, cuts), _probabilities(model, facts, reading, drawn)
        live, pictures = (each[:, reading.live] for each in rows[key])
        measured = replace(reading, separation=_separation(live, pictures), mean_live=float(live.mean()))
        found.append(_Tried(measured, live, pictures))
    return sorted(found, key=lambda one: -one.reading.separation)


def _chosen(facts: ClassifierFacts, readings: Sequence[Reading], tried: Sequence[_Tried]) -> Reading:
    if len(readings) == 1:
        return tried[0].reading if tried else readings[0]
    if not tried:
        message = (
            "State what the file does not say: --classes (the names of its outputs in order, one of them `live`), "
            "--colour and --normalisation. Or give photos of live people (--photos), on which they are tried."
        )
        raise Unusable(message, code="liveness_facts_missing", classes=facts.classes)
    best, *others = tried
    tied = [one for one in others if not _is_same(one, best) and not _is_clearly_worse(one, best)]
    if tied or best.reading.separation < LEAST_SEPARATION:
        figures = {one.reading.name: round(one.reading.separation, 3) for one in tried}
        shown = "; ".join(f"{name}: {figure}" for name, figure in list(figures.items())[: len(tied) + 1])
        message = (
            f"{len(best.live)} live faces and {len(best.drawn)} drawn ones don't tell how the file is to be read (area "
            f"under the ROC: {shown}). State what you know: --classes, --colour, --normalisation."
        )
        raise Unusable(message, code="model_input_ambiguous", separation=figures)
    return best.reading


def _is_same(one: _Tried, other: _Tried) -> bool:
    return one.reading.live == other.reading.live and float(np.abs(one.live - other.live).mean()) <= SAME_SCORES


def _is_clearly_worse(one: _Tried, best: _Tried) -> bool:
    """Return whether a reading separates worse in 97.5 % of a bootstrap over the faces."""
    generator, behind = np.random.default_rng(0), []
    for _ in range(ROUNDS):
        live = generator.integers(0, len(best.live), len(best.live))
        drawn = generator.integers(0, len(best.drawn), len(best.drawn))
        behind.append(_separation(best.live[live], best.drawn[drawn]) - _separation(one.live[live], one.drawn[drawn]))
    return float(np.percentile(behind, 2.5)) > 0


def _probabilities(model: ModelProto, facts: ClassifierFacts, reading: Reading, cuts: Pixels) -> Floats:
    """Return (N, C) probabilities of the classes."""
    rows = np.nan_to_num(run_plain(model, reading.form, cuts))
    return rows if facts.probabilities else softmax(rows)


def _separation(live: Floats, drawn: Floats) -> float:
    """Return the area under the ROC: how often a live face's score is above a drawn one's; ties count half."""
    return float((live[:, None] > drawn).mean() + 0.5 * (live[:, None] == drawn).mean())


def _drawn(side: int) -> Pixels:
    """Return the packaged drawn faces, one of each person, as (N, side, side, 3)."""
    crops = drawn_crops()
    _, first = np.unique(crops.people, return_index=True)
    return np.stack([np.asarray(cv2.resize(crop, (side, side)), np.uint8) for crop in crops.pixels[first]])


def _manifest(new: NewPackage, stated: StatedLiveness, facts: ClassifierFacts, chosen: Reading) -> Manifest:
    classes = stated.classes or tuple(
        LIVE if place == chosen.live else f"spoof-{place}" for place in range(facts.classes)
    )
    source = "as stated" if chosen.mean_live is None else "tried on live photos"
    side = facts.side
    return new.manifest(
        f"; it is read as {chosen.name}, {source}",
        {} if chosen.mean_live is None else {"mean score of live photos": round(chosen.mean_live, 3)},
        task="liveness",
        title=f"{new.name}, {facts.classes} classes",
        prepare=RewriteClassifier(input=chosen.form, output="probabilities" if facts.probabilities else "logits"),
        input=Tensor(shape=("N", side, side, 3), dtype="uint8", meaning="cuts around faces, RGB, 0-255"),
        output=Tensor(shape=("N", facts.classes), dtype="float32", meaning="probabilities of the classes"),
        liveness=LivenessContract(cut=stated.cut, classes=classes, live=LIVE),
    )
