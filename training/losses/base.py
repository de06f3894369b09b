"""The common part of all losses: stable numerics, checks of the batch, and the interface of a class-level loss.

A class-level loss compares embeddings with one row (or K rows, its centres) per class. Everything it computes is
written for *some* of the class rows, so that the same code serves the whole table in one process and a sampled shard in
each of several (`training.losses.partial_fc`). It computes in float32 even under autocast or half precision; float64
stays float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from app.errors import InvalidInput

NORM_FLOOR = 1e-12
"""A vector shorter than this has no direction: its unit vector and its gradient are zero."""
WEIGHT_STD = 0.01
"""Rows start as N(0, 0.01²), as in the released code of ArcFace; after normalisation only the direction matters."""
ROW_BLOCK = 4096
"""Class rows are drawn in blocks of this size, each with its own seed, so that they don't depend on sharding."""
HALF_TYPES = (torch.float16, torch.bfloat16)
LABEL_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

Gradient = Literal["exact", "detached"]


class LossError(InvalidInput, ValueError):
    """A loss got a name, argument or batch that it cannot use."""

    code = "invalid_loss_input"


# ---------------------------------------------------------------------------------------------------- numerics


def upcast(values: Tensor) -> Tensor:
    """Cast float16 and bfloat16 to float32; keep float32 and float64."""
    return values.float() if values.dtype in HALF_TYPES else values


def unit(vectors: Tensor) -> Tensor:
    """Scale (..., D) to length 1; a zero vector stays zero and gets a zero gradient."""
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    direction: Tensor = vectors / norm.masked_fill(norm <= NORM_FLOOR, math.inf)
    return direction


def angle(u: Tensor, v: Tensor) -> Tensor:
    """Return the angle in radians, [0, π], between unit vectors (..., D): 2·atan2(|u − v|, |u + v|).

    Unlike acos of the inner product, it is accurate near 0 and π (W. Kahan), and its gradient stays finite there.
    """
    return 2 * torch.atan2(torch.linalg.vector_norm(u - v, dim=-1), torch.linalg.vector_norm(u + v, dim=-1))


def psi(phi: Tensor, last: int | None = None) -> Tensor:
    """(−1)^k cos φ − 2k with k = ⌊φ/π⌋: cosine made monotone and C¹ for φ ≥ 0 (SphereFace, arXiv 1704.08063).

    `last` bounds k, so that rounding of φ at its upper end does not begin another piece.
    """
    k = torch.floor(phi.detach() / math.pi).clamp(min=0, max=last)
    return (1 - 2 * (k % 2)) * torch.cos(phi) - 2 * k


def detach_margin(plain: Tensor, margined: Tensor, grad: Gradient) -> Tensor:
    """Return the margined value; with `detached` only the forward pass uses it, and the gradient is that of the plain
    value.

    `detached` is SphereFace-R's characteristic gradient detachment (arXiv 2109.05565).
    """
    return plain + (margined - plain).detach() if grad == "detached" else margined


def check_batch(embeddings: Tensor, labels: Tensor, num_classes: int | None, dim: int | None) -> None:
    """Reject a batch that a loss would silently misread. Raises `LossError`, a ValueError."""
    check_embeddings(embeddings, dim)
    if labels.dtype not in LABEL_TYPES:
        raise LossError(f"labels must be integers, not {labels.dtype}")
    if labels.shape != embeddings.shape[:1]:
        raise LossError(f"expected {len(embeddings)} labels in one dimension, got shape {tuple(labels.shape)}")
    if num_classes is None:
        return
    if labels.device.type != "cpu":
        return  # reading the values would wait for the GPU, which stops at an index out of range anyway
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= num_classes:
        raise LossError(f"labels must lie in 0…{num_classes - 1}, got {low}…{high}")


def check_embeddings(embeddings: Tensor, dim: int | None) -> None:
    """Raise `LossError` unless these are (B, D) floats, B > 0, with D equal to ``dim`` if that is given."""
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise LossError(f"embeddings must be (B, D) floats, got {tuple(embeddings.shape)} of {embeddings.dtype}")
    if len(embeddings) == 0:
        raise LossError("the batch is empty")
    if dim is not None and embeddings.shape[1] != dim:
        raise LossError(f"embeddings have {embeddings.shape[1]} dimensions, the loss has {dim}")


def require(condition: bool, message: str) -> None:
    if not condition:
        raise LossError(message)


def require_gradient(grad: str) -> None:
    require(grad in get_args(Gradient), f"grad must be exact or detached, not {grad!r}")


def full_precision(near: Tensor) -> torch.autocast:
    """Turn autocast off for the block, on the device of `near`."""
    return torch.autocast(near.device.type, enabled=False)


# --------------------------------------------------------------------------------- the table of classes, in part


