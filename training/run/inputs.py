"""Make the inputs of a run from its recipe: crops, sampler, unseen people, teacher, augmentation.

Everything made from the data is kept in files (`data.indexes`, `data.cache`), so that it is made once, before the ranks
of a run join each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from rich.console import Console

from app.errors import InvalidInput, Unusable
from training.data import open_dataset, rows_left, sampler
from training.data.augment import Augment
from training.data.crops import Crops, PixelSource, all_crops, open_crops, open_pixels, split_people, whole_people
from training.data.dataset import FaceSet, Joined, OnError
from training.data.index import IndexedFaces
from training.data.mapped import FORMAT
from training.packages import find_package
from training.recipe import NOT_CHOOSING, Augmentation, Recipe
from training.run.distillation import Teacher, open_teacher
from training.run.trainer import Material
from training.terminal import counted

MOST_HELD_OUT = 0.1


def prepare_material(recipe: Recipe, models: Path, console: Console | None = None) -> Material:
    """Make what is missing: the index, filter and split of the data, its decoded copy if `data.cache` is given, and the
    teacher's templates.

    `models` is the folder of model packages that `distill.teacher` may name. Raises InvalidInput (`recipe_data`) if
    nothing is left to train on.
    """
    console = console or Console(stderr=True)
    faces, crops = training_crops(recipe, console)
    return Material(
        crops=crops,
        sampler=_sampler(recipe, faces, crops),
        held_out=_held_out(recipe, faces, crops.pixels, console),
        teacher=_teacher(recipe, crops, models, console),
        augment=Augment(recipe.augment) if recipe.augment != Augmentation() else None,
    )


def training_crops(recipe: Recipe, console: Console) -> tuple[FaceSet, Crops]:
    """Return a recipe's data, and those of its crops to train on. Raises InvalidInput (`recipe_data`)."""
    faces, pixels = _open(recipe, recipe.data.source, "train", console)
    crops = _chosen(recipe, faces, pixels, "train", lambda: _split(recipe, faces, pixels)[0])
    if len(crops.people) < 2:
        message = f"{recipe.data.source} leaves {len(crops.people)} people to train on; two are the least."
        raise InvalidInput(message, code="recipe_data")
    return faces, crops


def _sampler(recipe: Recipe, faces: FaceSet, crops: Crops) -> sampler.BatchSampler:
    size = recipe.sampler.batch_size
    if isinstance(faces, Joined):
        shares = [1 - sum(recipe.data.mix.values()), *recipe.data.mix.values()]
        groups = np.searchsorted(faces.starts, crops.rows, side="right") - 1
        return sampler.MixedSampler(groups, shares=shares, batch_size=size, seed=recipe.seed)
    if recipe.sampler.name == "shards":
        if not isinstance(faces, IndexedFaces):
            raise InvalidInput('sampler.name = "shards" needs tar shards.', code="invalid_recipe")
        shards, together = faces.shards_of(crops.rows), recipe.sampler.shards
        return sampler.ShardSampler(shards, together=together, batch_size=size, seed=recipe.seed, fetch=faces.fetch)
    name, images = recipe.sampler.name, recipe.sampler.images
    return sampler.build(name, crops.labels, batch_size=size, images=images, seed=recipe.seed)


def read_source(source: str, console: Console, drop: Path | None = None) -> Crops:
    """Open the crops of a data source, except those on the list ``drop``; each is decoded when it is read."""
    faces = open_source(source, None, console)
    return all_crops(faces, open_pixels(faces, None)).take(rows_left(faces, drop))


def open_source(
    source: str, indexes: Path | None, console: Console, on_error: OnError = "raise", copies: int | None = None
) -> FaceSet:
    """Open a data source, with a progress bar while it is indexed."""
    with counted(f"indexing {source}", None, console) as progress:
        return open_dataset(source, on_error, indexes=indexes, copies=copies, progress=progress)


def _open(recipe: Recipe, source: str, part: str, console: Console) -> tuple[FaceSet, PixelSource]:
    sources = [source, *recipe.data.mix] if part == "train" else [source]
    data, copies = recipe.data, recipe.sampler.copies
    sets = [open_source(mixed, Path(data.indexes), console, data.on_error, copies) for mixed in sources]
    faces = Joined(sets) if len(sets) > 1 else sets[0]
    with counted(f"decoding {source}", len(faces), console) as progress:
        return faces, open_pixels(faces, _folder(recipe.data.cache, part), progress)


