"""Backbones by name; they turn a crop's pixels into an embedding of any dimension. `timm:NAME` is one of timm's,
`module:Class` one of your own.

Each takes (B, 3, 112, 112) float RGB in [-1, 1] (``training.model`` converts uint8) and returns (B, dim), not
normalised. No layer fixes B, so that the exported graph takes any number of crops.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from torch import nn

from app.errors import Unusable
from training.backbones.iresnet import DEPTHS, IResNet
from training.backbones.mobilefacenet import MobileFaceNet
from training.backbones.mobilenet import MobileNet
from training.backbones.vit import SIZES, FaceViT
from training.recipe import did_you_mean, named

DEFAULT_DIMENSION = 512
"""The embedding dimension of the published ArcFace models."""


def _registry() -> dict[str, Callable[..., nn.Module]]:
    registry: dict[str, Callable[..., nn.Module]] = {"mobilefacenet": MobileFaceNet, "mobilenet": MobileNet}
    registry |= {f"iresnet{depth}": partial(IResNet, blocks) for depth, blocks in DEPTHS.items()}
    registry |= {f"vit_{size}": partial(FaceViT, **facts) for size, facts in SIZES.items()}
    return registry


def build(name: str, dim: int = DEFAULT_DIMENSION, **options: object) -> nn.Module:
    """Build a freshly initialised backbone: (B, 3, size, size) float in [-1, 1] -> (B, ``dim``).

    ``options`` are the constructor's (``width``, ``size``, ``dropout`` and so on).
    Raises Unusable with code ``backbone_unknown`` or ``backbone_option_unknown``, which name the nearest match, or
    ``backbone_option_invalid``.
    """
    registry = _registry()
    if name.startswith("timm:"):
        create = named("backbone", "timm:create_model")
        registry[name] = lambda dim, **given: create(name.removeprefix("timm:"), num_classes=dim, **given)
    elif ":" in name:
        registry[name] = named("backbone", name)
    elif name not in registry:
        raise _unknown("backbone", name, list(registry))
    parameters = inspect.signature(registry[name]).parameters
    known = [key for key in parameters if key != "dim"]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if ":" in name and "size" not in known:
        options.pop("size", None)
    for option in options:
        if option not in known and not takes_any:
            raise _unknown("backbone_option", option, known)
    try:
        return registry[name](dim=dim, **options)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: timm's for a name it doesn't know
        given = ", ".join(f"{option} = {value!r}" for option, value in options.items())
        raise Unusable(f"{name} takes no {given}: {error}", code="backbone_option_invalid") from error


def _unknown(what: str, given: str, known: list[str]) -> Unusable:
    hint = f"; {did_you_mean(given, known)}" if known else "."
    return Unusable(f"There is no {what.replace('_', ' ')} {given!r}{hint}", code=f"{what}_unknown", known=known)
