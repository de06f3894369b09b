"""Fuse embedders into one: their unit vectors side by side, each weighted, in one graph.

The cosine of two fused templates is the weighted mean of the members' cosines, since the squared lengths of a
template's parts are the weights. A member may take both the crop and its mirror image; its part is then the normalised
mean of the two vectors.

Weights and mirror images can be chosen on photos of people: all weights in steps of a tenth are tried with every choice
of mirror images, and the choice with the lowest mean FNMR at RATES wins, after adding MIRROR_GAIN per mirror image.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, compose, helper, numpy_helper

from app.errors import InvalidInput, Unusable
from app.inference.embedders import unit
from app.models import graph as steps
from app.models.add import add_made, check_free
from app.models.packages import contract_output, locate
from app.models.reference import keep_data_inputs
from app.package.folders import Package
from app.package.manifest import (
    CONTRACT_INPUT,
    CROP_SIDE,
    FileSource,
    Licence,
    Manifest,
    Provenance,
    Rewrite,
    SourceInput,
)
from app.types import Vectors

CROPS, TEMPLATES = "crops", "templates"
LEAST_MEMBERS, MOST_MEMBERS = 2, 4
RATES = (1e-3, 1e-4)
"""False match rates at which choices are compared; 1e-4 is the service's default for verification."""
LEAST_FALSE_MATCHES = 10
"""Minimum number of false matches that a rate must allow to be used; with fewer it would be unreliable."""
STEPS = 10
MIRROR_GAIN = 0.05
"""Share by which each mirror image must lower the FNMR to be chosen, since it doubles the member's time."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a fused embedder: its package, its weight in the cosine, and whether it also takes the mirror
    image."""

    package: Package
    weight: float
    mirror: bool = False


def check_members(members: Sequence[Member]) -> None:
    """Raise Unusable ``members_unsuitable`` unless the members can be fused: different embedders with the same
    canonical landmarks, and weights above 0."""
    problem = None
    manifests = [member.package.manifest for member in members]
    if not LEAST_MEMBERS <= len(members) <= MOST_MEMBERS or len({manifest.id for manifest in manifests}) < len(members):
        problem = f"give {LEAST_MEMBERS} to {MOST_MEMBERS} different packages"
    elif any(manifest.task != "embed" for manifest in manifests):
        problem = "all must be embedders"
    elif len({manifest.canonical_landmarks for manifest in manifests}) > 1:
        problem = "they take crops with different canonical landmarks"
    elif any(member.weight <= 0 for member in members):
        problem = "each weight must be above 0"
    if problem is not None:
        names = [manifest.id for manifest in manifests]
        raise Unusable(f"{', '.join(names)} can't be fused: {problem}.", code="members_unsuitable", packages=names)


def fuse(members: Sequence[Member], cache: Path) -> ModelProto:
    """Return one graph made of the members' files: (N, 112, 112, 3) uint8 RGB -> (N, sum of D) float32 of length 1, for
    any N.

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
    return sum(member.package.manifest.dimension or 0 for member in members)


def _contract(member: Member, cache: Path) -> ModelProto:
    """Return the graph of a member's file, with its input and output changed to the package contract."""
    plan = member.package.manifest.prepare
    model: ModelProto = ModelProto.FromString(locate(member.package, cache).read_bytes())
    keep_data_inputs(model)
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
    """Change the graph to run on the crops and their mirror images; each row becomes the normalised mean of its two
    vectors."""
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
    """Return the licence of a work made from works with these licences. It has all their names and URLs, and is
    non-commercial if one of them is."""
    return Licence(
        name=" AND ".join(dict.fromkeys(licence.name for licence in licences)),
        non_commercial=any(licence.non_commercial for licence in licences),
        url=" ".join(dict.fromkeys(licence.url for licence in licences if licence.url)),
    )