@dataclass(frozen=True)
class ClassTable:
    """`num_classes` classes in `dim` dimensions, of which rows first…stop−1 live in this process."""

    num_classes: int
    dim: int
    first: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        require(self.num_classes >= 1, f"num_classes must be at least 1, not {self.num_classes}")
        require(self.dim >= 1, f"dim must be at least 1, not {self.dim}")
        require(0 <= self.first < self.end <= self.num_classes, f"no rows between {self.first} and {self.end}")

    @property
    def end(self) -> int:
        return self.num_classes if self.stop is None else self.stop

    @property
    def rows(self) -> int:
        return self.end - self.first

    def draw(self, *shape: int) -> nn.Parameter:
        """Draw (rows, *shape) from N(0, WEIGHT_STD²); a class gets the same numbers for any split of the table."""
        seed = int(torch.randint(2**31, ()).item())
        values = torch.empty(self.rows, *shape)
        for block in range(self.first // ROW_BLOCK, -(-self.end // ROW_BLOCK)):
            start = block * ROW_BLOCK
            generator = torch.Generator().manual_seed(seed * ROW_BLOCK + block)
            drawn = torch.randn(min(ROW_BLOCK, self.num_classes - start), *shape, generator=generator)
            low, high = max(start, self.first), min(start + ROW_BLOCK, self.end)
            values[low - self.first : high - self.first] = drawn[low - start : high - start] * WEIGHT_STD
        return nn.Parameter(values)

    def zeros(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.zeros(self.rows, *shape))


class Ranks:
    """Exchanges values between the processes that share a table of classes; here there is only one process."""

    def total(self, values: Tensor) -> Tensor:
        """Sum over the processes, with gradient."""
        return values

    def once(self, values: Tensor) -> Tensor:
        """Mark a value that every process computes in full, so that its gradient counts only once."""
        return values

    def same(self, values: Tensor) -> Tensor:
        """Return the first process's values on every process. No gradient."""
        return values

    def cross_entropy(self, logits: Tensor, part: Part) -> Tensor:
        """Return (B,) −log softmax at each sample's class, over the columns of all processes."""
        return F.cross_entropy(logits, part.column, reduction="none")

    def parameter(self, values: Tensor) -> Tensor:
        """Return a parameter that every process holds, with its gradient summed over them."""
        return values


@dataclass(frozen=True)
class Part:
    """A batch with the class rows of this process.

    `x` (B, D) floats; `rows` the class parameters by name, each (R, …); `column` (B,) the row of each sample's class;
    `is_here` (B,) bool, whether that class is among these rows (if not, `column` is any row); None: all are. Shapes
    don't depend on the labels, so that nothing waits for the GPU.
    """

    x: Tensor
    rows: Mapping[str, Tensor]
    column: Tensor
    is_here: Tensor | None
    ranks: Ranks

    @property
    def weight(self) -> Tensor:
        return self.rows["weight"]

    def at_target(self, columns: Tensor) -> Tensor:
        """Return each sample's entry in the column of its class: (B, R) → (B,); arbitrary where `is_here` is False."""
        return columns.gather(1, self.column[:, None])[:, 0]

    def put(self, columns: Tensor, values: Tensor) -> Tensor:
        """Return the (B, R) columns with the target entries replaced by values (B,)."""
        if self.is_here is not None:
            values = torch.where(self.is_here, values, self.at_target(columns))
        return columns.scatter(1, self.column[:, None], values[:, None])

    def own_values(self, values: Tensor) -> Tensor:
        """Return values (B,) with zeros for samples whose class is in another process."""
        return values if self.is_here is None else torch.where(self.is_here, values, torch.zeros_like(values))

    def spread(self, values: Tensor) -> Tensor:
        """Return the values (B,) of every sample's target, from the process that holds its class. No gradient."""
        return self.ranks.total(self.own_values(values.detach())).detach()


# -------------------------------------------------------------------------------------------- class-level losses


class ClassLoss(nn.Module):
    """Compares embeddings with a learned table of classes.

    `forward(embeddings, labels)` takes (B, D) floats of any length and (B,) integers in 0…C−1 and returns the scalar
    loss in float32 (float64 for float64). `logits(embeddings)` returns (B, C) scaled scores *without* margin, for
    evaluation without labels. `margin_logits(embeddings, labels)` returns the (B, C) from which the loss is computed.
    Both leave running statistics unchanged; `forward` updates them in training mode. Labels that are out of range or
    not integers, and embeddings of another shape, raise `LossError` (a ValueError).

    `margin_scale` in [0, 1] multiplies the margin, to warm it up; it is not part of the state.
    """

    class_parameters: ClassVar[Sequence[str]] = ("weight",)
    """Parameters with one row per class, which `PartialFC` shards and samples."""

    def __init__(self, table: ClassTable, *, centers: int | None = None) -> None:
        """Draw `weight`: (C, D), or (C, K, D) for a class of K = `centers` vectors."""
        require(centers is None or centers >= 1, f"centers must be at least 1, not {centers}")
        super().__init__()
        self.table = table
        self.margin_scale = 1.0
        self.weight = table.draw(table.dim) if centers is None else table.draw(centers, table.dim)

    @property
    def num_classes(self) -> int:
        return self.table.num_classes

    @property
    def dim(self) -> int:
        return self.table.dim

    # methods that a loss defines

    def scores(self, x: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Return how well each class fits, before scale and margin: (B, D), rows (R, …) → (B, R)."""
        raise NotImplementedError

    def scale(self, x: Tensor) -> float | Tensor:
        """Return the factor of the scores: a number, or (B, 1)."""
        raise NotImplementedError

    def target(self, part: Part, scores: Tensor) -> Tensor:
        """Return each sample's score for its own class, with its margin, (B,)."""
        return part.at_target(scores)

    def margined(self, part: Part, scores: Tensor) -> Tensor:
        """Return (B, R) logits with the margin in them."""
        return self.scale(part.x) * part.put(scores, self.target(part, scores))

    def per_sample(self, part: Part, logits: Tensor) -> Tensor:
        """Return each sample's loss, (B,)."""
        return part.ranks.cross_entropy(logits, part)

    def sample_penalty(self, x: Tensor) -> Tensor | None:
        """Return the penalty of each embedding, (B,)."""
        del x
        return None

    def row_penalty(self, rows: Mapping[str, Tensor]) -> Tensor | None:
        """Return the penalty of each class's rows, (R,)."""
        del rows
        return None

    def observe(self, part: Part, scores: Tensor) -> None:
        """Update running statistics before a training step's margin is computed."""

    def advance(self) -> None:
        """Count a training step, after its loss."""

    # methods that all losses share

    def class_rows(self) -> dict[str, Tensor]:
        return {name: self.get_parameter(name) for name in self.class_parameters}

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, labels, self.num_classes, self.dim)
        with full_precision(embeddings):
            return self.of(self._whole(embeddings, labels), self.num_classes)

    def of(self, part: Part, class_count: int) -> Tensor:
        """Return the scalar loss of a batch over `class_count` classes, of which `part` holds some."""
        scores = self.scores(part.x, part.rows)
        if self.training:
            with torch.no_grad():
                self.observe(part, scores)
        loss = self.per_sample(part, self.margined(part, scores)).mean()
        sample_penalty = self.sample_penalty(part.x)
        if sample_penalty is not None:
            loss = loss + part.ranks.once(sample_penalty.mean())
        row_penalty = self.row_penalty(part.rows)
        if row_penalty is not None:
            loss = loss + part.ranks.total(row_penalty.sum()) / class_count
        if self.training:
            self.advance()
        return loss

    def logits(self, embeddings: Tensor) -> Tensor:
        check_embeddings(embeddings, self.dim)
        with full_precision(embeddings):
            x, rows = same_type(embeddings, self.class_rows())
            return self.scale(x) * self.scores(x, rows)

    def margin_logits(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, labels, self.num_classes, self.dim)
        with full_precision(embeddings):
            part = self._whole(embeddings, labels)
            return self.margined(part, self.scores(part.x, part.rows))

    def _whole(self, embeddings: Tensor, labels: Tensor) -> Part:
        require(self.table.rows == self.num_classes, "this loss holds a shard of its classes: call its PartialFC")
        x, rows = same_type(embeddings, self.class_rows())
        return Part(x, rows, labels.long(), None, Ranks())

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, dim={self.dim}"


def same_type(embeddings: Tensor, rows: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Cast both to the wider of their types, at least float32."""
    dtype = torch.promote_types(torch.float32, embeddings.dtype)
    for row in rows.values():
        dtype = torch.promote_types(dtype, row.dtype)
    return embeddings.to(dtype), {name: row.to(dtype) for name, row in rows.items()}


class CosineLoss(ClassLoss):
    """z_j = s·cos θ_j, with a margin on the target's cosine."""

    def __init__(self, table: ClassTable, *, s: float, conflict: float = 0.0, centers: int | None = None) -> None:
        """`conflict`: a cosine above it with another class counts as 0, since that class may be the same person under
        another name (Partial FC's filter, arXiv 2203.15565); 0: no filter."""
        require(s > 0, f"s must be positive, not {s}")
        super().__init__(table, centers=centers)
        self.s, self.conflict = s, conflict

    def scores(self, x: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return F.linear(unit(x), unit(rows["weight"]))

    def scale(self, x: Tensor) -> float | Tensor:
        del x
        return self.s

    def margined(self, part: Part, scores: Tensor) -> Tensor:
        target = self.target(part, scores)
        if self.conflict:
            scores = scores.masked_fill(scores > self.conflict, 0.0)
        return self.scale(part.x) * part.put(scores, target)

    def target_angle(self, part: Part) -> Tensor:
        """Return the angle to the target in radians, (B,), accurate even near 0 and π. It costs B·D operations; for all
        classes it would be B·C·D."""
        return angle(unit(part.x), unit(self.target_rows(part)))

    def target_rows(self, part: Part) -> Tensor:
        """Return the row of each sample's class, (B, D)."""
        return part.weight[part.column]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, s={self.s}"
