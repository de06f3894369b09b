"""Add an ONNX file as a model package: an embedder or a detector. If this fails, nothing is left behind.

Some facts are read from the graph, and the caller states the others. With photos of people, an embedder is tried on
them. Only YuNet's outputs can be decoded (`app.face.yunet`), so any other detector is rejected.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from pydantic import JsonValue

from app.errors import LikenessError, Unusable
from app.files import PUBLIC, replacing
from app.inference.embedders import unit
from app.machine import cores, limit_memory, memory_limit
from app.models.graph import optimised
from app.models.graph_facts import GraphFacts, read_file, read_graph
from app.models.opening import open_embedder
from app.models.packages import contract_output, new_folder, sha256_of, with_golden, write_manifest
from app.models.presets import PRESETS, Crops, Stated, Tried, choose, input_form
from app.models.reference import run_plain
from app.package import golden
from app.package.folders import Package, load_package
from app.package.manifest import (
    CONTRACT_INPUT,
    CROP_SIDE,
    Cutout,
    FileSource,
    Licence,
    Manifest,
    Provenance,
    Rewrite,
    RewriteYuNet,
    SourceInput,
    Tensor,
)
from app.types import CANONICAL_LANDMARKS

STATED = "as stated"
MOST_ALIKE = 0.8
"""Cosine of the templates of the two golden crops from which on a model counts as not telling people apart. Measured:
0.99 for a network with random weights; 0.2 for SFace with its own form of input, 0.89 with pixels scaled to ±1; 0.26
for `sface-slim`."""
DETECTOR_INPUT = Tensor(shape=("N", "H", "W", 3), dtype="uint8", meaning="photos, RGB, 0-255, sides of whole 32 pixels")
DETECTOR_OUTPUT = Tensor(
    shape=("N", "K", 15),
    dtype="float32",
    meaning="an anchor's box (centre, logarithms of the sides), five landmarks (x, y), both in strides, score 0-1",
)
Arguments = ParamSpec("Arguments")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class NewPackage:
    """A file to add as a package under a name; ``cache`` is the folder of prepared models."""

    file: Path
    name: str
    licence: Licence
    models_dir: Path
    cache: Path

    @property
    def folder(self) -> Path:
        return self.models_dir / self.name

    def manifest(self, origin: str = "", figures: Mapping[str, JsonValue] | None = None, **facts: Any) -> Manifest:
        """Return the package's manifest with these ``facts``. ``origin`` is added to the text that says where they come
        from."""
        text = f"Added from {self.file.name} by `likeness models add`{origin}."
        return Manifest(
            name=self.name,
            version="1",
            source=FileSource(),
            sha256=sha256_of(self.file),
            licence=self.licence,
            provenance=Provenance(text=text, figures=dict(figures or {})),
            **facts,
        )


@dataclass(frozen=True, slots=True)
class Added:
    """An added package, its form of input, and the presets that were tried on photos; the first one is used."""

    package: Package
    facts: GraphFacts
    form: SourceInput
    tried: tuple[Tried, ...] = ()


def add(new: NewPackage, stated: Stated | None = None, *, crops: Crops | None = None) -> Added:
    """Add an embedder's file. If this fails, nothing is left behind.

    ``stated`` says what its input is. With ``crops``, every preset is tried, and the best one is used if nothing is
    stated. Raises Unusable: package_exists, model_separates_nothing, and the codes of `read_graph`, `input_form`,
    `choose` and `open_embedder`.
    """
    check_free(new.folder)
    model, facts = read_graph(new.file)
    forms = {} if stated is None and crops is not None else {STATED: _form(stated or Stated(), facts)}
    tried: list[Tried] = []
    if crops is not None:
        forms |= {name: form for name, form in _presets(facts).items() if form not in forms.values()}
        unpacked = optimised(model)  # otherwise each run would unpack the weights again
        templates = {}
        for name, form in forms.items():
            vectors = np.nan_to_num(run_plain(unpacked, form, crops.pixels, threads=cores()))
            is_zero = (vectors == 0).all(axis=1, keepdims=True)
            templates[name] = unit(np.where(is_zero, 1.0, vectors).astype(np.float64)).astype(np.float32)
        tried = choose(templates, crops.people, None if stated is None else STATED)
    name = tried[0].name if tried else STATED
    origin = f"; its input is {name}"
    if tried:
        origin += f", the best of {len(tried)} on photos of {len(tried[0].separations)} people"
    manifest = new.manifest(
        origin,
        {"separation": {attempt.name: round(attempt.separation, 2) for attempt in tried}} if tried else {},
        task="embed",
        title=f"{new.name}, {facts.dimension} dimensions",
        prepare=Rewrite(input=forms[name], unit_output=facts.normalised),
        input=CONTRACT_INPUT,
        output=contract_output(facts.dimension),
        dimension=facts.dimension,
        canonical_landmarks=tuple((float(x), float(y)) for x, y in CANONICAL_LANDMARKS),
    )

    def check(draft: Package) -> Manifest:
        session = open_embedder(draft, new.cache, "cpu")  # prepares it, and compares the result with the file
        first, second = session.run(golden.golden_crops())
        if (cosine := float(first @ second)) >= MOST_ALIKE:
            message = (
                f"The file makes nearly the same template of two different people (cosine {cosine:.3f}). Is it a "
                "trained face embedder, and is its input what was stated?"
            )
            raise Unusable(message, code="model_separates_nothing", cosine=round(cosine, 3))
        return with_golden(manifest, session.run)

    return Added(make(new.folder, new.file.read_bytes(), manifest, check), facts, forms[name], tuple(tried))


def _form(stated: Stated, facts: GraphFacts) -> SourceInput:
    form = input_form(stated, facts.layout, facts.dtype)
    side = facts.side or stated.size
    if side is None or side == CROP_SIDE:
        return form
    scale = side / CROP_SIDE  # the model gets the whole crop, resized
    cutout = Cutout(side=side, scale=scale, left=(scale - 1) / 2, top=(scale - 1) / 2)
    return form.model_copy(update={"cutout": cutout})


def _presets(facts: GraphFacts) -> dict[str, SourceInput]:
    """Return the forms of input to try, by preset. If the graph takes uint8, only the colour order is open.

    A preset with a size of its own is tried only if the graph declares a size: other graphs may not run with it.
    """
    if facts.dtype == "uint8":
        return {colour: _form(Stated(colour), facts) for colour in ("rgb", "bgr")}
    return {name: _form(preset, facts) for name, preset in PRESETS.items() if facts.side or not preset.size}


def add_detector(new: NewPackage, finds: Callable[[Package], tuple[int, int]]) -> Package:
    """Add a YuNet's file. If this fails, nothing is left behind.

    ``finds`` opens the package; it returns the number of photos in which the detector finds a face, and the number of
    all photos. Raises Unusable: package_exists, model_unsuitable (not an ONNX file), model_separates_nothing (it finds
    no face), and what ``finds`` raises.
    """
    check_free(new.folder)
    read_file(new.file)
    title = f"{new.name}, a YuNet"
    manifest = new.manifest(
        task="detect", title=title, prepare=RewriteYuNet(), input=DETECTOR_INPUT, output=DETECTOR_OUTPUT
    )

    def check(draft: Package) -> Manifest:
        detected, photos = finds(draft)  # prepares it, and compares the result with the file
        if not detected:
            message = f"{new.file.name} finds no face in any of {photos} photos of faces."
            raise Unusable(message, code="model_separates_nothing", photos=photos)
        return manifest

    return make(new.folder, new.file.read_bytes(), manifest, check)


def check_free(folder: Path) -> None:
    """Raise Unusable ``package_exists`` if the folder exists."""
    if folder.exists():
        raise Unusable(f"{folder} exists already: remove it first.", code="package_exists", folder=str(folder))


def add_made(content: bytes, manifest: Manifest, models_dir: Path, cache_dir: Path) -> Package:
    """Add an embedder from its file's ``content`` and its manifest. If this fails, nothing is left behind.

    Its golden vectors are compared, or recorded if it has none. Raises Unusable: package_exists, and the codes of
    `open_embedder`.
    """

    def check(draft: Package) -> Manifest:
        session = open_embedder(draft, cache_dir, "cpu")  # prepares it, and compares its golden vectors
        return with_golden(manifest, session.run)

    check_free(models_dir / manifest.name)
    return make(models_dir / manifest.name, content, manifest, check)


def make(folder: Path, content: bytes, manifest: Manifest, check: Callable[[Package], Manifest]) -> Package:
    """Make the package in ``folder``, which appears after ``check`` has returned the manifest to write.

    ``check`` gets a draft of the package, with a copy of the file's ``content``.
    """
    with new_folder(folder) as draft:
        with replacing(draft / FileSource().path, PUBLIC) as file:
            file.write(content)
        write_manifest(draft, check(Package(draft, manifest)))
    return load_package(folder)


def within(
    seconds: float, work: Callable[Arguments, ResultT], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> ResultT:
    """Run ``work`` in a subprocess for at most ``seconds``, since a model's graph may loop for ever; return its result.

    The arguments and the result of ``work`` must be picklable.

    Raises the LikenessError or OSError that ``work`` raises, and Unusable: model_too_slow, model_check_failed (the
    process died).
    """
    context = multiprocessing.get_context("spawn")  # threads of this process would not survive a fork
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, seconds, work, args, kwargs), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            message = f"The model did not answer within {seconds:g} s. Is it an embedder? --time-limit gives it longer."
            raise Unusable(message, code="model_too_slow", seconds=seconds)
        outcome = receiver.recv()
    except EOFError as error:
        process.join()
        message = f"The process that ran the model ended with code {process.exitcode}; it may need more memory."
        raise Unusable(message, code="model_check_failed") from error
    finally:
        process.kill()
        process.join()
        receiver.close()
    if isinstance(outcome, LikenessError | OSError):
        raise outcome
    result: ResultT = outcome
    return result


def _answer(
    sender: Connection, seconds: float, work: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    signal.alarm(math.ceil(seconds) + 1)  # ends this process if its parent has died
    limit_memory(memory_limit())  # if memory runs out beside a server in one container, this process is killed first
    try:
        outcome = work(*args, **kwargs)
    except (LikenessError, OSError) as error:
        outcome = error
    except MemoryError:
        outcome = Unusable("The model needs more memory than there is.", code="model_check_failed")
    sender.send(outcome)
