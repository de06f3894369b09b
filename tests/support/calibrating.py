"""A gallery with enough people to measure its own operating points, by their templates alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from app.types import Vectors
from tests.support.tarred import templates_of, units
from tests.support.waiting import job_ended

PEOPLE = 200
ALIKE = 0.08
"""The mean score of two people. It puts the threshold at FMR 1e-3 between the package's at 1e-3 and at 1e-2."""


def ended(api: httpx.Client, job: str) -> dict[str, Any]:
    """Return the job once it is done."""
    found = job_ended(api, job)
    assert found["state"] == "done", found
    return found


def add_templates(api: httpx.Client, gallery: str, subjects: Sequence[str], vectors: Vectors) -> None:
    package = api.get(f"/v1/galleries/{gallery}").raise_for_status().json()["embedder"]
    imported = api.post(
        f"/v1/galleries/{gallery}/import",
        params={"content": "templates", "package": package},
        content=templates_of(vectors, [{"subject": subject} for subject in subjects]),
        headers={"content-type": "application/x-tar"},
    )
    ended(api, imported.raise_for_status().json()["id"])


def add_random_people(api: httpx.Client, gallery: str) -> None:
    """Enroll PEOPLE with two templates each, p0 with one. The last one is also enrolled as `twice`."""
    names = [f"p{number // 2}" for number in range(2 * PEOPLE)]
    people = np.sqrt(1 - ALIKE) * units(PEOPLE) + np.sqrt(ALIKE) * units(1, seed=2)
    vectors = people.repeat(2, axis=0) + 0.04 * np.random.default_rng(0).standard_normal((2 * PEOPLE, 128))
    names[1], vectors[1] = "twice", vectors[-1]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    add_templates(api, gallery, names, unit.astype(np.float32))


def calibrate(api: httpx.Client, gallery: str) -> dict[float, dict[str, Any]]:
    """Let the gallery's own operating points decide, even laxer ones; return them by their FMR."""
    switched = {"calibration": "gallery", "allow_laxer": True}
    api.patch(f"/v1/galleries/{gallery}", json=switched).raise_for_status()
    state = api.get(f"/v1/galleries/{gallery}/calibration").json()
    ended(api, state["job"]["id"])
    return {point["fmr"]: point for point in api.get(f"/v1/galleries/{gallery}/calibration").json()["points"]}


DIMENSION = 48
NOISE = 1.0
"""Noise of a photo, as a multiple of a person's own variation: two photos of one person then score 0.5."""


def photographed(
    people: int, photos: int, seed: int, noise: float = NOISE, *, apart: int = DIMENSION
) -> tuple[Vectors, NDArray[np.int64]]:
    """Return unit vectors and the person of each, from 0. People differ in ``apart`` dimensions, photos in all."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(people), photos)
    shown = rng.standard_normal((people, DIMENSION)) * np.sqrt(DIMENSION / apart) * (np.arange(DIMENSION) < apart)
    vectors = shown[who] + noise * rng.standard_normal((len(who), DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), who
