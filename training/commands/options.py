"""Options that several commands share, and the photos, pairs and templates that they name. Needs no torch."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeAlias

import numpy as np
import typer

from app.choices import Device
from app.errors import OperatingPointUnavailable
from app.machine import cores
from app.models.calibration.intervals import Ints
from app.models.stages import Stages, open_stages
from app.package.folders import load_package
from app.package.thresholds import Thresholds, fmr_for
from training.evaluation.pairs import PackPhotos, PairList, Photos, read_pairs
from training.evaluation.photos import Embed, Templates, make_templates, open_photos
from training.packages import DETECTOR, MODELS, find_package
from training.terminal import counted

Arguments = ParamSpec("Arguments")
CACHE = Path("data/cache")


PairProtocol: TypeAlias = Literal["auto", "lfw", "plain"]
"""How accuracy is computed: over the list's folds (`lfw` makes folds if the list has none), or without folds."""


IMAGES_HELP = "Folder or uncompressed tar file with photos as folder/file.jpg."
Images = Annotated[Path, typer.Option(help=IMAGES_HELP)]
PhotosOf = Annotated[list[Path] | None, typer.Option(help="Pair list: take only the photos that it names; repeatable.")]
Written = Annotated[str, typer.Option(help="A few words for the manifest: which photos.")]
PackageName = Annotated[str, typer.Option(help="Embedder package: a name in --models, a name@version, or a folder.")]
Out = Annotated[Path, typer.Option(help="Folder for result.json and plots; made where it is missing.")]
Kept = Annotated[
    Path | None, typer.Option(help="File (.npz) that templates are read from, or written to if it is not there.")
]
Models = Annotated[Path, typer.Option(help="Folder of model packages.")]
Cache = Annotated[Path, typer.Option(help="Folder for prepared model files.")]
OnDevice = Annotated[Device, typer.Option(help="cpu, cuda or auto.")]
Threads = Annotated[int, typer.Option(help="Photos worked on at once; 0 = one a core.")]
Aligned = Annotated[
    bool, typer.Option("--aligned", help="The images are aligned 112×112 crops: embed them as they are.")
]
Flip = Annotated[bool, typer.Option("--flip", help="Average each template with its mirrored crop's.")]
Plots = Annotated[bool, typer.Option(help="Draw plots (needs matplotlib).")]


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateOptions:
    """The options of commands that make templates: the package, its folders, and the device."""

    package: PackageName
    templates: Kept = None
    models: Models = MODELS
    cache: Cache = CACHE
    device: OnDevice = "cpu"
    threads: Threads = 0
    aligned: Aligned = False
    flip: Flip = False

    @property
    def folder(self) -> Path:
        return find_package(self.package, self.models).folder

    def facts(self, source: Path) -> dict[str, object]:
        """Return, as plain values, everything that determines the templates of ``source``'s photos."""
        package = load_package(self.folder)
        detector = None if self.aligned else find_package(DETECTOR, self.models).id
        about, stamp = source.resolve(), source.stat() if source.is_file() else None
        return {
            "package": package.id,
            "package_sha256": package.manifest.sha256,
            "detector": detector,
            "images": str(about),
            "images_stamp": None if stamp is None else [stamp.st_size, stamp.st_mtime_ns],
            "aligned": self.aligned,
            "flip": self.flip,
        }

    @property
    def workers(self) -> int:
        return self.threads or cores()

    def open_stages(self) -> AbstractContextManager[Stages]:
        """Open the package and the detector beside it."""
        package, detector = (find_package(name, self.models) for name in (self.package, DETECTOR))
        return open_stages(package, detector, self.cache, self.device, workers=self.workers, flip=self.flip)


