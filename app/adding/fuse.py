"""Fuse embedders into one: their unit vectors side by side, each weighted, in one graph.

The fused template's cosine is the weighted mean of the members' cosines, since the squared lengths of its parts are
the weights. A member may see the crop and its mirror image: its part is then the two vectors' mean direction.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, compose, helper, numpy_helper

from app.adding.new_package import add_made, check_free
from app.errors import Unusable
from app.inference import graph as steps
from app.inference.manifest import (
    CONTRACT_INPUT,
    CROP_SIDE,
    FileSource,
    Licence,
    Manifest,
    Provenance,
    Rewrite,
    SourceInput,
    contract_output,
)
from app.inference.package import Package, locate

CROPS, TEMPLATES = "crops", "templates"
LEAST_MEMBERS, MOST_MEMBERS = 2, 4


@dataclass(frozen=True, slots=True)
class Member:
    """An embedder in a fused one: its share of the cosine, and whether it sees the mirror image too."""

    package: Package
    weight: float
    mirror: bool = False

    @property
    def words(self) -> str:
        manifest = self.package.manifest
        seen = ", with the mirror image" if self.mirror else ""
        return f"{self.weight:g} of {manifest.id} (SHA-256 {manifest.sha256}{seen}; {manifest.licence.name})"


def check_members(members: Sequence[Member]) -> None:
    """Raise Unusable ``members_unsuitable`` unless these can be fused: embedders with the same canonical landmarks, no
    one twice, weights above 0."""
    problem = None
    manifests = [member.package.manifest for member in members]
    if not LEAST_MEMBERS <= len(members) <= MOST_MEMBERS or len({each.id for each in manifests}) < len(members):
        problem = f"give {LEAST_MEMBERS} to {MOST_MEMBERS} different packages"
    elif any(each.task != "embed" for each in manifests):
        problem = "all must be embedders"
    elif len({each.canonical_landmarks for each in manifests}) > 1:
        problem = "they take crops with different canonical landmarks"
    elif any(member.weight <= 0 for member in members):
        problem = "each weight must be above 0"
    if problem is not None:
        names = [each.id for each in manifests]
        raise Unusable(f"{', '.join(names)} can't be fused: {problem}.", code="members_unsuitable", packages=names)


def fuse(members: Sequence[Member], cache: Path) -> ModelProto:
    """Return one graph of the members' files: (N, 112, 112, 3) uint8 RGB -> (N, sum of D) float32, length 1, any N.

    Raises Unusable ``members_unsuitable`` and the codes of `locate`.
    """
    check_members(members)
    models = [_contract(member, cache) for member in members]
    opset, ir = max(map(steps.opset, models)), max(model.ir_version for model in models)
    models = [steps.raised_opset(model, opset) for model in models]
    total = sum(member.weight for member in members)
    nodes: list[NodeProto] = []
    constants: list[TensorProto] = []
    for place, (member, model) in enumerate(zip(members, models, strict=True)):
        graph, weight = compose.add_prefix_graph(model.graph, f"member{place}_"), f"weight{place}"
        for node in graph.node:
            steps.replace_input(node, graph.input[0].name, CROPS)
        nodes += [*graph.node, helper.make_node("Mul", [graph.output[0].name, weight], [f"part{place}"])]
        share = np.array(math.sqrt(member.weight / total), np.float32)
        constants += [*graph.initializer, numpy_helper.from_array(share, weight)]
    nodes.append(helper.make_node("Concat", [f"part{place}" for place in range(len(members))], [TEMPLATES], axis=1))
    whole = helper.make_graph(
        nodes,
        "fused",
        [helper.make_tensor_value_info(CROPS, TensorProto.UINT8, list(CONTRACT_INPUT.shape))],
        [helper.make_tensor_value_info(TEMPLATES, TensorProto.FLOAT, ["N", dimension_of(members)])],
        constants,
    )
    fused = helper.make_model(whole, ir_version=ir, opset_imports=[helper.make_opsetid("", opset)])
    steps.tidy(fused)
    return fused


def dimension_of(members: Sequence[Member]) -> int:
    """Return the length of the fused templates."""
    return sum(member.package.manifest.dimension or 0 for member in members)


def _contract(member: Member, cache: Path) -> ModelProto:
    """Return a member's graph with the contract's input and output, else as its file has it."""
    plan = member.package.manifest.prepare
    model: ModelProto = ModelProto.FromString(locate(member.package, cache).read_bytes())
    steps.keep_data_inputs(model)
    model = steps.raised_opset(model)
    if isinstance(plan, Rewrite):
        steps.free_batch(model)
        if plan.input != SourceInput():
            steps.accept_crops(model, plan.input, CROP_SIDE)
        if not plan.unit_output:
            steps.unit_output(model)
    if member.mirror:
        _add_mirror_image(model)
    return model


def _add_mirror_image(model: ModelProto) -> None:
    """Run the graph on the crops and their mirror images; each row becomes the mean direction of its two vectors."""
    graph = steps.Graph(model)
    crops, output = graph.proto.input[0].name, graph.proto.output[0]
    columns = graph.add_constant("columns", np.arange(CROP_SIDE, dtype=np.int64)[::-1])
    mirrored, both, summed = graph.fresh("mirrored"), graph.fresh("crops_and_mirrored"), graph.fresh("summed")
    halves = [graph.fresh("of_crops"), graph.fresh("of_mirrored")]
    for reader in graph.consumers(crops):
        steps.replace_input(reader, crops, both)
    graph.proto.node.insert(0, helper.make_node("Gather", [crops, columns], [mirrored], axis=2))
    graph.proto.node.insert(1, helper.make_node("Concat", [crops, mirrored], [both], axis=0))
    graph.proto.node.append(helper.make_node("Split", [output.name], halves, axis=0, num_outputs=2))
    graph.proto.node.append(helper.make_node("Add", halves, [summed]))
    output.name = summed
    steps.unit_output(model)


def strictest(licences: Sequence[Licence]) -> Licence:
    """Return the licence of what is made of all: every one's name and page; non-commercial if one of them is."""
    names, pages = (dict.fromkeys(found) for found in zip(*((one.name, one.url) for one in licences), strict=True))
    return Licence(
        name=" AND ".join(names),
        non_commercial=any(one.non_commercial for one in licences),
        url=" ".join(page for page in pages if page),
    )


