"""Add an ONNX file as a model package: find its input's form, prepare it, check it and write its manifest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto
from pydantic import JsonValue

from app.adding.graph_facts import GraphFacts, read_graph
from app.adding.new_package import NewPackage
from app.adding.separation import Candidate, Comparison, Measured, choose, compare
from app.errors import Unusable
from app.face.align import CANONICAL_LANDMARKS
from app.inference import golden
from app.inference.graph import optimised
from app.inference.manifest import (
    CONTRACT_INPUT,
    CROP_SIDE,
    Manifest,
    Rewrite,
    SourceInput,
    contract_output,
)
from app.inference.package import Package
from app.inference.reference import plain_session, source_input
from app.inference.session import open_embedder
from app.machine import cores
from app.types import Pixels, Vectors

CROPS_FILE = Path(__file__).with_name("drawn.jpg")
"""Crops of drawn people, one person a row: `training.data.drawn.ProceduralFaces(PEOPLE, VIEWS)`."""
PEOPLE, VIEWS = 48, 3
Normalisation: TypeAlias = Literal["0-255", "127.5", "128", "0-1", "imagenet"]
Colour: TypeAlias = Literal["rgb", "bgr"]
NORMALISATIONS: dict[Normalisation, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "0-255": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "127.5": ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
    "128": ((127.5, 127.5, 127.5), (128.0, 128.0, 128.0)),
    "0-1": ((0.0, 0.0, 0.0), (255.0, 255.0, 255.0)),
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
}
"""Mean and standard deviation per channel, red first: none, InsightFace's two, 0 to 1, torchvision's of ImageNet."""


@dataclass(frozen=True, slots=True)
class Crops:
    """Aligned crops, (N, 112, 112, 3) uint8 RGB, who each shows, (N,), and where they are from."""

    pixels: Pixels
    people: NDArray[np.int64]
    source: str


@dataclass(frozen=True, slots=True)
class Stated:
    """The facts that the caller states of the file; None is measured."""

    colour: Colour | None = None
    normalisation: Normalisation | None = None


@dataclass(frozen=True, slots=True)
class Added:
    """A package that was added, and what it rests on."""

    package: Package
    facts: GraphFacts
    comparison: Comparison
    chosen: Measured


@cache
def drawn_crops() -> Crops:
    """Return the packaged crops of drawn people, three of each."""
    image = cv2.imread(str(CROPS_FILE), cv2.IMREAD_COLOR_RGB)
    if image is None:
        raise Unusable(f"{CROPS_FILE} is missing or damaged: install Likeness again.", code="installation_damaged")
    rows = image.reshape(PEOPLE, CROP_SIDE, VIEWS, CROP_SIDE, 3).transpose(0, 2, 1, 3, 4)
    pixels = np.ascontiguousarray(rows.reshape(-1, CROP_SIDE, CROP_SIDE, 3), np.uint8)
    return Crops(pixels, np.repeat(np.arange(PEOPLE), VIEWS), "drawn people")


def add(new: NewPackage, *, crops: Crops | None = None, stated: Stated | None = None) -> Added:
    """Add an embedder's file. What fails leaves nothing behind.

    Raises Unusable: package_exists, the codes of `read_graph`, `choose` and `open_embedder`.
    """
    new.check_free()
    model, facts = read_graph(new.file)
    crops, stated = crops or drawn_crops(), stated or Stated()
    forms = _forms(facts)
    comparison = compare(_candidates(model, forms, crops.pixels), crops.people, crops.source)
    chosen = choose(comparison, _matching(forms, facts, stated))
    manifest = _manifest(new, facts, comparison, chosen)
    with new.held():
        session = open_embedder(Package(new.folder, manifest), new.cache, "cpu")  # prepares and compares it
        package = new.finish(manifest.model_copy(update={"golden": golden.record(session.run)}))
    return Added(package, facts, comparison, chosen)


def _forms(facts: GraphFacts) -> dict[str, SourceInput]:
    """Return the forms of input to try, by name; of equally good ones the earlier is taken."""
    forms = {}
    normalisations = NORMALISATIONS if facts.dtype == "float32" else {"0-255": NORMALISATIONS["0-255"]}
    for label, (mean, std) in normalisations.items():
        form = SourceInput(layout=facts.layout, dtype=facts.dtype, mean=mean, std=std)
        forms[f"rgb {label}"] = form
        turned = {"colour": "bgr", "mean": mean[::-1], "std": std[::-1]}  # in the graph's own colour order
        forms[f"bgr {label}"] = form.model_copy(update=turned)
    return forms


def _matching(forms: dict[str, SourceInput], facts: GraphFacts, stated: Stated) -> list[str]:
    """Return the names of the forms that agree with what was stated."""
    names = [
        name
        for name in forms
        if stated.colour in {None, name.split()[0]} and stated.normalisation in {None, name.split()[1]}
    ]
    if not names:
        message = f"The file takes {facts.dtype} input: --normalisation {stated.normalisation} contradicts it."
        raise Unusable(message, code="model_input_contradicted")
    return names


def _candidates(model: ModelProto, forms: dict[str, SourceInput], crops: Pixels) -> list[Candidate]:
    """Run the file's own graph on all crops in each form."""
    session = plain_session(optimised(model), threads=cores())  # else weights are unpacked anew in each run

    def templates(form: SourceInput) -> Vectors:
        rows = [session.run(None, {session.get_inputs()[0].name: source_input(crop, form)})[0] for crop in crops]
        vectors = np.nan_to_num(np.concatenate(rows).astype(np.float64))
        unit: Vectors = (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)).astype(np.float32)
        return unit

    return [Candidate(name, form, templates(form)) for name, form in forms.items()]


def _manifest(new: NewPackage, facts: GraphFacts, comparison: Comparison, chosen: Measured) -> Manifest:
    figures: dict[str, JsonValue] = {row.candidate.name: round(row.separation, 3) for row in comparison.rows}
    return new.manifest(
        f"; its input was chosen by separation, {comparison.basis}",
        {"separation": figures},
        task="embed",
        title=f"{new.name}, {facts.dimension} dimensions",
        prepare=Rewrite(input=chosen.candidate.form, unit_output=facts.unit_output),
        input=CONTRACT_INPUT,
        output=contract_output(facts.dimension),
        dimension=facts.dimension,
        canonical_landmarks=tuple((float(x), float(y)) for x, y in CANONICAL_LANDMARKS),
    )
