"""From a recipe to the inputs of a run: crops, sampler, unseen people, teacher, augmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from app.errors import InvalidInput
from training.data import open_dataset, read_drop_list, sampler
from training.data.augment import Augment, AugmentConfig
from training.data.loader import Crops, read_crops, split_people, whole_people
from training.recipe import Recipe
from training.run.distillation import Teacher, find_teacher, open_teacher
from training.run.trainer import Material


def prepare_material(recipe: Recipe, models: Path, console: Console | None = None) -> Material:
    """Read, filter and split the data, and make the teacher's templates if they are missing.

    `models` is the folder of model packages that `distill.teacher` may name. Raises InvalidInput (`recipe_data`) where
    nothing is left to train on.
    """
    console = console or Console(stderr=True)
    whole = read_source(recipe.data.source, _folder(recipe.data.cache, "train"), console)
    kept = whole.take(_kept(whole, recipe))
    unlabelled = recipe.data.unlabelled
    if missing := set(unlabelled) - set(kept.people):
        message = f"{recipe.data.source} has no {', '.join(sorted(missing))} that data.unlabelled names."
        raise InvalidInput(message, code="recipe_data")
    train_rows, held_rows = split_people(kept.without_labels(unlabelled).labels, recipe.data.held_out, recipe.seed)
    crops = kept.take(train_rows).without_labels(unlabelled)
    if len(crops.people) < 2:
        message = f"{recipe.data.source} leaves {len(crops.people)} people to train on; two are the least."
        raise InvalidInput(message, code="recipe_data")
    batches = sampler.build(
        recipe.sampler.name,
        crops.labels,
        batch_size=recipe.sampler.batch_size,
        images=recipe.sampler.images,
        seed=recipe.seed,
    )
    return Material(
        crops=crops,
        sampler=batches,
        held_out=_held_out(recipe, kept.take(held_rows), console),
        teacher=_teacher(recipe, crops, models, console),
        augment=Augment(AugmentConfig.from_mapping(recipe.augment)) if recipe.augment else None,
    )


def read_source(source: str, cache: Path | None, console: Console) -> Crops:
    """Read all crops of a data source, decoded (into `cache` if given), with a progress bar."""
    dataset = open_dataset(source)
    with _bar(console, f"reading {source}", len(dataset)) as progress:
        return read_crops(dataset, cache, progress)


def _kept(whole: Crops, recipe: Recipe) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the indices of the crops whose people are neither dropped nor have too few images."""
    dropped = set(read_drop_list(Path(recipe.data.drop))) if recipe.data.drop else set()
    counts = np.bincount(whole.labels, minlength=len(whole.people))
    wanted = [name not in dropped and counts[i] >= recipe.data.min_images for i, name in enumerate(whole.people)]
    return np.flatnonzero(np.asarray(wanted, bool)[whole.labels])


def _held_out(recipe: Recipe, rest: Crops, console: Console) -> Crops | None:
    """Return the unseen people to evaluate on, None if fewer than two have several crops."""
    unseen = rest
    if recipe.evaluate.source is not None:
        unseen = read_source(recipe.evaluate.source, _folder(recipe.data.cache, "evaluate"), console)
    chosen = whole_people(unseen.labels, recipe.evaluate.max_images, recipe.seed)
    picked = unseen.take(chosen)
    return picked if len(picked.people) > 1 else None


def _teacher(recipe: Recipe, crops: Crops, models: Path, console: Console) -> Teacher | None:
    if recipe.distill.teacher is None:
        return None
    cache = None
    if recipe.distill.cache:
        cache = _folder(recipe.data.cache or "build/crops", "train")
    with _bar(console, f"{recipe.distill.teacher}'s templates", len(crops.pixels)) as progress:
        return open_teacher(
            find_teacher(recipe.distill.teacher, models),
            crops,
            cache=cache,
            mirror_mean=recipe.distill.mirror_mean,
            progress=progress,
        )


def _folder(cache: str | None, part: str) -> Path | None:
    return None if cache is None else Path(cache) / part


@contextmanager
def _bar(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal only; the callback takes how many more are done."""
    if not console.is_terminal:
        yield lambda _more: None
        return
    with Bar(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)