def add_fused(members: Sequence[Member], name: str, chosen: str, models_dir: Path, cache_dir: Path) -> Package:
    """Add the members as one package; ``chosen`` says how weights and mirror images were chosen.

    Raises Unusable with the codes of `fuse` and `add_made`.
    """
    check_free(models_dir / name)
    content: bytes = fuse(members, cache_dir).SerializeToString()
    manifest = _manifest(members, name, chosen, hashlib.sha256(content).hexdigest())
    return add_made(content, manifest, models_dir, cache_dir)


def _manifest(members: Sequence[Member], name: str, chosen: str, sha256: str) -> Manifest:
    manifests = [member.package.manifest for member in members]
    dimension = dimension_of(members)
    title = " + ".join(each.title for each in manifests)
    return Manifest(
        name=name,
        version="1",
        task="embed",
        title=title,
        description=f"{' and '.join(each.id for each in manifests)} in one template of {dimension} numbers.",
        source=FileSource(),
        sha256=sha256,
        prepare=Rewrite(),
        input=CONTRACT_INPUT,
        output=contract_output(dimension),
        dimension=dimension,
        canonical_landmarks=manifests[0].canonical_landmarks,
        licence=strictest([each.licence for each in manifests]),
        provenance=Provenance(text=f"Fused of {' and '.join(one.words for one in members)}. {chosen}"),
    )
