"""`python -m training train` and `export`: turn command-line options into calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from app.errors import InvalidInput
from app.package.folders import load_package
from training import checkpoint
from training.export import VARIANTS, About, Evaluation, Variant, export, package_folder
from training.packages import MODELS, check_free, how_to_measure, how_to_serve
from training.recipe import Distill, Recipe, load_recipe
from training.run.distributed import joined
from training.run.inputs import prepare_alone, prepare_material, read_source
from training.run.trainer import Material, Trainer
from training.terminal import told

console = Console(stderr=True)
CALIBRATION_CROPS = 512
"""Number of crops for choosing int8's ranges; at most twice as many are taken."""


def train(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a TOML file (training/recipes has examples).")],
    *,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, e.g. train.steps=500; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME where it is not given.")] = None,
    models: Annotated[Path, typer.Option(help="Model packages, for a teacher's name.")] = MODELS,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's latest checkpoint.")] = False,
) -> None:
    """Train a recipe. Under torchrun it trains on all ranks together."""
    with told():
        settings = load_recipe(recipe, overrides or ())
        folder = out or Path("runs") / settings.name
        _train(settings, folder, models, device, checkpoint.last_of(folder, resume=resume))


def prepare(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a TOML file.")],
    *,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value; repeatable.")] = None,
    models: Annotated[Path, typer.Option(help="Model packages, for a teacher's name.")] = MODELS,
) -> None:
    """Index, split and decode a recipe's data and make its teacher's templates, so that `train` starts at once."""
    with told():
        material = prepare_alone(load_recipe(recipe, overrides or ()), models, console)
        console.print(f"Prepared: {len(material.crops)} crops of {len(material.crops.people)} people.")


def _train(recipe: Recipe, folder: Path, models: Path, device: str, last: Path | None) -> None:
    material = prepare_alone(recipe, models, console)
    with joined(device) as world:
        quiet = Console(stderr=True, quiet=not world.is_first)
        trainer = Trainer(recipe, material, folder, world)
        if last is not None:
            trainer.restore(last)
        quiet.print(
            f"{recipe.name}: {len(material.crops)} crops of {len(material.crops.people)} people, "
            f"from step {trainer.progress.step} to {trainer.steps} on {world.size} × {world.device.type}, "
            f"{trainer.precision}"
        )
        progress = trainer.train()
        if progress.best_step is not None:
            quiet.print(f"The best checkpoint is that of step {progress.best_step}: {folder / 'best.pt'}")
        quiet.print(f"Export it: python -m training export {folder} --name {recipe.name}")


def export_package(
    run: Annotated[Path, typer.Argument(help="A run's folder (its best checkpoint) or a checkpoint.")],
    *,
    name: Annotated[
        str, typer.Option(help="The package's name: its folder in --out, and what LIKENESS_EMBEDDER says.")
    ],
    out: Annotated[Path, typer.Option(help="The folder of model packages.")] = MODELS,
    version: Annotated[str, typer.Option(help="The package's version.")] = "1",
    variants: Annotated[str, typer.Option(help="Variants to write, with commas: fp32, fp16, int8.")] = "fp32",
    evaluate: Annotated[
        str | None, typer.Option(help="Aligned crops of unseen people; the recipe's held-out people if not given.")
    ] = None,
    measured_on: Annotated[str, typer.Option(help="What --evaluate holds, in words, for the manifest.")] = "",
    unmeasured: Annotated[
        bool, typer.Option("--unmeasured", help="Write no operating points; needs no training data.")
    ] = False,
    title: str = "",
    description: str = "",
    licence: Annotated[str, typer.Option(help="SPDX identifier of the model's licence.")] = "LicenseRef-unspecified",
    commercial: Annotated[bool, typer.Option("--commercial", help="The licence allows commercial use.")] = False,
    second_tower: Annotated[
        bool, typer.Option("--second-tower", help="Export the second tower of a pseudo-siamese run.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace packages of this name.")] = False,
) -> None:
    """Export a checkpoint as a model package that the service loads."""
    with told():
        recipe = checkpoint.load(checkpoint.resolve(run)).recipe
        chosen = _variants(variants)
        for variant in chosen:
            check_free(package_folder(out, name, variant), replace=replace)
        unseen = None if evaluate is None else read_source(evaluate, console)
        calibration = None
        if "int8" in chosen or (evaluate is None and not unmeasured):
            material = _training_data(recipe, out)
            count = len(material.crops)
            calibration = material.crops.images(np.arange(0, count, max(1, count // CALIBRATION_CROPS)))
            unseen = unseen or material.held_out
        unseen_source = evaluate or recipe.evaluate.source
        words = measured_on or unseen_source or f"{recipe.data.source}: people held out of training"
        folders = export(
            run,
            About(name, version, title, description, licence, non_commercial=not commercial),
            out,
            variants=chosen,
            calibration=calibration,
            evaluation=None if unseen is None else Evaluation(unseen, words),
            second_tower=second_tower,
            say=console.print,
        )
        for folder in folders:
            if not load_package(folder).manifest.calibrations:
                console.print(how_to_measure(folder), soft_wrap=True, highlight=False)
        console.print(f"Serve it: {how_to_serve(folders[0])}", soft_wrap=True, highlight=False)


def _training_data(recipe: Recipe, models: Path) -> Material:
    """Open the run's data, without its teacher. Raises InvalidInput (`export_needs_data`) if it is gone."""
    try:
        return prepare_material(recipe.model_copy(update={"distill": Distill()}), models, console)
    except InvalidInput as error:
        message = (
            f"{error.message} The run's own data is needed to choose int8's ranges, and to measure on people held out "
            "of training: name --evaluate CROPS, or --unmeasured, and no int8 variant."
        )
        raise InvalidInput(message, code="export_needs_data") from error


def _variants(text: str) -> tuple[Variant, ...]:
    wanted = [part.strip() for part in text.split(",")]
    chosen = tuple(variant for variant in VARIANTS if variant in wanted)
    if len(chosen) != len(wanted):
        raise InvalidInput(f"variants are {', '.join(VARIANTS)}, not {text!r}.", code="invalid_variant")
    return chosen
