"""`likeness models add --task liveness`, and how the catalogue describes such models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from app.cli import options, output
from app.cli.models.faces import main_face, open_pipeline

if TYPE_CHECKING:
    from app.adding.add import Colour, Normalisation
    from app.adding.catalogue import KnownModel
    from app.adding.liveness import AddedLiveness, StatedLiveness
    from app.adding.new_package import NewPackage
    from app.config import Settings
    from app.inference.manifest import LivenessContract, LivenessCut
    from app.types import Pixels

CUTS = {"square": ("square", "reflect", "area"), "box": ("box", "move", "linear")}
"""Two ways to cut around a face: a square that is mirrored beyond the photo's edge, and the box's own proportions,
moved into the photo. They are those that facenox's and minivision's models were trained with."""
MOST_FACES = 200
"""Faces of photos that the file is tried on, at most."""


def stated_of(
    cut: str | None,
    scale: float | None,
    classes: str | None,
    colour: Colour | None,
    normalisation: Normalisation | None,
) -> StatedLiveness:
    """Return what the options of `likeness models add` say. Raises BadParameter."""
    from app.adding.liveness import StatedLiveness  # noqa: PLC0415 - slow to import
    from app.inference.manifest import LivenessCut  # noqa: PLC0415 - slow to import

    if cut is None or scale is None:
        message = "what the model is shown can't be measured: give --cut and --scale, as it was trained"
        raise typer.BadParameter(message, param_hint="--cut, --scale")
    names = None if classes is None else tuple(one.strip() for one in classes.split(","))
    for one in names or ():
        options.check_name(one, "--classes")
    shape, edge, resize = CUTS[cut]
    shown = LivenessCut.model_validate({"scale": scale, "shape": shape, "edge": edge, "resize": resize})
    return StatedLiveness(shown, names, colour, normalisation)


def described(known: KnownModel, contract: LivenessContract) -> StatedLiveness:
    """Return what the catalogue says of a liveness model."""
    from app.adding.liveness import StatedLiveness  # noqa: PLC0415 - slow to import

    return StatedLiveness(contract.cut, contract.classes, known.colour, known.normalisation)


def add(
    new: NewPackage, stated: StatedLiveness, settings: Settings, *, photos: Path | None = None, as_json: bool = False
) -> None:
    """Add a file as a liveness package, and say what it rests on."""
    from app.adding.liveness import add_liveness  # noqa: PLC0415 - slow to import

    cuts = None if photos is None else _cuts_of(photos, stated.cut, settings)
    _say(add_liveness(new, stated, live_cuts=cuts), as_json=as_json)


def _cuts_of(folder: Path, cut: LivenessCut, settings: Settings) -> Callable[[int], Pixels]:
    """Return what cuts out the most prominent face of each photo below a folder, for a side in pixels."""
    import numpy as np  # noqa: PLC0415 - slow to import

    from app.face.liveness import Cut  # noqa: PLC0415 - slow to import

    def cuts(side: int) -> Pixels:
        pipeline = open_pipeline(settings)
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        faces = (face for path in paths if (face := main_face(pipeline, path, [Cut(side, cut)])))
        found = [face.cuts[0] for face in islice(faces, MOST_FACES)]
        return np.stack(found) if found else np.empty((0, side, side, 3), np.uint8)

    return cuts


def _say(added: AddedLiveness, *, as_json: bool) -> None:
    manifest, facts = added.package.manifest, added.facts
    contract = manifest.liveness
    if contract is None:
        raise ValueError(f"{manifest.id} is no liveness package")
    if as_json:
        output.say_json(
            {
                "model": added.package.id,
                "folder": str(added.package.folder),
                "input": added.chosen.name,
                "side": facts.side,
                "classes": list(contract.classes),
                "scale": contract.cut.scale,
                "live_faces": added.faces,
                "mean_live_score": added.chosen.mean_live,
                "separation": {one.name: round(one.separation, 3) for one in added.readings},
            }
        )
        return
    answers = "probabilities" if facts.probabilities else "logits"
    output.say(f"Input {facts.shape} {facts.dtype} ({facts.layout}), output {facts.classes} {answers}.")
    output.say(f"Read as {added.chosen.name}: {', '.join(contract.classes)}; cut at {contract.cut.scale:g} boxes.")
    if added.readings:
        rows = [[one.name, f"{one.separation:.3f}", f"{one.mean_live:.3f}"] for one in added.readings]
        output.say_table(["read as", "area under ROC", "mean score of the live"], rows)
    output.say(f"{added.package.id}: {added.package.folder}, prepared; its probabilities equal the file's own.")
    output.say("It decides nothing yet: docs/how-to/liveness.md measures its error rates on your camera.")
