"""Add an ONNX file as a liveness package; the user states the facts that its graph doesn't contain."""

from __future__ import annotations

from app.errors import Unusable
from app.features.liveness.scorer import open_liveness
from app.models.add import Added, NewPackage, check_free, make
from app.models.graph_facts import read_classifier
from app.models.presets import Stated, input_form
from app.package.folders import Package
from app.package.manifest import LivenessContract, Manifest, RewriteClassifier, Tensor


def add_liveness(new: NewPackage, contract: LivenessContract, stated: Stated) -> Added:
    """Add a liveness model's file as a package. ``contract`` names its classes, ``stated`` says what its input is. If
    this fails, nothing is left behind.

    Raises Unusable: package_exists, model_input_contradicted, and the codes of `read_classifier`, `input_form` and
    `open_liveness`.
    """
    check_free(new.folder)
    facts, side = read_classifier(new.file)
    if len(contract.classes) != facts.dimension:
        message = f"The file has {facts.dimension} classes: name each of them, in the order of its outputs."
        raise Unusable(message, code="model_input_contradicted", classes=facts.dimension)
    form = input_form(stated, facts.layout, facts.dtype)
    manifest = new.manifest(
        "; its input is as stated",
        task="liveness",
        title=f"{new.name}, {facts.dimension} classes",
        prepare=RewriteClassifier(input=form, output="probabilities" if facts.normalised else "logits"),
        input=Tensor(shape=("N", side, side, 3), dtype="uint8", meaning="cuts around faces, RGB, 0-255"),
        output=Tensor(shape=("N", facts.dimension), dtype="float32", meaning="probabilities of the classes"),
        liveness=contract,
    )

    def check(draft: Package) -> Manifest:
        open_liveness(draft, new.cache, "cpu")  # prepares the model, and compares the result with the file
        return manifest

    return Added(make(new.folder, new.file.read_bytes(), manifest, check), facts, form)
