"""The losses, and a function that builds one by its name: `build("arcface", num_classes=1000, dim=512, m=0.4)`.

The docstrings and docs/reference/losses.md say what each loss computes, its defaults and their sources.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

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
from training.recipe import did_you_mean, named

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


def kind_of(name: str) -> type[nn.Module]:
    """Return the loss's class: ours, or your own by `module:Class`. Raises LossError if that is not an `nn.Module`."""
    if ":" in name:
        kind = named("loss", name)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise LossError(f"{name} is no class of nn.Module")
        return kind
    check_choice("loss", name, names())
    return {**CLASS_LEVEL, **PAIR_LEVEL}[name]


def is_class_level(name: str) -> bool:
    return issubclass(kind_of(name), ClassLoss)


def build(
    name: str, *, num_classes: int | None = None, dim: int | None = None, **hyper: object
) -> ClassLoss | PairLoss:
    """Build the loss with this name.

    Class-level losses need `num_classes` and `dim`; for pair-level ones both are optional and only checked (`margin`
    learns one β per class if it knows their number). Raises `LossError`, a ValueError, for an unknown name or argument,
    with the nearest right one, and for a value out of range.
    """
    if is_class_level(name):
        if num_classes is None or dim is None:
            raise LossError(f"{name} needs num_classes and dim")
        return build_part(name, ClassTable(num_classes, dim), **hyper)
    kind: Any = kind_of(name)
    check_hyper(name, kind, hyper)
    with _own_errors(name, hyper):
        # a loss of the user's gets the same arguments as ours
        made: PairLoss = kind(num_classes, dim, **hyper) if issubclass(kind, PairLoss) else kind(**hyper)
        return made


def build_part(name: str, table: ClassTable, **hyper: object) -> ClassLoss:
    """Build a class-level loss that holds only the rows of `table`, a part of all classes."""
    kind: Any = kind_of(name)
    if not issubclass(kind, ClassLoss):
        check_choice("class-level loss", name, CLASS_LEVEL)
    check_hyper(name, kind, hyper)
    with _own_errors(name, hyper):
        made: ClassLoss = kind(table, **hyper)
        return made


@contextmanager
def _own_errors(name: str, hyper: Mapping[str, object]) -> Iterator[None]:
    """Turn errors from values of the wrong type into LossError."""
    try:
        yield
    except TypeError as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in hyper.items())
        raise LossError(f"{name} takes no {given}: {error}") from error


def hyperparameters(kind: type) -> list[str]:
    """Return the arguments that a recipe may set: keyword arguments of our losses, all arguments of the user's own."""
    parameters = inspect.signature(kind).parameters.values()
    ours = issubclass(kind, ClassLoss | PairLoss) or not issubclass(kind, nn.Module)
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY or not ours]


def check_hyper(name: str, kind: type, hyper: Iterable[str]) -> None:
    known = inspect.signature(kind).parameters.values()
    for argument in () if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known) else hyper:
        check_choice(f"argument of {name}", argument, hyperparameters(kind))


def check_choice(what: str, choice: str, known: Iterable[str]) -> None:
    """Raise `LossError`, with the nearest known word, unless ``choice`` is one of ``known``."""
    known = list(known)
    if choice in known:
        return
    hint = f"{did_you_mean(choice, known)} There are: {', '.join(known)}" if known else "there are none"
    raise LossError(f"no {what} {choice!r}; {hint}", known=known)
