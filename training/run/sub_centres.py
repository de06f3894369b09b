"""Wrong labels by the sub-centres of a run (Sub-center ArcFace, Deng et al., ECCV 2020, section 3.3).

Trained with several centres a class, most of a person's images gather at one, the dominant centre, and images of
somebody else at the others. The images far from their person's dominant centre are left out of the next run, which
needs one centre a class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from app.errors import InvalidInput
from training import checkpoint
from training.data.crops import UNLABELLED, Crops
from training.losses.base import unit
from training.model import embed, tower
from training.recipe import Recipe
from training.run.inputs import training_crops
from training.terminal import counted

EMBEDDED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Outlier:
    """An image and its angle to its person's dominant centre, in degrees."""

    image: str
    person: str
    angle: float


@dataclass(frozen=True, slots=True)
class Doubts:
    """A list of images to leave out, as `training.data.read_drop_list` reads it; the largest angle first."""

    run: str
    degrees: float
    images: int
    outliers: list[Outlier]


def find_outliers(run: Path, degrees: float, console: Console) -> Doubts:
    """Find a run's training images more than ``degrees`` (75 in the paper) from their person's dominant centre.

    Raises InvalidInput (`no_sub_centres`) for a run without a loss that has several centres a class, or for another
    number of people than it was trained on.
    """
    saved = checkpoint.load(checkpoint.resolve(run))
    recipe = Recipe.model_validate(saved.state["recipe"])
    faces, crops = training_crops(recipe, console)
    weight = _centres(saved, len(crops.people))
    model = tower(checkpoint.trained_model(saved, recipe))
    places = np.flatnonzero(crops.labels != UNLABELLED)
    with counted("embedding the training set", len(places), console) as progress:
        cosines = centre_cosines(model, crops, places, weight, progress)
    angles = dominant_angles(cosines, crops.labels[places])
    chosen = [index for index in np.argsort(-angles, kind="stable").tolist() if angles[index] > degrees]
    outliers = [
        Outlier(
            faces.describe(int(crops.rows[places[index]])),
            crops.people[crops.labels[places[index]]],
            round(float(angles[index]), 1),
        )
        for index in chosen
    ]
    return Doubts(str(run), degrees, len(places), outliers)


def _centres(saved: checkpoint.Checkpoint, people: int) -> Tensor:
    """Return the (C, K, D) class weights of the first loss with several centres a class."""
    weights = (term.get("weight") for term in saved.state["objective"]["terms"])
    weight = next((each for each in weights if each is not None and each.ndim == 3 and each.shape[1] > 1), None)
    if weight is None:
        message = f"{saved.path} has one centre a class: train with subcenter_arcface and centers = 3 before."
        raise InvalidInput(message, code="no_sub_centres")
    if len(weight) != people:
        message = f"{saved.path} knows {len(weight)} people, and its data now has {people}."
        raise InvalidInput(message, code="no_sub_centres")
    return unit(weight.float())


def centre_cosines(
    model: nn.Module,
    crops: Crops,
    places: NDArray[np.int64],
    weight: Tensor,
    progress: Callable[[int], None] = lambda _count: None,
) -> NDArray[np.float32]:
    """Return the cosine of each crop to its own class's centres: (C, K, D) unit weights → (N, K) float32."""
    cosines = np.empty((len(places), weight.shape[1]), np.float32)
    for start in range(0, len(places), EMBEDDED_AT_ONCE):
        some = places[start : start + EMBEDDED_AT_ONCE]
        vectors = embed(model, torch.from_numpy(crops.images(some)))
        own = weight[torch.from_numpy(crops.labels[some])]  # (n, K, D)
        cosines[start : start + len(some)] = torch.einsum("nd,nkd->nk", vectors, own).numpy()
        progress(len(some))
    return cosines


def dominant_angles(cosines: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (N,) the angle in degrees of each crop to its class's dominant centre, the one nearest to most of the
    class's crops: (N, K) cosines, (N,) labels."""
    centres = cosines.shape[1]
    nearest = labels * centres + cosines.argmax(axis=1)
    votes = np.bincount(nearest, minlength=(int(labels.max()) + 1) * centres).reshape(-1, centres)
    own = cosines[np.arange(len(labels)), votes.argmax(axis=1)[labels]].astype(np.float64)
    return np.asarray(np.degrees(np.arccos(own.clip(-1, 1))), np.float64)
