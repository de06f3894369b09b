"""Make models with known operating points: `measured/NAME.json` says how to make the file, and contains its manifest.

The file is made from pinned downloads or from other packages. Its bytes may differ between versions of ONNX, but its
templates must not: the manifest's golden vectors decide whether the operating points hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from onnx import ModelProto
from pydantic import Field

from app.models.add import add_made, check_free
from app.models.download import check_licence, download
from app.models.fuse import Member, fuse
from app.models.openvino_ir import read_ir
from app.package.cards import Name, Sha256, Strict
from app.package.folders import Package, select
from app.package.manifest import Manifest

FOLDER = Path(__file__).with_name("measured")


class Download(Strict):
    """A file at a fixed address, with its size and SHA-256."""

    url: str = Field(pattern=r"^https?://")
    sha256: Sha256
    size: int = Field(gt=0)
    """Size of the file in bytes."""


class OpenVino(Strict):
    """A recipe: read OpenVINO's intermediate representation."""

    kind: Literal["openvino"]
    graph: Download
    weights: Download


class FusedMember(Strict):
    """A member of a fused model: the package's id, its weight, and whether it also takes the mirror image."""

    package: str
    weight: float = Field(gt=0)
    mirror: bool = False


class Fused(Strict):
    """A recipe: fuse packages. Missing packages are made first."""

    kind: Literal["fused"]
    members: tuple[FusedMember, ...]


class MeasuredModel(Strict):
    """A model: how its file is made, and its manifest."""

    recipe: Annotated[OpenVino | Fused, Field(discriminator="kind")]
    manifest: Manifest

    @property
    def name(self) -> Name:
        return self.manifest.name

    @property
    def downloads(self) -> list[Download]:
        """Return the downloads that the model is made of, including those of its members."""
        if isinstance(self.recipe, OpenVino):
            return [self.recipe.graph, self.recipe.weights]
        by_id = {model.manifest.id: model for model in measured_models().values()}
        members = [by_id[member.package] for member in self.recipe.members if member.package in by_id]
        return [file for member in members for file in member.downloads]


@cache
def measured_models() -> Mapping[str, MeasuredModel]:
    models = (MeasuredModel.model_validate_json(path.read_bytes()) for path in sorted(FOLDER.glob("*.json")))
    return {model.name: model for model in models}


def add_measured(
    model: MeasuredModel,
    packages: Callable[[], Mapping[str, Package]],
    models_dir: Path,
    cache_dir: Path,
    *,
    accept_non_commercial: bool = False,
    folder: Path | None = None,
) -> Package:
    """Add a model and its missing members. If this fails, nothing is left behind but added members.

    ``packages`` returns the installed packages by id; ``folder`` is that of `download`.

    Raises Unusable: package_exists, and the codes of `check_licence`, `download`, `read_ir`, `fuse`, `add_made`
    (package_templates_differ: the made model's templates are not those of the measured one).
    """
    manifest = model.manifest
    check_licence(model.name, manifest.licence, accept_non_commercial=accept_non_commercial)
    check_free(models_dir / model.name)
    if isinstance(model.recipe, OpenVino):
        graph = _read(model.name, model.recipe, cache_dir, folder)
    else:
        members = model.recipe.members
        by_id = {measured.manifest.id: measured for measured in measured_models().values()}
        for member in members:
            known = by_id.get(member.package)
            if known is not None and member.package not in packages():
                add_measured(
                    known,
                    packages,
                    models_dir,
                    cache_dir,
                    accept_non_commercial=accept_non_commercial,
                    folder=folder,
                )
        installed = packages()
        graph = fuse(
            [Member(select(installed, member.package), member.weight, member.mirror) for member in members], cache_dir
        )
    content: bytes = graph.SerializeToString()
    bound = manifest.model_copy(update={"sha256": hashlib.sha256(content).hexdigest()})
    digest = {"measured_with": bound.recipe_digest}
    cards = {"bias_card": bound.bias_card, "condition_card": bound.condition_card}
    points = {"calibrations": tuple(map(bound.bind, bound.calibrations))}
    renewed = points | {name: card and card.model_copy(update=digest) for name, card in cards.items()}
    return add_made(content, bound.model_copy(update=renewed), models_dir, cache_dir)


def _read(name: str, recipe: OpenVino, cache_dir: Path, folder: Path | None) -> ModelProto:
    """Return the graph of an IR, after downloading its two files or copying them from ``folder``."""
    paths = []
    for part, wanted in (("xml", recipe.graph), ("bin", recipe.weights)):
        paths.append(cache_dir / f"{name}-{wanted.sha256[:16]}.{part}")
        download(name, wanted.url, paths[-1], wanted.size, wanted.sha256, folder=folder)
    xml, weights = paths
    graph = read_ir(xml.read_bytes(), weights.read_bytes(), name)
    for path in paths:
        path.unlink()
    return graph
