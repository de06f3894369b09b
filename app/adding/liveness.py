"""Add an ONNX file as a liveness package: what its graph says is read, the rest is stated by the caller."""

from __future__ import annotations

from dataclasses import dataclass

from app.adding.graph_facts import ClassifierFacts, read_classifier
from app.adding.new_package import NewPackage
from app.adding.presets import Stated, input_form
from app.errors import Unusable
from app.inference.manifest import LivenessContract, LivenessCut, Manifest, RewriteClassifier, SourceInput, Tensor
from app.inference.package import Package
from app.inference.session import open_liveness

LIVE = "live"


@dataclass(frozen=True, slots=True)
class StatedLiveness:
    """The facts of a file that the caller states."""

    cut: LivenessCut
    classes: tuple[str, ...]
    """Names of the outputs in order, `LIVE` among them."""
    input: Stated


@dataclass(frozen=True, slots=True)
class AddedLiveness:
    """A package that was added, and its input."""

    package: Package
    facts: ClassifierFacts
    form: SourceInput


def add_liveness(new: NewPackage, stated: StatedLiveness) -> AddedLiveness:
    """Add a liveness model's file. What fails leaves nothing behind.

    Raises Unusable: package_exists, model_input_contradicted, and the codes of `read_classifier`, `input_form` and
    `open_liveness`.
    """
    new.check_free()
    _, facts = read_classifier(new.file)
    if len(stated.classes) != facts.classes or stated.classes.count(LIVE) != 1:
        message = f"The file has {facts.classes} classes: name them in the order of its outputs, one of them `{LIVE}`."
        raise Unusable(message, code="model_input_contradicted", classes=facts.classes)
    form = input_form(stated.input, facts.layout, facts.dtype)
    manifest = _manifest(new, stated, facts, form)

    def check(draft: Package) -> Manifest:
        open_liveness(draft, new.cache, "cpu")  # prepares it, and compares it with the file
        return manifest

    return AddedLiveness(new.make(manifest, check), facts, form)


def _manifest(new: NewPackage, stated: StatedLiveness, facts: ClassifierFacts, form: SourceInput) -> Manifest:
    side = facts.side
    return new.manifest(
        "; its input is as stated",
        task="liveness",
        title=f"{new.name}, {facts.classes} classes",
        prepare=RewriteClassifier(input=form, output="probabilities" if facts.probabilities else "logits"),
        input=Tensor(shape=("N", side, side, 3), dtype="uint8", meaning="cuts around faces, RGB, 0-255"),
        output=Tensor(shape=("N", facts.classes), dtype="float32", meaning="probabilities of the classes"),
        liveness=LivenessContract(cut=stated.cut, classes=stated.classes, live=LIVE),
    )
