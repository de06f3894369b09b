"""Add an ONNX file as a model package: by stated facts, compared with photos of people where there are any."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from onnx import ModelProto

from app.adding.graph_facts import GraphFacts, read_graph
from app.adding.new_package import NewPackage
from app.adding.presets import PRESETS, Stated, input_form
from app.adding.separation import Crops, Tried, choose
from app.errors import Unusable
from app.face.align import CANONICAL_LANDMARKS
from app.inference import golden
from app.inference.graph import optimised
from app.inference.manifest import CONTRACT_INPUT, CROP_SIDE, Cutout, Manifest, Rewrite, SourceInput, contract_output
from app.inference.package import Package
from app.inference.prepare import unit
from app.inference.reference import run_plain
from app.inference.session import open_embedder
from app.machine import cores
from app.types import Vectors

STATED = "as stated"
MOST_ALIKE = 0.8
"""Cosine of the two golden crops' templates from which on a file tells nobody apart. A network with random weights had
0.99, SFace 0.2 with its own input and 0.89 with pixels scaled to ±1, the small packaged network 0.26."""


@dataclass(frozen=True, slots=True)
class Added:
    """A package that was added, its input, and the presets that were tried on photos, the one used first."""

    package: Package
    facts: GraphFacts
    form: SourceInput
    tried: tuple[Tried, ...]


def add(new: NewPackage, stated: Stated | None = None, *, crops: Crops | None = None) -> Added:
    """Add an embedder's file. What fails leaves nothing behind.

    ``stated`` are the facts of its input. With ``crops`` every preset is tried, and the best used if nothing is stated.
    Raises Unusable: package_exists, model_separates_nothing, and the codes of `read_graph`, `input_form`, `choose` and
    `open_embedder`.
    """
    new.check_free()
    model, facts = read_graph(new.file)
    forms = {} if stated is None and crops is not None else {STATED: _form(stated or Stated(), facts)}
    tried: list[Tried] = []
    if crops is not None:
        forms |= {name: form for name, form in _presets(facts).items() if form not in forms.values()}
        templates = {name: _templates(model, form, crops) for name, form in forms.items()}
        tried = choose(templates, crops.people, None if stated is None else STATED)
    name = tried[0].name if tried else STATED
    manifest = _manifest(new, facts, forms[name], name, tried)
    return Added(new.make(manifest, partial(_checked, new.cache)), facts, forms[name], tuple(tried))


def _checked(cache: Path, package: Package) -> Manifest:
    """Prepare the package, compare it with its file, and return its manifest with golden vectors."""
    session = open_embedder(package, cache, "cpu")
    one, other = session.run(golden.golden_crops())
    if (cosine := float(one @ other)) >= MOST_ALIKE:
        message = (
            f"The file makes nearly the same template of two different people (cosine {cosine:.3f}). Is it a trained "
            "face embedder, and is its input what was stated?"
        )
        raise Unusable(message, code="model_separates_nothing", cosine=round(cosine, 3))
    return golden.with_golden(package.manifest, session.run)


def _form(stated: Stated, facts: GraphFacts) -> SourceInput:
    form = input_form(stated, facts.layout, facts.dtype)
    side = facts.side or stated.size
    if side is None or side == CROP_SIDE:
        return form
    scale = side / CROP_SIDE  # whole crops
    cutout = Cutout(side=side, scale=scale, left=(scale - 1) / 2, top=(scale - 1) / 2)
    return form.model_copy(update={"cutout": cutout})


def _presets(facts: GraphFacts) -> dict[str, SourceInput]:
    """Return the forms of input to try, by preset; a graph with uint8 input leaves only its colour order open.

    A preset's own size is tried only where the graph declares one: others need not run at it.
    """
    if facts.dtype == "uint8":
        return {colour: _form(Stated(colour), facts) for colour in ("rgb", "bgr")}
    return {name: _form(preset, facts) for name, preset in PRESETS.items() if facts.side or not preset.size}


def _templates(model: ModelProto, form: SourceInput, crops: Crops) -> Vectors:
    """Return the (N, D) unit vectors that the file's own graph makes of the crops."""
    vectors = np.nan_to_num(
        run_plain(optimised(model), form, crops.pixels, threads=cores())
    )  # else weights are unpacked in each run
    return unit(np.where(np.abs(vectors).sum(axis=1, keepdims=True) > 0, vectors, 1.0)).astype(np.float32)


def _manifest(new: NewPackage, facts: GraphFacts, form: SourceInput, name: str, tried: list[Tried]) -> Manifest:
    origin = f"; its input is {name}"
    if tried:
        origin += f", the best of {len(tried)} on photos of {len(tried[0].separations)} people"
    return new.manifest(
        origin,
        {"separation": {one.name: round(one.separation, 2) for one in tried}} if tried else {},
        task="embed",
        title=f"{new.name}, {facts.dimension} dimensions",
        prepare=Rewrite(input=form, unit_output=facts.unit_output),
        input=CONTRACT_INPUT,
        output=contract_output(facts.dimension),
        dimension=facts.dimension,
        canonical_landmarks=tuple((float(x), float(y)) for x, y in CANONICAL_LANDMARKS),
    )
