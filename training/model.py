"""Models from crops to embeddings: the package contract's input, the network, and the wrapper that is exported."""

from __future__ import annotations

import copy
import math
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from app.errors import InvalidInput
from app.package.manifest import CROP_SIDE
from training import backbones
from training.backbones.blocks import Blocks
from training.recipe import Model

if TYPE_CHECKING:
    from training.backbones.imported import ImportedModel

Tower: TypeAlias = "FaceModel | ImportedModel"
"""A network that takes the package contract's crops."""
PIXEL_CENTRE = 127.5
"""uint8 0…255 becomes (x − 127.5) / 127.5, which is in −1…1, as in ArcFace and its successors."""
NORM_EPS = 1e-12
"""Keeps a zero embedding finite when it is normalised."""


def area_matrix(target: int, source: int) -> Tensor:
    """Return the (target, source) matrix of torch's default type whose row i averages the source pixels that target
    pixel i covers.

    Rows sum to 1. Two matrix products with it resize by area averaging at any ratio, which every exporter supports.
    """
    edges = torch.arange(target + 1, dtype=torch.float64) * (source / target)
    pixels = torch.arange(source, dtype=torch.float64)
    covered = torch.minimum(edges[1:, None], pixels + 1) - torch.maximum(edges[:-1, None], pixels)
    return (covered.clamp(min=0) * (target / source)).to(torch.get_default_dtype())


class FaceModel(nn.Module):
    """(B, 112, 112, 3) uint8 RGB crops -> (B, dim) embeddings, not normalised."""

    resize: Tensor

    def __init__(self, backbone: nn.Module, input_size: int = CROP_SIDE, *, channels_last: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.input_size = input_size
        self.channels_last = channels_last
        self.register_buffer("resize", area_matrix(input_size, CROP_SIDE), persistent=False)
        if channels_last:
            # This is the call that torch documents, but its type stubs also demand a device.
            self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.permute(0, 3, 1, 2).to(self.resize.dtype)  # (B, 3, 112, 112), 0…255
        if self.input_size != CROP_SIDE:
            pixels = self.resize @ pixels @ self.resize.T  # (B, 3, input_size, input_size)
        pixels = (pixels - PIXEL_CENTRE) / PIXEL_CENTRE
        if self.channels_last:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        embedding: Tensor = self.backbone(pixels)
        return embedding


class TwoTowers(nn.Module):
    """Two towers, siamese (``second`` is ``first``) or pseudo-siamese. Even positions of a batch go through ``first``,
    odd ones through ``second``. If K crops of one person follow each other, half of them go through each tower."""

    def __init__(self, first: Tower, second: Tower) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, images: Tensor) -> Tensor:
        pair = torch.stack([self.first(images[0::2]), self.second(images[1::2])], dim=1)  # (B/2, 2, dim)
        return pair.flatten(0, 1)


class EmbedderExport(nn.Module):
    """(N, 112, 112, 3) uint8 RGB -> (N, dim) float32 of length 1, as a model package's graph does."""

    def __init__(self, model: Tower) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval().cpu().float()
        merge_adapters(self.model)
        self.model.channels_last = False
        self.model.backbone.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # as above

    def forward(self, images: Tensor) -> Tensor:
        # max is exported as one plain node, F.normalize's clamp_min is not.
        embedding = self.model(images)
        length = torch.sqrt((embedding * embedding).sum(dim=1, keepdim=True)).clamp(min=NORM_EPS)
        unit: Tensor = embedding / length
        return unit


def build_tower(config: Model, *, channels_last: bool) -> Tower:
    """Build one tower: freshly initialised, or the network that the recipe starts with.

    Raises Unusable for an unknown backbone or option, and InvalidInput (`start_does_not_fit`) for another `dim`.
    """
    if config.starts_with_network:
        return _network(str(config.start), config.dim, channels_last=channels_last)
    backbone = backbones.build(config.backbone, dim=config.dim, size=config.input_size, **config.options)
    return FaceModel(backbone, config.input_size, channels_last=channels_last)


def _network(start: str, dim: int, *, channels_last: bool) -> ImportedModel:
    from training.backbones.imported import import_file  # noqa: PLC0415 - onnx only where a network is imported

    model = import_file(start, channels_last=channels_last)
    with torch.no_grad():
        given = model(torch.zeros(1, CROP_SIDE, CROP_SIDE, 3, dtype=torch.uint8)).shape[1]
    if given != dim:
        message = f"{start} gives embeddings of {given} numbers, not of {dim}: set model.dim to that."
        raise InvalidInput(message, code="start_does_not_fit")
    return model


