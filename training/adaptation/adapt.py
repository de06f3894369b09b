"""`python -m training adapt`: teach a package to give a poor photo the template that it gives a good one.

The package's own network is imported and learns from itself: it sees each crop degraded (small, compressed, blurred,
dark, noisy, covered), the original sees it clean, and their templates should agree. No labels are needed. Some of the
crops stay clean, so that templates remain comparable with those of the original package.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from pydantic import ValidationError
from rich.console import Console

from app.errors import InvalidInput
from app.package.folders import Package
from app.package.manifest import Licence, Provenance, Rewrite
from training.adaptation.distil import OnlineViews, open_trainer
from training.adaptation.views import FOR, ConditionConfig, ViewConfig, conditions_for
from training.backbones.imported import ImportedModel, import_package
from training.data.crops import Crops
from training.export import export_fp32, write_embedder
from training.model import EmbedderExport
from training.packages import CACHE, MODELS, check_free, find_package, how_to_measure
from training.recipe import Recipe, parse_recipe, problems_of
from training.run.distributed import choose_device
from training.run.inputs import read_source
from training.run.precision import Precision, has_amx
from training.terminal import told

Photos = Annotated[list[str], typer.Option(help="Aligned crops (`data align`), as `data` reads them; repeatable.")]
Drop = Annotated[Path | None, typer.Option(help="What to leave out: a list of `data overlap` or `data check`.")]
Batch = Annotated[int, typer.Option(min=2, help="Crops a step.")]
LearningRate = Annotated[float, typer.Option(help="Peak learning rate of AdamW.")]
Models = Annotated[Path, typer.Option(help="Model packages.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Compiled = Annotated[bool, typer.Option("--compile", help="By torch.compile: slower to start, then faster.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the run's latest checkpoint.")]
Count = Annotated[int, typer.Option(min=1)]


def read_photos(sources: Sequence[str], drop: Path | None, console: Console) -> Crops:
    """Read the aligned crops of the sources, except those on the list ``drop``, without labels.

    Raises InvalidInput (`recipe_data`) if none are left, and what reading them raises.
    """
    parts = (read_source(source, console, drop) for source in sources)
    pixels = np.concatenate([crops.images(np.arange(len(crops))) for crops in parts])
    if not len(pixels):
        raise InvalidInput("There are no crops to learn from.", code="recipe_data")
    return Crops(pixels, np.arange(len(pixels)), np.zeros(len(pixels), np.int64), ["anybody"])


def precision_on(device: torch.device) -> Precision:
    """Return fp16 on a GPU, bf16 on a CPU with AMX (SFace: 1.5 times fp32's speed), else fp32.

    bf16 is not used on a GPU: on an H100 (cuDNN 9.19), the gradient of a depthwise convolution took longer in bf16 than
    the whole rest of the step.
    """
    if device.type == "cuda":
        return "fp16"
    return "bf16" if has_amx() else "fp32"


def recipe_of(photos: list[str], package: str, device: torch.device, **sections: dict[str, Any]) -> Recipe:
    """Return the recipe of a run on views of photos with a package as teacher, after merging ``sections`` into it."""
    table: dict[str, Any] = {
        "name": "adapted",
        "data": {"source": ", ".join(photos), "held_out": 0.0},
        "distill": {"teacher": package},
        "optimizer": {"name": "adamw"},
        "train": {"precision": precision_on(device), "ema": 0.998, "trackers": ()},
    }
    return parse_recipe(table | {name: table.get(name, {}) | values for name, values in sections.items()})


VIEW = ViewConfig(blend=0.4, low_resolution=0.0, blur=0.0, noise=0.0, cover=0.0)
"""The changes that teacher and student share, before the conditions: crops are blended, slightly turned and moved, and
relit."""
console = Console(stderr=True)


def adapt(
    package: Annotated[str, typer.Argument(help="The package to adapt: a name in --models, or a folder.")],
    *,
    photos: Photos,
    name: Annotated[str, typer.Option(help="The new package's name.")],
    conditions: Annotated[
        Path | None,
        typer.Option(help="TOML with probabilities and ranges (training.adaptation.views.ConditionConfig)."),
    ] = None,
    only: Annotated[str | None, typer.Option("--for", help=f"Conditions alone, with commas: {', '.join(FOR)}.")] = None,
    drop: Drop = None,
    steps: Count = 4000,
    batch: Batch = 384,
    lr: LearningRate = 1e-4,
    licence: Annotated[str, typer.Option(help="SPDX identifier of what the result may be used under.")] = (
        "LicenseRef-unspecified"
    ),
    commercial: Annotated[bool, typer.Option("--commercial", help="The licence allows commercial use.")] = False,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME where it is not given.")] = None,
    models: Models = MODELS,
    device: Device = "auto",
    compiled: Compiled = False,
    checkpoint_every: Count = 500,
    resume: Resume = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a package of this name.")] = False,
) -> None:
    """Adapt a package to poor photos, without labels."""
    with told():
        check_free(models / name, replace=replace)
        old = find_package(package, models)
        target = choose_device(device)
        if only and conditions:
            raise InvalidInput("--for and --conditions can't be used together.", code="invalid_conditions")
        given = conditions_for([name.strip() for name in only.split(",")]) if only else read_conditions(conditions)
        crops = read_photos(photos, drop, console)
        recipe = recipe_of(
            photos,
            package,
            target,
            sampler={"batch_size": batch},
            model={"start": str(old.folder), "dim": old.manifest.dimension, "frozen_statistics": True},
            distill={"relation": 2.0},
            optimizer={"lr": lr, "weight_decay": 0.0},
            schedule={"warmup": min(100, steps // 10)},
            train={"steps": steps, "compile": compiled, "checkpoint_every": checkpoint_every},
        )
        console.print(f"{len(crops)} crops, {steps} steps of {batch} on {target.type}")
        teacher = import_package(old, CACHE, channels_last=True)
        online = OnlineViews(crops, teacher, recipe, VIEW, target, conditions=given)
        trainer = open_trainer(recipe, crops, online, out or Path("runs") / name, resume=resume)
        trainer.train()
        learned = trainer.averaged()
        assert isinstance(learned, ImportedModel)  # noqa: S101  as the recipe starts with a package
        facts: dict[str, Any] = {"steps": steps, "batch": batch, "lr": lr, "crops": len(crops), "photos": photos}
        facts["conditions"] = given.model_dump(mode="json")
        terms = Licence(name=licence, non_commercial=not commercial)
        folder = write_adapted(learned, old, models / name, licence=terms, facts=facts)
        console.print(f"{folder}: {how_to_measure(folder)}", soft_wrap=True, highlight=False)
        console.print(
            "Compare what it does within groups of people with what it did before: python -m training evaluate groups "
            f"--package {name} --beside {package} …",
            soft_wrap=True,
            highlight=False,
        )


def read_conditions(path: Path | None) -> ConditionConfig:
    """Return the defaults, overridden by a TOML file's values. Raises InvalidInput (`invalid_conditions`)."""
    if path is None:
        return ConditionConfig()
    try:
        return ConditionConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        known = ", ".join(ConditionConfig.model_fields)
        raise InvalidInput(f"{path}: {problems_of(error)}. Known are {known}.", code="invalid_conditions") from error
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}", code="invalid_conditions") from error


def write_adapted(model: ImportedModel, old: Package, folder: Path, *, licence: Licence, facts: dict[str, Any]) -> Path:
    """Write and return an adapted network's package folder, checked as every export is, without operating points."""
    dimension = old.manifest.dimension
    assert dimension is not None  # noqa: S101  an embedder has one
    exported = export_fp32(EmbedderExport(model), dimension)
    return write_embedder(
        folder,
        exported.model,
        dimension,
        version="1",
        title=f"{old.manifest.title}, adapted",
        description=f"{old.id}, adapted to poor photos by distillation from itself.",
        prepare=Rewrite(),
        licence=licence,
        provenance=Provenance(
            text=f"Adapted from {old.id} ({old.manifest.licence.name}) by `python -m training adapt`.",
            figures=exported.figures | {"adapt": facts},
        ),
    )
