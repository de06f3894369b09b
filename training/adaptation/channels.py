"""Make narrower copies of a MobileNet: choose the channels to keep, and fit weights that make up for the others.

A pointwise convolution reads the channels of the depthwise convolution before it. These are chosen one by one: each
time the channel that explains most of the pointwise convolution's remaining error (orthogonal matching on its outputs).
Then its weights are fitted to the teacher's outputs by least squares, from the inputs that the narrower layers before
it compute. This is channel pruning by reconstruction (He, Zhang and Sun, ICCV 2017), with the choice of their greedy
variant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.backbones.mobilenet import MobileNet

SAMPLES = 40_000
"""Number of places (image, y, x) at which a layer's statistics are computed: far more than a layer has channels."""
RIDGE = 1e-4
"""Share of the mean variance added to the normal equations' diagonal."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The narrower network, the channels kept at each width (indices into the teacher's), and for each pointwise
    convolution the share of its output's variance that the fit misses."""

    network: MobileNet
    kept: list[list[int]]
    missed: list[float]


def choose(weight: Tensor, gram: Tensor, count: int) -> list[int]:
    """Return the indices of the `count` inputs that together explain most of weight @ x.

    `weight` (O, C) float64, `gram` (C, C) the second moments of x about its mean. Each step takes the input whose
    residual lowers the outputs' summed squares most.
    """
    left, explained = gram.clone(), weight @ gram  # both without the part that the chosen inputs explain
    chosen: list[int] = []
    floor = 1e-9 * float(gram.diagonal().mean())
    for _ in range(count):
        gain = explained.square().sum(0) / left.diagonal().clamp(min=floor)
        gain[chosen] = -1
        best = int(gain.argmax())
        chosen.append(best)
        share = left[best] / left[best, best].clamp(min=floor)
        explained -= torch.outer(explained[:, best], share)
        left -= torch.outer(left[:, best], share)
    return sorted(chosen)


def fit(inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the (O, K) weights and (O,) offsets of the least squares fit outputs ≈ weights @ inputs + offsets, and the
    share of the outputs' variance that it misses. `inputs` (K, N), `outputs` (O, N), float64."""
    mean_in, mean_out = inputs.mean(1, keepdim=True), outputs.mean(1, keepdim=True)
    x, y = inputs - mean_in, outputs - mean_out
    gram = x @ x.T
    gram += torch.eye(len(gram), dtype=gram.dtype, device=gram.device) * RIDGE * gram.diagonal().mean()
    weights = torch.linalg.solve(gram, x @ y.T).T
    missed = (y - weights @ x).square().sum(1) / y.square().sum(1).clamp(min=1e-12)
    return weights, (mean_out - weights @ mean_in)[:, 0], float(missed.mean())


@torch.no_grad()
def prune(teacher: MobileNet, widths: Sequence[int], pixels: Tensor) -> Pruned:
    """Make a MobileNet of these widths, fitted layer by layer on (N, 3, 112, 112) pixels in [-1, 1].

    The teacher is in evaluation mode; the copy keeps its batch statistics.
    """
    wide = teacher.layers()
    kept = _channels(teacher, widths, pixels)
    narrow = MobileNet(teacher.head.linear.out_features, size=pixels.shape[-1], widths=widths).eval().to(pixels.device)
    missed: list[float] = []
    theirs = mine = pixels
    before: list[int] = [0, 1, 2]
    for number, (source, target) in enumerate(zip(wide, narrow.layers(), strict=True)):
        convolution = _convolution(source)
        after = kept[number // 2]
        wanted = convolution(theirs)
        _take(target, source, after)
        if number == 0 or convolution.groups > 1:
            _convolution(target).weight.copy_(convolution.weight[after])
        else:
            places = _places(wanted, number)
            weights, offsets, share = fit(_sampled(mine, places), _sampled(wanted, places)[after])
            missed.append(round(share, 4))
            _convolution(target).weight.copy_(weights.float()[:, :, None, None])
            _norm(target).get_buffer("running_mean").sub_(offsets.float())
        theirs, mine, before = source(theirs), target(mine), after
    _fit_head(narrow, teacher, mine, theirs, before)
    return Pruned(narrow, kept, missed)


def _channels(teacher: MobileNet, widths: Sequence[int], pixels: Tensor) -> list[list[int]]:
    """Return the channels to keep at each width."""
    kept: list[list[int]] = []
    x = pixels
    for number, layer in enumerate(teacher.layers()):
        convolution = _convolution(layer)
        if number and convolution.groups == 1:
            sample = _sampled(x, _places(x, number))
            weight = convolution.weight[:, :, 0, 0].double()
            gram = torch.cov(sample)
            # Scale every output to variance 1, so that all outputs count equally.
            weight = weight / (weight @ gram @ weight.T).diagonal().sqrt()[:, None]
            kept.append(choose(weight, gram, widths[len(kept)]))
        x = layer(x)
    sample = x.double().flatten(2).mean(2).T  # the head reads whole maps: each map's mean stands for it
    columns = teacher.head.linear.weight.double().reshape(-1, x.shape[1], x.shape[2] * x.shape[3]).sum(2)
    kept.append(choose(columns, torch.cov(sample), widths[-1]))
    return kept


def _fit_head(narrow: MobileNet, teacher: MobileNet, mine: Tensor, theirs: Tensor, kept: Sequence[int]) -> None:
    """Copy the teacher's columns of the kept channels into the last layers, which have too many weights to fit."""
    head, source = narrow.head, teacher.head
    _take_norm(head.norm, source.norm, list(kept))
    weight = source.linear.weight.reshape(source.linear.out_features, theirs.shape[1], -1)[:, list(kept)]
    head.linear.weight.copy_(weight.flatten(1))
    head.linear.bias.copy_(source.linear.bias)
    _take_norm(head.features, source.features, list(range(len(source.features.weight))))
    outputs = head.linear(torch.flatten(head.norm(mine), 1))
    head.features.running_mean.copy_(outputs.mean(0))  # type: ignore[union-attr]  # it has statistics
    head.features.running_var.copy_(outputs.var(0))  # type: ignore[union-attr]


def _take(target: nn.Sequential, source: nn.Sequential, kept: list[int]) -> None:
    _take_norm(_norm(target), _norm(source), kept)
    target[2].weight.copy_(source[2].weight[kept])  # type: ignore[operator, index]  # PReLU


def _take_norm(target: nn.Module, source: nn.Module, kept: list[int]) -> None:
    target.eps = source.eps
    for name in ("weight", "bias", "running_mean", "running_var"):
        getattr(target, name).copy_(getattr(source, name)[kept])


def _convolution(layers: nn.Sequential) -> nn.Conv2d:
    layer = layers[0]
    assert isinstance(layer, nn.Conv2d)  # noqa: S101  as built
    return layer


def _norm(layers: nn.Sequential) -> nn.BatchNorm2d:
    layer = layers[1]
    assert isinstance(layer, nn.BatchNorm2d)  # noqa: S101  as built
    return layer


def _places(x: Tensor, seed: int) -> Tensor:
    """Draw at most `SAMPLES` random flat indices into (N, h, w)."""
    total = x.shape[0] * x.shape[2] * x.shape[3]
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(total, generator=generator)[:SAMPLES].to(x.device)


def _sampled(x: Tensor, places: Tensor) -> Tensor:
    """Return the values of (N, C, h, w) at these flat indices of (N, h, w): (C, places) float64."""
    return x.permute(1, 0, 2, 3).reshape(x.shape[1], -1)[:, places].double()
