"""Distil from a teacher package: its templates are the targets, and two losses pull a student towards them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from app.files import PUBLIC, replacing
from app.package.folders import Package
from app.types import Pixels, Vectors
from training.data.crops import Crops, PixelSource, facts_of
from training.data.loader import Batch
from training.packages import CACHE

if TYPE_CHECKING:
    from app.inference.session import EmbedderSession

TEACHER_BATCH = 8
"""Number of crops per call of the teacher on the CPU; larger batches are slower (docs/explanation/performance.md)."""
THREADS = 2


def embedding_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean of 1 − cos; (B, D) each, the teacher's of length 1. It is half the squared distance of unit
    vectors."""
    return (1 - (F.normalize(student.float()) * teacher).sum(dim=1)).mean()


def relation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared difference of all pairs' scores; (B, D) and (B, E), dimensions may differ.

    This is similarity-preserving distillation by score matrices (Tung and Mori, ICCV 2019), on unit vectors.
    """
    unit = F.normalize(student.float())
    difference = unit @ unit.T - teacher @ teacher.T
    pairs = len(student) * (len(student) - 1)
    return difference.square().sum() / pairs  # the diagonals are 1 on both sides


class Projection(nn.Module):
    """A linear map from the student's dimension to the teacher's; the identity if they are equal."""

    def __init__(self, student: int, teacher: int) -> None:
        super().__init__()
        self.map: nn.Module = nn.Identity() if student == teacher else nn.Linear(student, teacher, bias=False)

    def forward(self, embeddings: Tensor) -> Tensor:
        mapped: Tensor = self.map(embeddings.float())
        return mapped


class Teacher:
    """A package's embedder in ONNX Runtime. If there is a table of its templates, it runs only to make this table."""

    def __init__(self, session: EmbedderSession, table: Vectors | None, rows: np.ndarray, *, mirror_mean: bool) -> None:
        self._session = session
        self._table = table
        self._rows = rows
        self._mirror_mean = mirror_mean
        self.dimension = session.dimension
        self.package = session.package_id

    def targets(self, batch: Batch) -> Tensor:
        """Return (B, D) unit float32 targets on the CPU for the batch's crops."""
        if self._table is not None:
            both = self._table[self._rows[batch.indices.cpu().numpy()]]  # (B, 2, D): unchanged, mirrored
            mirrored = batch.mirrored.cpu().numpy().astype(np.int64)
            chosen = both.mean(axis=1) if self._mirror_mean else both[np.arange(len(both)), mirrored]
        else:
            images = batch.images.cpu().numpy()
            chosen = run_teacher(self._session, images)
            if self._mirror_mean:
                chosen = (chosen + run_teacher(self._session, images[:, :, ::-1])) / 2
        return F.normalize(torch.from_numpy(np.array(chosen, np.float32)))


def open_teacher(
    package: Package, crops: Crops, *, cache: Path | None, mirror_mean: bool, progress: Callable[[int], None]
) -> Teacher:
    """Open the teacher for a set. With a `cache` folder, templates of every crop are made once and kept there."""
    from app.models.opening import open_embedder  # noqa: PLC0415  needs onnxruntime, which only a teacher does

    session = open_embedder(package, CACHE, device="auto", threads=1)
    table = None if cache is None else teacher_table(session, crops.pixels, cache, progress)
    return Teacher(session, table, crops.rows, mirror_mean=mirror_mean)


def teacher_table(
    session: EmbedderSession, pixels: PixelSource, cache: Path, progress: Callable[[int], None] = lambda _n: None
) -> Vectors:
    """Return templates of every crop and its mirror image, (M, 2, D) float32. `cache` keeps a file for each teacher."""
    facts = json.dumps([session.package_id, facts_of(pixels)], sort_keys=True)
    key = hashlib.sha256(facts.encode()).hexdigest()[:16]
    path = cache / f"teacher-{key}.npy"
    if not path.is_file():
        table = np.empty((len(pixels), 2, session.dimension), np.float32)

        def block(start: int) -> int:
            images = np.asarray(pixels[start : start + TEACHER_BATCH])
            table[start : start + len(images), 0] = session.run(images)
            table[start : start + len(images), 1] = session.run(np.ascontiguousarray(images[:, :, ::-1]))
            return len(images)

        with ThreadPoolExecutor(THREADS) as pool:
            for done in pool.map(block, range(0, len(pixels), TEACHER_BATCH)):
                progress(done)
        cache.mkdir(parents=True, exist_ok=True)
        with replacing(path, PUBLIC) as file:
            np.save(file, table)
    kept: Vectors = np.load(path, mmap_mode="r")
    return kept


def run_teacher(session: EmbedderSession, images: Pixels) -> Vectors:
    """Embed (B, 112, 112, 3) uint8 crops as (B, D), in the teacher's preferred batch sizes."""
    starts = range(0, len(images), TEACHER_BATCH)
    return np.concatenate([session.run(np.ascontiguousarray(images[i : i + TEACHER_BATCH])) for i in starts])
