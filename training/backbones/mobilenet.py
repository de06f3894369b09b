"""MobileNet (Howard et al., 2017, arXiv 1704.04861) as face embedders use it: SFace's network with any widths.

A chain of depthwise-separable convolutions with PReLU that keeps all 112 pixels in its first layers, and ArcFace's head
(BN, linear over the whole last map, BN). With `WIDTHS` it is OpenCV Zoo's SFace; `training.adaptation` narrows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from app.package.manifest import CROP_SIDE
from training.backbones.iresnet import STRIDE, Embedding, initialise, last_side
from training.backbones.mobilefacenet import convolution

WIDTHS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
"""Channels after the first convolution and after each of the 13 pairs of depthwise and pointwise convolution (table 1
of the paper)."""
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
"""Strides of the 13 depthwise convolutions. The first convolution has stride 1, the paper's has 2: crops have 112
pixels, ImageNet's photos 224."""


class MobileNet(nn.Module):
    """(B, 3, size, size) float in [-1, 1] -> (B, dim); `size` a multiple of 16, `widths` 14 channel counts."""

    def __init__(
        self, dim: int = 512, *, size: int = CROP_SIDE, widths: Sequence[int] = WIDTHS, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if len(widths) != len(WIDTHS):
            raise ValueError(f"widths must be {len(WIDTHS)} numbers, not {len(widths)}")
        self.stem = convolution(3, widths[0], 3)
        blocks = [
            nn.Sequential(convolution(inside, inside, 3, stride, inside), convolution(inside, outside))
            for inside, outside, stride in zip(widths[:-1], widths[1:], STRIDES, strict=True)
        ]
        self.blocks = nn.Sequential(*blocks)
        self.head = Embedding(widths[-1], last_side(size) ** 2, dim, dropout)
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x)))
        return out

    def layers(self) -> list[nn.Sequential]:
        """Return all 27 convolutions in order, each with its BN and PReLU."""
        found = [self.stem]
        for block in self.blocks:
            assert isinstance(block, nn.Sequential)  # noqa: S101  as built
            found += [layer for layer in block if isinstance(layer, nn.Sequential)]
        return found


def as_mobilenet(network: nn.Module, scale: float) -> MobileNet:
    """Return a MobileNet with an imported network's weights, for pixels in [-1, 1]. The network must be 27 times
    convolution, BN, PReLU, then BN, linear, BN. `scale` is the imported network's input for a pixel that is 1 here.

    Raises ValueError if the layers differ.
    """
    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.PReLU, nn.Linear, nn.BatchNorm1d)
    parts = [module for module in network.modules() if isinstance(module, kinds)]
    # The widths are those of the stem and the pointwise convolutions.
    widths = [part.out_channels for part in parts if isinstance(part, nn.Conv2d) and (part.groups == 1)]
    linear = next((part for part in parts if isinstance(part, nn.Linear)), None)
    if linear is None or len(widths) != len(WIDTHS):
        raise ValueError("The network is not a MobileNet of 27 convolutions.")
    side = round((linear.in_features / widths[-1]) ** 0.5)
    made = MobileNet(linear.out_features, size=side * STRIDE, widths=widths)
    made_parts = [module for module in made.modules() if isinstance(module, kinds)]
    if [type(part) for part in made_parts] != [type(part) for part in parts]:
        raise ValueError("The network's layers are not those of a MobileNet.")
    try:
        for target, source in zip(made_parts, parts, strict=True):
            target.load_state_dict(source.state_dict())
            if isinstance(target, nn.BatchNorm1d | nn.BatchNorm2d):
                target.eps = source.eps  # type: ignore[assignment]  # a number, as both are alike
    except RuntimeError as error:  # the weights have other shapes, or a convolution has a bias
        raise ValueError(f"The network's weights are not those of a MobileNet: {error}") from error
    with torch.no_grad():
        made.stem[0].weight.mul_(scale)  # type: ignore[operator]  # a convolution
    return made.eval()