def _chosen(recipe: Recipe, faces: FaceSet, pixels: PixelSource, part: str, choose: Callable[[], Crops]) -> Crops:
    """Return the crops of a set that the recipe uses. They are chosen once, and later mapped from a file."""
    drop = Path(recipe.data.drop).read_text("utf-8") if recipe.data.drop else ""
    data, evaluate = recipe.data.model_dump(exclude=NOT_CHOOSING), recipe.evaluate.model_dump()
    facts = json.dumps([FORMAT, faces.key(), part, recipe.seed, data, drop, evaluate], sort_keys=True)
    folder = Path(recipe.data.indexes) / f"{part}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        choose().keep(folder)
    return open_crops(pixels, folder)


def _split(recipe: Recipe, faces: FaceSet, pixels: PixelSource) -> tuple[Crops, Crops]:
    """Return the crops to train on, and those of held-out people."""
    left = all_crops(faces, pixels).take(rows_left(faces, Path(recipe.data.drop) if recipe.data.drop else None))
    kept = left.take(np.flatnonzero(np.bincount(left.labels)[left.labels] >= recipe.data.min_images))
    train, held = split_people(kept.labels, _held_out_share(recipe, len(kept)), recipe.seed)
    return kept.take(train), kept.take(held)


def _held_out_share(recipe: Recipe, crops: int) -> float:
    """Return the share of the people to hold out. By default it is enough for the crops that evaluation uses, assuming
    that all people have equally many."""
    if recipe.data.held_out is not None:
        return recipe.data.held_out
    return 0.0 if recipe.evaluate.source else min(MOST_HELD_OUT, recipe.evaluate.max_images / max(1, crops))


def _held_out(recipe: Recipe, faces: FaceSet, pixels: PixelSource, console: Console) -> Crops | None:
    """Return the unseen people to evaluate on, None if fewer than two have several crops."""

    def choose() -> Crops:
        unseen = all_crops(faces, pixels) if recipe.evaluate.source else _split(recipe, faces, pixels)[1]
        return unseen.take(whole_people(unseen.labels, recipe.evaluate.max_images, recipe.seed))

    if recipe.evaluate.source is not None:
        faces, pixels = _open(recipe, recipe.evaluate.source, "evaluate", console)
    held_out = _chosen(recipe, faces, pixels, "held-out", choose)
    return held_out if len(held_out.people) > 1 else None


def _teacher(recipe: Recipe, crops: Crops, models: Path, console: Console) -> Teacher | None:
    if recipe.distill.teacher is None:
        return None
    cache = None
    if recipe.distill.cache:
        cache = _folder(recipe.data.cache or "build/crops", "train")
    with counted(f"{recipe.distill.teacher}'s templates", len(crops.pixels), console) as progress:
        return open_teacher(
            find_package(recipe.distill.teacher, models),
            crops,
            cache=cache,
            mirror_mean=recipe.distill.mirror_mean,
            progress=progress,
        )


def _folder(cache: str | None, part: str) -> Path | None:
    return None if cache is None else Path(cache) / part


POLL_S = 0.2


def prepare_alone(recipe: Recipe, models: Path, console: Console) -> Material:
    """Call `prepare_material` under a lock on this folder of indexes, so that the first of a machine's ranks does the
    work and the others read the results.

    Raises Unusable (`preparation_timeout`), and what `prepare_material` raises.
    """
    path = Path(f"{recipe.data.indexes}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    start, waited = time.monotonic(), False
    with path.open("wb") as lock:
        while not _taken(lock):
            waited = True
            if time.monotonic() - start > recipe.data.prepare_timeout:
                message = f"Waited {recipe.data.prepare_timeout:g} s for another process to prepare the data of {path}."
                hint = "Raise data.prepare_timeout, or prepare the data first."
                raise Unusable(f"{message} {hint}", code="preparation_timeout")
            time.sleep(POLL_S)
        return prepare_material(recipe, models, Console(stderr=True, quiet=True) if waited else console)


def _taken(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
