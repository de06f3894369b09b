"""`python -m training prune`: a narrower, faster copy of a MobileNet package (SFace), distilled from it.

Channels are chosen and weights fitted layer by layer (`channels`), then the narrow network learns the
original's templates, and at first its maps too, on fresh views. `training export` takes the run's last checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from app.errors import InvalidInput, Unusable
from app.package.folders import Package
from app.package.manifest import CROP_SIDE
from training import checkpoint
from training.adaptation import adapt
from training.adaptation.adapt import read_photos, recipe_of
from training.adaptation.channels import prune
from training.adaptation.distil import OnlineViews, SharedMaps, open_trainer
from training.adaptation.views import ViewConfig
from training.backbones.imported import ImportedModel, import_package
from training.backbones.mobilenet import WIDTHS, MobileNet, as_mobilenet
from training.model import PIXEL_CENTRE, FaceModel, tower
from training.packages import CACHE, MODELS, find_package
from training.run.distributed import choose_device
from training.terminal import told

HALF = "16,32,64,64,112,112,272,272,272,272,272,272,448,320"
"""Channel counts with which a network takes about a third of SFace's time on a CPU. They were chosen by time only: the
layers with the largest maps are the narrowest."""
SHARED = (3, 5, 8, 11, 12)
"""Blocks after which student and teacher share their maps: the ends of the stages."""
MAPS_UNTIL = 0.5
"""Share of the run after which maps no longer count."""
FITTED_ON = 192
"""Number of crops for choosing channels and fitting weights."""
console = Console(stderr=True)


def prune_package(
    package: Annotated[str, typer.Argument(help="The package to narrow: a name in --models, or a folder.")],
    *,
    photos: adapt.Photos,
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    widths: Annotated[str, typer.Option(help="14 channel counts, with commas between.")] = HALF,
    drop: adapt.Drop = None,
    steps: adapt.Count = 12000,
    batch: adapt.Batch = 512,
    lr: adapt.LearningRate = 1.5e-3,
    models: adapt.Models = MODELS,
    device: adapt.Device = "auto",
    compiled: adapt.Compiled = False,
    checkpoint_every: adapt.Count = 1000,
    resume: adapt.Resume = False,
) -> None:
    """Make a narrower copy of a MobileNet package by pruning and distillation; export it with `export`."""
    with told():
        target = choose_device(device)
        teacher = load_mobilenet(find_package(package, models)).to(target)
        counts = read_widths(widths)
        crops = read_photos(photos, drop, console)
        last, start = checkpoint.last_of(out, resume=resume), out / "pruned.pt"
        pixels = torch.from_numpy(crops.images(range(min(FITTED_ON, len(crops))))).to(target)
        narrow = prune(teacher, counts, (pixels.permute(0, 3, 1, 2).float() - PIXEL_CENTRE) / PIXEL_CENTRE)
        missed = ", ".join(f"{share:.0%}" for share in narrow.missed)
        console.print(f"pruned; of their outputs' variance the pointwise convolutions miss {missed}")
        if last is None:
            out.mkdir(parents=True, exist_ok=True)
            torch.save({f"backbone.{name}": value.cpu() for name, value in narrow.network.state_dict().items()}, start)
        dim = teacher.head.linear.out_features
        recipe = recipe_of(
            photos,
            package,
            target,
            sampler={"batch_size": batch},
            model={"backbone": "mobilenet", "dim": dim, "options": {"widths": counts}, "start": str(start)},
            distill={"relation": 5.0},
            optimizer={"lr": lr, "weight_decay": 0.02},
            schedule={"warmup": min(200, steps // 10)},
            train={"steps": steps, "compile": compiled, "checkpoint_every": checkpoint_every},
        )
        kept = {block: torch.tensor(narrow.kept[block + 1], device=target) for block in SHARED}
        maps = SharedMaps(teacher, kept, MAPS_UNTIL * steps)
        online = OnlineViews(crops, FaceModel(teacher, channels_last=True), recipe, ViewConfig(), target, maps=maps)
        trainer = open_trainer(recipe, crops, online, out, resume=resume)
        student = tower(trainer.model).backbone
        assert isinstance(student, MobileNet)  # noqa: S101  the recipe names it
        maps.watch(student)
        trainer.train()
        console.print(f"Export it with `python -m training export {out} --name NAME --evaluate SOURCE`.")


def load_mobilenet(package: Package) -> MobileNet:
    """Return the package's network as a MobileNet for pixels in [-1, 1]. Raises Unusable (`not_a_mobilenet`)."""
    model = import_package(package, CACHE)
    form = model.form
    if form.changes_values or (form.layout, form.dtype, form.colour) != ("nchw", "float32", "rgb"):
        raise Unusable(f"{package.id} does not take plain pixels as SFace does.", code="not_a_mobilenet")
    scale = pixel_range(model)
    try:
        return as_mobilenet(model.backbone, scale)
    except ValueError as error:
        raise Unusable(f"{package.id}: {error}", code="not_a_mobilenet") from error


@torch.no_grad()
def pixel_range(model: ImportedModel) -> float:
    """Return the first convolution's input for the brightest pixel. For the darkest pixel it must be minus this value.

    Raises Unusable (`not_a_mobilenet`).
    """
    seen: list[Tensor] = []
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None:
        raise Unusable("The network has no convolution.", code="not_a_mobilenet")
    hook = first.register_forward_pre_hook(lambda _layer, inputs: seen.append(inputs[0]))
    shape = (CROP_SIDE, CROP_SIDE, 3)
    model(torch.stack([torch.zeros(shape), torch.full(shape, 2 * PIXEL_CENTRE)]).to(torch.uint8))
    hook.remove()
    dark, bright = seen[0]
    if not torch.allclose(dark, -bright, atol=1e-5) or not torch.allclose(bright, bright.flatten()[0]):
        raise Unusable("The network does not bring pixels to an even range around 0.", code="not_a_mobilenet")
    return float(bright.flatten()[0])


def read_widths(text: str) -> list[int]:
    """Parse the channel counts. Raises InvalidInput (`invalid_widths`)."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != len(WIDTHS) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InvalidInput(f"--widths takes {len(WIDTHS)} numbers above 0, not {text!r}.", code="invalid_widths")
    counts = [int(part) for part in parts]
    if any(count > full for count, full in zip(counts, WIDTHS, strict=True)):
        raise InvalidInput(f"No width may exceed the original's: {WIDTHS}.", code="invalid_widths")
    return counts
