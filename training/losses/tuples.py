"""Pairs and triplets of a batch, and the distances that losses and miners measure on it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from training.losses.base import require


class Triplets(NamedTuple):
    """Positions within a batch, three int64 tensors of one length: each anchor, one like it, one unlike it."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor


def check_triplets(triplets: Triplets, labels: Tensor) -> None:
    """Reject positions outside of the batch, and triplets whose labels are not equal, equal, different."""
    require(len({len(part) for part in triplets}) == 1, "the three parts of the triplets differ in length")
    if len(triplets.anchor) == 0:
        return
    low, high = (int(end) for end in torch.stack(tuple(triplets)).aminmax())
    require(low >= 0 and high < len(labels), f"triplets point outside of the batch of {len(labels)}: {low}…{high}")
    anchor, positive, negative = (labels[part] for part in triplets)
    require(bool(((anchor == positive) & (anchor != negative)).all()), "triplets contradict the labels")


def distances(vectors: Tensor) -> Tensor:
    """(B, D) → (B, B) Euclidean, from differences (no cancellation near 0); its gradient at distance 0 is 0."""
    return torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return two (B, B) masks of (B,) labels: pairs of one class, without a sample and itself; pairs of two classes."""
    same = labels[:, None] == labels[None, :]
    return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device), ~same


def all_triplets(labels: Tensor) -> Triplets:
    """Return every triplet of the batch, anchors in order."""
    positives, negatives = pair_masks(labels)
    anchor, positive = positives.nonzero(as_tuple=True)
    pair, negative = negatives[anchor].nonzero(as_tuple=True)
    return Triplets(anchor[pair], positive[pair], negative)


def pair_counts(triplets: Triplets, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return how often each pair (anchor, positive) and each pair (anchor, negative) occurs, (size, size) each."""
    empty = torch.zeros(size, size, dtype=dtype, device=triplets.anchor.device)
    one = empty.new_ones(())
    positives = empty.index_put((triplets.anchor, triplets.positive), one, accumulate=True)
    return positives, empty.index_put((triplets.anchor, triplets.negative), one, accumulate=True)