def add_fused(members: Sequence[Member], name: str, chosen: str, models_dir: Path, cache_dir: Path) -> Package:
    """Add the members as one package; ``chosen`` describes how weights and mirror images were chosen.

    Raises Unusable with the codes of `fuse` and `add_made`.
    """
    check_free(models_dir / name)
    content: bytes = fuse(members, cache_dir).SerializeToString()
    manifests = [member.package.manifest for member in members]
    dimension = dimension_of(members)
    parts = [
        f"{member.weight:g} of {manifest.id} (SHA-256 {manifest.sha256}"
        f"{', with the mirror image' if member.mirror else ''}; {manifest.licence.name})"
        for member, manifest in zip(members, manifests, strict=True)
    ]
    manifest = Manifest(
        name=name,
        version="1",
        task="embed",
        title=" + ".join(manifest.title for manifest in manifests),
        description=f"{' and '.join(manifest.id for manifest in manifests)} in one template of {dimension} numbers.",
        source=FileSource(),
        sha256=hashlib.sha256(content).hexdigest(),
        prepare=Rewrite(),
        input=CONTRACT_INPUT,
        output=contract_output(dimension),
        dimension=dimension,
        canonical_landmarks=manifests[0].canonical_landmarks,
        licence=strictest([manifest.licence for manifest in manifests]),
        provenance=Provenance(text=f"Fused of {' and '.join(parts)}. {chosen}"),
    )
    return add_made(content, manifest, models_dir, cache_dir)


@dataclass(frozen=True, slots=True)
class Weighed:
    """A choice that was tried: each member's weight, whether it takes the mirror image, and the FNMR at each of the
    rates."""

    weights: tuple[float, ...]
    mirrors: tuple[bool, ...]
    rates: tuple[float, ...]
    fnmr: tuple[float, ...]

    @property
    def cost(self) -> float:
        return float(np.mean(self.fnmr)) * (1 + MIRROR_GAIN) ** sum(self.mirrors)


def weigh(plain: Sequence[Vectors], mirrored: Sequence[Vectors], people: NDArray[np.int64]) -> list[Weighed]:
    """Return the best weights for every choice of mirror images, the choice to take first.

    ``plain`` and ``mirrored`` are each member's unit vectors, (N, D), of the crops and of their mirror images;
    ``people``, (N,), is the person on each crop. Raises InvalidInput ``too_few_people``.
    """
    rows, columns = np.triu_indices(len(people), 1)
    same = people[rows] == people[columns]
    rates = tuple(rate for rate in RATES if (~same).sum() * rate >= LEAST_FALSE_MATCHES)
    if not rates or not same.any():
        needed = round(LEAST_FALSE_MATCHES / RATES[0])
        message = (
            f"{int((~same).sum())} pairs of different people and {int(same.sum())} of the same are too few to choose "
            f"by: {needed} and 1 are the least. Give more photos, or state --weight for each package."
        )
        raise InvalidInput(message, code="too_few_people", needed=needed)
    both = [unit(straight + turned) for straight, turned in zip(plain, mirrored, strict=True)]

    def scores(vectors: Vectors) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        products = (vectors @ vectors.T)[rows, columns]
        return products[same], products[~same]

    known = [[scores(vectors) for vectors in variants] for variants in zip(plain, both, strict=True)]
    chosen = []
    for mirrors in product((False, True), repeat=len(plain)):
        parts = [known[place][mirror] for place, mirror in enumerate(mirrors)]
        tried = (
            Weighed(weights, mirrors, rates, _errors(weights, parts, rates)) for weights in _all_weights(len(plain))
        )
        chosen.append(min(tried, key=lambda choice: choice.cost))
    return sorted(chosen, key=lambda choice: choice.cost)


def _all_weights(members: int) -> Iterator[tuple[float, ...]]:
    """Yield all combinations of weights above 0, in steps of a tenth, that add up to 1; the most equal ones come
    first."""
    whole = [parts for parts in product(range(1, STEPS), repeat=members) if sum(parts) == STEPS]
    for parts in sorted(whole, key=np.var):
        yield tuple(part / STEPS for part in parts)


def _errors(
    weights: Sequence[float],
    parts: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]],
    rates: Sequence[float],
) -> tuple[float, ...]:
    """Return the FNMR at each rate: the share of mated scores that are not above the highest non-mated score that must
    be rejected at this rate."""
    nothing = np.zeros(1, np.float32)
    mated, nonmated = (
        sum((np.float32(weight) * part[kind] for weight, part in zip(weights, parts, strict=True)), nothing)
        for kind in (0, 1)
    )
    places = [len(nonmated) - 1 - int(len(nonmated) * rate) for rate in rates]
    limits = np.partition(nonmated, places)[places]
    return tuple(float((mated <= limit).mean()) for limit in limits)