def with_template_options(
    *without: str,
) -> Callable[[Callable[Concatenate[TemplateOptions, Arguments], None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of TemplateOptions; the command gets them as its first
    argument. Options named in ``without`` are not offered, and keep their defaults."""
    shared = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for option in inspect.signature(TemplateOptions, eval_str=True).parameters.values()
        if option.name not in without
    ]

    def decorate(command: Callable[Concatenate[TemplateOptions, Arguments], None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)

        @wraps(command)
        def run(*args: Arguments.args, **given: Arguments.kwargs) -> None:
            chosen: dict[str, Any] = {option.name: given.pop(option.name) for option in shared}
            command(TemplateOptions(**chosen), *args, **given)

        parameters = list(signature.parameters.values())[1:]
        run.__signature__ = signature.replace(parameters=[*parameters, *shared])  # type: ignore[attr-defined]
        return run

    return decorate


def names_of(images: Path, lists: Sequence[Path]) -> list[str]:
    """Return the names of all photos, or of those that the pair lists name, sorted."""
    return sorted(
        {photo for path in lists for photo in read_pairs(path).photos} if lists else open_photos(images).names
    )


def templates_of(images: Path, lists: Sequence[Path], way: TemplateOptions) -> Templates:
    """Return the templates of all photos, or of those that the pair lists name, sorted."""
    return read_or_make_templates(images, names_of(images, lists), way)


def read_or_make_templates(images: Path, names: Sequence[str], way: TemplateOptions) -> Templates:
    """Read the templates from the file ``way.templates`` if it exists; otherwise make them and write them there."""

    def embed(stages: Stages) -> Embed:
        photos = open_photos(images)
        check_there(images, photos, names)
        embed_bytes = stages.embed_crop if way.aligned else stages.embed_photo
        return lambda name: embed_bytes(photos.read(name))

    return read_or_embed(images, names, way, embed)


def check_there(images: Path, photos: Photos, names: Sequence[str]) -> None:
    """Raise ValueError if one of these photos is not in ``images``."""
    if missing := sorted(set(names) - set(photos.names)):
        raise ValueError(f"{len(missing)} photos are not in {images}, {missing[0]} among them")


def read_or_embed(
    source: Path, names: Sequence[str], way: TemplateOptions, embed: Callable[[Stages], Embed]
) -> Templates:
    """Do what `read_or_make_templates` does; ``embed`` returns a function from a photo's name to its template.

    Raises ValueError if the kept file was made from another source, by another package or with other options.
    """
    made_by = way.facts(source)
    if (made := read_kept(way.templates, made_by)) is not None:
        return made.only(names)
    with way.open_stages() as stages, counted("embedding", len(names)) as advance:
        embedder = stages.embedder
        made = make_templates(
            embedder.package_id, embedder.dimension, names, embed(stages), threads=way.workers, progress=advance
        )
        made = dataclasses.replace(made, made_by=made_by)
    if way.templates is not None:
        made.save(way.templates)
    return made


def read_kept(kept: Path | None, made_by: Mapping[str, object]) -> Templates | None:
    """Return the templates of a kept file, or None. Raises ValueError if they were made with other options."""
    if kept is None or not kept.is_file():
        return None
    made = Templates.load(kept)
    if different := [name for name, value in made_by.items() if made.made_by.get(name) != value]:
        was = ", ".join(f"{name} {made.made_by.get(name, 'unknown')}, not {made_by[name]}" for name in different)
        raise ValueError(f"{kept} was made otherwise ({was}): name another file, or delete it")
    return made


def photos_and_pairs(images: Path | None, lists: Sequence[Path], pack: Path | None) -> tuple[Path, PairList]:
    """Return the photos' place and the pairs to compare. Raises ValueError unless given a pack or both others."""
    if pack is not None and images is None and not lists:
        return pack, PackPhotos(pack).pairs
    if pack is None and images is not None and lists:
        return images, _joined([read_pairs(path) for path in lists])
    raise ValueError("give --images and --pairs, or --pack alone")


def _joined(lists: Sequence[PairList]) -> PairList:
    """Join several lists of pairs into one; the folds of each list are numbered after those of the list before."""
    if len(lists) == 1:
        return lists[0]
    together, start = [], 0
    for listed in lists:
        together += [dataclasses.replace(pair, fold=pair.fold + start) for pair in listed.pairs]
        start += listed.folds
    return PairList(tuple(together), start)


def fold_of_each_pair(listed: PairList, protocol: PairProtocol, folds: int) -> Ints | None:
    """Return each pair's fold, or None if accuracy is computed without folds. If folds are wanted but the list has
    none, its pairs are assigned to ``folds`` folds in turn."""
    if protocol == "plain" or (protocol == "auto" and listed.folds == 1):
        return None
    return listed.fold_of if listed.folds > 1 else np.arange(len(listed.pairs)) % folds


def service_threshold(folder: Path, subjects: int) -> Callable[[float], float | None]:
    """Return a function from an FPIR to the service's threshold in a gallery of ``subjects`` (None if unmeasured)."""
    thresholds = Thresholds(load_package(folder).manifest)

    def threshold(fpir: float) -> float | None:
        try:
            return thresholds.threshold(fmr_for(fpir, subjects))
        except OperatingPointUnavailable:
            return None

    return threshold
