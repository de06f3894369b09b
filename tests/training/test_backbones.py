"""Backbones: what is published of them, any number of crops, any dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from app.errors import Unusable
from training.backbones import build
from training.backbones.vit import Attention
from training.export import export_fp32
from training.model import EmbedderExport, FaceModel

SMALL: dict[str, dict[str, Any]] = {
    "mobilefacenet": {"width": 0.25, "size": 48},
    "iresnet18": {"width": 0.125, "size": 32, "se": True},
    "vit_tiny": {"channels": 32, "depth": 2, "heads": 4, "patch": 16, "size": 40},
}


def _macs(module: nn.Module, x: Tensor, output: Tensor) -> int:
    """Multiply-accumulates as papers count them: a norm folds away, the rest is small."""
    if isinstance(module, nn.Conv2d):
        height, width = module.kernel_size
        return output.numel() * (module.in_channels // module.groups) * height * width
    if isinstance(module, nn.Linear):
        return output.numel() * module.in_features
    _, tokens, channels = x.shape
    return 2 * tokens * tokens * channels  # queries by keys, then weights by values; its linear layers count themselves


@pytest.mark.parametrize(
    ("name", "options", "millions", "giga_macs"),
    [
        ("mobilefacenet", {"dim": 128}, 1.00, 0.221),
        ("mobilefacenet", {"trunk": 2}, 2.06, 0.434),
        ("iresnet18", {}, 24.03, 2.61),
        ("iresnet34", {}, 34.14, 4.46),
        ("iresnet50", {}, 43.59, 6.31),
        pytest.param("iresnet100", {}, 65.16, 12.09, marks=pytest.mark.long),
        pytest.param("iresnet200", {}, 118.83, 23.42, marks=pytest.mark.long),
        ("iresnet50", {"se": True}, 43.82, 6.31),
        ("vit_tiny", {}, 19.15, 1.50),
        ("vit_small", {}, 76.04, 5.75),
        ("vit_base", {}, 113.87, 11.44),
        pytest.param("vit_large", {}, 255.74, 25.34, marks=pytest.mark.long),
    ],
)
def test_parameters_and_macs_are_as_published(
    name: str, options: dict[str, int], millions: float, giga_macs: float
) -> None:
    """Published: 221 M MACs; IResNet 24.0, 34.1, 43.6, 65.2 M and 2.6, 4.5, 6.3, 12.1 G; ViT 1.5 and 5.7 G."""
    macs: list[int] = []
    with torch.device("meta"), torch.no_grad():  # shapes only
        net = build(name, **options).eval()
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear | Attention):
                module.register_forward_hook(lambda module, given, out: macs.append(_macs(module, given[0], out)))
        net(torch.zeros(1, 3, 112, 112))
    assert sum(parameter.numel() for parameter in net.parameters()) / 1e6 == pytest.approx(millions, abs=0.006)
    assert sum(macs) / 1e9 == pytest.approx(giga_macs, abs=0.006)


@pytest.mark.parametrize("name", SMALL)
def test_any_number_of_crops_and_one_equals_many(name: str) -> None:
    options = SMALL[name]
    net = build(name, dim=24, **options).eval()
    crops = torch.rand(5, 3, options["size"], options["size"]) * 2 - 1
    with torch.no_grad():
        many = net(crops)
        single = torch.cat([net(crop[None]) for crop in crops])
    assert many.shape == (5, 24)
    np.testing.assert_allclose(many, single, atol=1e-4 * many.abs().max().item())


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_learns(name: str) -> None:
    options = SMALL[name]
    net = build(name, dim=16, **options).train()
    net(torch.rand(4, 3, options["size"], options["size"]) * 2 - 1).square().sum().backward()
    for key, parameter in net.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, key
            assert torch.isfinite(parameter.grad).all(), key


@pytest.mark.parametrize("name", SMALL)
def test_activations_keep_their_scale_through_all_layers(name: str) -> None:
    """A freshly initialised network in evaluation mode neither vanishes nor explodes."""
    options = SMALL[name]
    torch.manual_seed(0)
    net = build(name, dim=64, **options).eval()
    with torch.no_grad():
        out = net(torch.randn(8, 3, options["size"], options["size"]).clamp(-1, 1))
    assert 1e-3 < out.std().item() < 1e3


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_the_exported_graph_takes_any_number_of_crops(name: str) -> None:
    size = int(SMALL[name]["size"])
    net = FaceModel(build(name, dim=16, **SMALL[name]), size)
    figures = export_fp32(EmbedderExport(net), 16).figures  # raises where it differs
    assert set(figures["parity"]) == {"1", "3", "7"}


def test_the_transformer_sees_all_but_the_outermost_pixels() -> None:
    """9 px patches leave two pixels at each edge, not four at one."""
    net = build("vit_tiny", channels=32, depth=1, heads=4).eval()
    crop = torch.zeros(1, 3, 112, 112, requires_grad=True)
    net(crop).sum().backward()
    assert crop.grad is not None
    seen = crop.grad.abs().sum(dim=(0, 1)) > 0
    assert seen[2:110, 2:110].all()
    assert seen.sum() == 108 * 108


def test_stochastic_depth_rests_while_evaluating() -> None:
    net = build("vit_tiny", channels=32, depth=3, heads=4, patch=16, size=32, drop_path=0.9).eval()
    crops = torch.rand(2, 3, 32, 32)
    assert torch.equal(net(crops), net(crops))


def test_unknown_names_and_options_are_answered_with_the_nearest() -> None:
    with pytest.raises(Unusable, match="iresnet50") as unknown:
        build("iresnet51")
    assert unknown.value.code == "backbone_unknown"
    with pytest.raises(Unusable, match="width") as option:
        build("mobilefacenet", widht=2)
    assert option.value.code == "backbone_option_unknown"


@pytest.mark.parametrize("name", ["mobilefacenet", "iresnet18"])
def test_sizes_that_do_not_halve_evenly_are_refused(name: str) -> None:
    with pytest.raises(Unusable, match="multiple of 16"):
        build(name, size=100)
