"""Find wrong labels by the sub-centres of a run (Sub-center ArcFace, Deng et al., ECCV 2020, section 3.3).

In training with several centres per class, most of a person's images gather at one, the dominant centre, and images of
other people at the others. The next run leaves out the images far from their person's dominant centre, and needs only
one centre per class.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from app.errors import InvalidInput
from training import checkpoint
from training.losses.base import unit
from training.model import tower
from training.run.inputs import training_crops
from training.run.start import embedded


@dataclass(frozen=True, slots=True)
class Outlier:
    """An image and its angle to its person's dominant centre, in degrees."""

    image: str
    person: str
    angle: float


@dataclass(frozen=True, slots=True)
class Doubts:
    """A list of images to leave out, for `training.data.read_drop_list`; largest angle first."""

    run: str
    degrees: float
    images: int
    outliers: list[Outlier]


def find_outliers(run: Path, degrees: float, console: Console) -> Doubts:
    """Find a run's training images more than ``degrees`` (75 in the paper) from their person's dominant centre.

    Raises InvalidInput (`no_sub_centres`) if no loss of the run has several centres per class, or the data has another
    number of people than the run was trained on.
    """
    saved = checkpoint.load(checkpoint.resolve(run))
    faces, crops = training_crops(saved.recipe, console)
    weight = _centres(saved, len(crops.people))
    model = tower(checkpoint.trained_model(saved))
    cosines = [
        torch.einsum("nd,nkd->nk", vectors, weight[torch.from_numpy(crops.labels[part])]).numpy()
        for part, vectors in embedded(model, crops, np.arange(len(crops)), console)
    ]
    angles = dominant_angles(np.concatenate(cosines), crops.labels)
    chosen = [index for index in np.argsort(-angles, kind="stable").tolist() if angles[index] > degrees]
    outliers = [
        Outlier(
            faces.describe(int(crops.rows[index])), crops.people[crops.labels[index]], round(float(angles[index]), 1)
        )
        for index in chosen
    ]
    return Doubts(str(run), degrees, len(crops), outliers)


def _centres(saved: checkpoint.Checkpoint, people: int) -> Tensor:
    """Return the (C, K, D) class weights of the first loss with several centres per class."""
    weights = (term.get("weight") for term in saved.state["objective"]["terms"])
    several = (weight for weight in weights if weight is not None and weight.ndim == 3 and weight.shape[1] > 1)
    weight = next(several, None)
    if weight is None:
        message = f"{saved.path} has one centre a class: train with subcenter_arcface and centers = 3 before."
        raise InvalidInput(message, code="no_sub_centres")
    if len(weight) != people:
        message = f"{saved.path} knows {len(weight)} people, and its data now has {people}."
        raise InvalidInput(message, code="no_sub_centres")
    return unit(weight.float())


def dominant_angles(cosines: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each crop's angle in degrees, (N,), to its class's dominant centre, which is the nearest centre for most
    of the class's crops; (N, K) cosines, (N,) labels."""
    centres = cosines.shape[1]
    nearest = labels * centres + cosines.argmax(axis=1)
    votes = np.bincount(nearest, minlength=(int(labels.max()) + 1) * centres).reshape(-1, centres)
    to_main = cosines[np.arange(len(labels)), votes.argmax(axis=1)[labels]].astype(np.float64)
    return np.asarray(np.degrees(np.arccos(to_main.clip(-1, 1))), np.float64)