def build_model(config: Model, *, channels_last: bool) -> Tower | TwoTowers:
    """Build the recipe's model without adapters; `training.run.start.load_start` loads weights of another run."""
    first = build_tower(config, channels_last=channels_last)
    if config.towers == "single":
        return first
    second = first if config.towers == "siamese" else build_tower(config, channels_last=channels_last)
    return TwoTowers(first, second)


def add_lora(model: nn.Module, config: Model) -> None:
    """Add the recipe's adapters, if it has some, to every linear layer and convolution whose weight matrix is larger
    than an adapter's. Nothing else learns then. Load the starting weights first, since adapters rename their layers.

    Raises InvalidInput (`invalid_recipe`).
    """
    if not config.lora:
        return
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, ADAPTED) and min(layer.weight.flatten(1).shape) > config.lora
    ]
    if not layers:
        raise InvalidInput("model.lora: the model has no layer of a higher rank.", code="invalid_recipe")
    model.requires_grad_(False)
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, config.lora))


def tower(model: Tower | TwoTowers, which: int = 0) -> Tower:
    """Return a tower that embeds by itself: the model itself, or the first (0) or second (1) of two."""
    if isinstance(model, TwoTowers):
        return model.second if which else model.first
    return model


def recompute_blocks(model: nn.Module) -> None:
    """Recompute the model's blocks in the backward pass. Raises InvalidInput (`invalid_recipe`) if none can."""
    recomputable = [layer for layer in model.modules() if isinstance(layer, Blocks)]
    if not recomputable:
        message = "train.gradient_checkpointing needs an IResNet or a transformer."
        raise InvalidInput(message, code="invalid_recipe")
    for blocks in recomputable:
        blocks.recompute = True


@torch.no_grad()
def embed(model: nn.Module, images: Tensor, batch_size: int = 64) -> Tensor:
    """Embed (N, 112, 112, 3) uint8 crops as (N, dim) unit float32 on the CPU, with the model in evaluation mode."""
    device = next(chain(model.parameters(), model.buffers())).device
    was_training = model.training
    model.eval()
    try:
        parts = [
            F.normalize(model(part.to(device)).float(), eps=NORM_EPS).cpu() for part in torch.split(images, batch_size)
        ]
    finally:
        model.train(was_training)
    return torch.cat(parts)


class Averaged:
    """An exponential moving average of a model's weights: average ← decay · average + (1 − decay) · weight.

    Batch statistics are copied, not averaged. The decay is min(decay, (1 + step) / (10 + step)), so that the random
    start is soon forgotten (the rule of TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int, void: Tensor | None = None) -> None:
        """Update the average, unless `void`, a number on the device, is 1."""
        rate = 1 - min(self.decay, (1 + step) / (10 + step))
        averages = [p.data for p in self.model.parameters()]
        moves = torch._foreach_sub([p.data for p in model.parameters()], averages)
        torch._foreach_mul_(moves, rate if void is None else rate * (1 - void))
        torch._foreach_add_(averages, moves)
        if copies := list(self.model.buffers()):
            torch._foreach_copy_(copies, list(model.buffers()))


ADAPTED = (nn.Linear, nn.Conv1d, nn.Conv2d)


class LowRank(nn.Module):
    """Adds B·A to (out, …) weights, with B (out, rank) and A (rank, rest); a kernel is flattened to a matrix."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outside, inside = weight.flatten(1).shape
        self.a = nn.Parameter(torch.empty(rank, inside, dtype=weight.dtype))
        self.b = nn.Parameter(torch.zeros(outside, rank, dtype=weight.dtype))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))  # as the authors' code does

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.b @ self.a).view_as(weight)


def merge_adapters(network: nn.Module) -> None:
    """Replace every parametrized tensor, including those with adapters, by its value, in place.

    torch's `remove_parametrizations` changes the layer's class, which a deep copy shares with its original.
    """
    for layer in network.modules():
        if not parametrize.is_parametrized(layer):
            continue
        values = {name: getattr(layer, name).detach().clone() for name in layer.parametrizations}  # type: ignore[union-attr]  # a ModuleDict
        layer.__class__ = parametrize.type_before_parametrizations(layer)
        del layer.parametrizations
        for name, value in values.items():
            layer.register_parameter(name, nn.Parameter(value))
