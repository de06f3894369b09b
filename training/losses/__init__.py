"""Every loss by its name: `build("arcface", num_classes=1000, dim=512, m=0.4)`.

What each computes, its defaults and their sources: the docstrings, and docs/reference/losses.md.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from training.losses.adaptive import AdaFace, CurricularFace, ElasticFace, MagFace
from training.losses.base import ClassLoss, ClassTable, LossError
from training.losses.centers import HardTriple, SoftTriple, SubCenterArcFace
from training.losses.margin import (
    ArcFace,
    Circle,
    Combined,
    CosFace,
    NormSoftmax,
    Softmax,
    SphereFace,
    SphereFaceFNorm,
    WNormSoftmax,
)
from training.losses.pairwise import CirclePair, Contrastive, Lifted, Margin, PairLoss, Triplet, Triplets, Unified
from training.losses.sphereface2 import SphereFace2

__all__ = [
    "ClassLoss",
    "LossError",
    "PairLoss",
    "Triplets",
    "build",
    "is_class_level",
    "names",
]

CLASS_LEVEL: dict[str, type[ClassLoss]] = {
    "softmax": Softmax,
    "wnorm_softmax": WNormSoftmax,
    "norm_softmax": NormSoftmax,
    "sphereface": SphereFace,
    "sphereface_fnorm": SphereFaceFNorm,
    "cosface": CosFace,
    "arcface": ArcFace,
    "combined": Combined,
    "adaface": AdaFace,
    "magface": MagFace,
    "curricularface": CurricularFace,
    "elasticface": ElasticFace,
    "subcenter_arcface": SubCenterArcFace,
    "sphereface2": SphereFace2,
    "circle": Circle,
    "hardtriple": HardTriple,
    "softtriple": SoftTriple,
}
PAIR_LEVEL: dict[str, type[PairLoss]] = {
    "contrastive": Contrastive,
    "triplet": Triplet,
    "margin": Margin,
    "circle_pair": CirclePair,
    "lifted": Lifted,
    "unified": Unified,
}


def names() -> list[str]:
    return [*CLASS_LEVEL, *PAIR_LEVEL]


def is_class_level(name: str) -> bool:
    check_choice("loss", name, names())
    return name in CLASS_LEVEL


def build(
    name: str, *, num_classes: int | None = None, dim: int | None = None, **hyper: object
) -> ClassLoss | PairLoss:
    """Build the loss of that name.

    Class-level losses need `num_classes` and `dim`; for pair-level ones both are optional and only checked (`margin`
    learns one β per class where it knows their number). Raises `LossError`, a ValueError, for an unknown name or
    argument, naming the nearest right one, and for a value out of range.
    """
    if is_class_level(name):
        if num_classes is None or dim is None:
            raise LossError(f"{name} needs num_classes and dim")
        return build_part(name, ClassTable(num_classes, dim), **hyper)
    kind = PAIR_LEVEL[name]
    check_hyper(name, kind, hyper)
    with _own_errors(name, hyper):
        return kind(num_classes, dim, **hyper)


def build_part(name: str, table: ClassTable, **hyper: object) -> ClassLoss:
    """Build a class-level loss over the rows of `table` alone."""
    check_choice("class-level loss", name, CLASS_LEVEL)
    kind = CLASS_LEVEL[name]
    check_hyper(name, kind, hyper)
    with _own_errors(name, hyper):
        return kind(table, **hyper)


@contextmanager
def _own_errors(name: str, hyper: Mapping[str, object]) -> Iterator[None]:
    """Turn what a value of the wrong type raises into LossError."""
    try:
        yield
    except TypeError as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in hyper.items())
        raise LossError(f"{name} takes no {given}: {error}") from error


def hyperparameters(kind: type) -> list[str]:
    parameters = inspect.signature(kind).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def check_hyper(name: str, kind: type, hyper: Iterable[str]) -> None:
    for argument in hyper:
        check_choice(f"argument of {name}", argument, hyperparameters(kind))


def check_choice(what: str, choice: str, known: Iterable[str]) -> None:
    known = list(known)
    if choice in known:
        return
    near = difflib.get_close_matches(choice, known, n=1, cutoff=0)
    hint = f"did you mean {near[0]!r}? There are: {', '.join(known)}" if near else "there are none"
    raise LossError(f"no {what} {choice!r}; {hint}", known=known)
