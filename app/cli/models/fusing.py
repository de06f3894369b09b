"""models fuse: several embedders in one template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import options, output
from app.cli.photos import main_face, open_pipeline
from app.config import load_settings

if TYPE_CHECKING:
    from app.adding.fuse import Member, Weighed
    from app.config import Settings
    from app.inference.package import Package
    from app.types import Pixels, Vectors

MOST_PHOTOS = 5000
"""Photos that are weighed on, at most: pairs take 4 bytes for each member and mirror image, 12.5 million of them."""


def fuse(
    names: Annotated[list[str], typer.Argument(metavar="PACKAGE...", help="Embedders, two or more.")],
    *,
    name: Annotated[str, typer.Option(help="Name of the new package: a-z, 0-9 and . _ -")],
    photos: Annotated[
        Path | None,
        typer.Option(help="Folder with a folder of photos for each person, on which weights and mirror are chosen."),
    ] = None,
    weight: Annotated[
        list[float] | None, typer.Option(help="Weight of each package, in their order. Default: equal, or by --photos.")
    ] = None,
    mirror: Annotated[
        list[str] | None, typer.Option(help="Package that sees the mirror image too: better, at twice its time.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a package whose templates join those of several: more exact, at the time of all.

    Its templates compare with no other package's. Measure its operating points before it decides anything, on other
    photos than those that it was chosen on.
    """
    from app.adding.fuse import Member, add_fused  # noqa: PLC0415 - slow to import
    from app.inference.package import OWN_FOLDER, find_packages, select  # noqa: PLC0415 - slow to import

    options.check_name(name, "--name")
    if weight is not None and len(weight) != len(names):
        raise typer.BadParameter(f"{len(weight)} for {len(names)} packages", param_hint="--weight")
    if photos is not None and (weight or mirror):
        raise typer.BadParameter(
            "they choose weights and mirror; leave --weight and --mirror away", param_hint="--photos"
        )
    settings = load_settings()
    found = find_packages(settings.models_dir, settings.data_dir)
    packages, mirrored = [select(found, each) for each in names], {select(found, each).id for each in mirror or ()}
    if stray := mirrored - {each.id for each in packages}:
        raise typer.BadParameter(f"{', '.join(stray)}: not among the packages", param_hint="--mirror")
    shares = weight or [1 / len(packages)] * len(packages)
    members = [Member(each, share, each.id in mirrored) for each, share in zip(packages, shares, strict=True)]
    weighed: list[Weighed] = []
    chosen = "Weights and mirror image as stated."
    if photos is not None:
        people, weighed = _weigh(members, photos, settings)
        members = [Member(*each) for each in zip(packages, weighed[0].weights, weighed[0].mirrors, strict=True)]
        rates = " and ".join(f"{rate:g}" for rate in weighed[0].rates)
        chosen = f"Weights and mirror image chosen on photos of {people} people, by the FNMR at FMR {rates}."
    made = add_fused(members, name, chosen, settings.data_dir / OWN_FOLDER, settings.data_dir / "models")
    _say(made, members, weighed, as_json=as_json)


def _weigh(members: Sequence[Member], folder: Path, settings: Settings) -> tuple[int, list[Weighed]]:
    """Return how many people the folder's photos show, and the best weights by choice of mirror images."""
    import numpy as np  # noqa: PLC0415 - slow to import

    from app.adding.fuse import weigh  # noqa: PLC0415 - slow to import
    from app.cli.photos import each, people  # noqa: PLC0415 - slow to import
    from app.inference.session import open_embedder  # noqa: PLC0415 - slow to import
    from app.machine import cores  # noqa: PLC0415 - slow to import

    pipeline = open_pipeline(settings)
    files = [(who, path) for who, paths in people(folder).items() for path in paths][:MOST_PHOTOS]
    rows = each(lambda file: main_face(pipeline, file[1]), files, "find faces", jobs=cores())
    found = [(who, face.crop) for (who, _), face in rows if face is not None]
    sessions = [open_embedder(each.package, settings.data_dir / "models", "cpu") for each in members]

    def embed(crop: Pixels) -> list[Vectors]:
        return [session.run(np.stack([crop, crop[:, ::-1]])) for session in sessions]

    pairs = [vectors for _, vectors in each(embed, [crop for _, crop in found], "embed", jobs=cores())]
    plain, mirrored = ([np.stack([row[at][side] for row in pairs]) for at in range(len(members))] for side in (0, 1))
    names, who = np.unique([name for name, _ in found], return_inverse=True)
    return len(names), weigh(plain, mirrored, who)


def _shares(weighed: Weighed) -> list[str]:
    pairs = zip(weighed.weights, weighed.mirrors, strict=True)
    return [f"{weight:g}{' + mirror' if mirror else ''}" for weight, mirror in pairs]


def _say(made: Package, members: Sequence[Member], weighed: Sequence[Weighed], *, as_json: bool) -> None:
    rates = weighed[0].rates if weighed else ()
    if as_json:
        used = [{"model": each.package.id, "weight": each.weight, "mirror": each.mirror} for each in members]
        tried = [{"weights": each.weights, "mirror": each.mirrors, "fnmr": each.fnmr} for each in weighed]
        output.say_json({"model": made.id, "folder": str(made.folder), "members": used, "rates": rates, "tried": tried})
        return
    if weighed:
        rows = [[*_shares(one), *(f"{100 * each:.2f} %" for each in one.fnmr)] for one in weighed]
        heads = [each.package.manifest.name for each in members]
        output.say_table([*heads, *(f"FNMR at {rate:g}" for rate in rates)], rows)
    for each in members:
        output.say(f"{each.weight:g} of {each.package.id}{', with the mirror image' if each.mirror else ''}")
    output.say(f"{made.id}: {made.folder}, {made.manifest.dimension} numbers ({made.manifest.licence.name})")
    output.say(f"It has no operating points yet: likeness models measure {made.manifest.name} --photos DIR")
