"""`python -m training …`. A command's module is imported when it runs, so that evaluation needs no torch."""

from __future__ import annotations

import importlib
import os
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

PARTS = {
    "adapt": ("adaptation.adapt", "adapt", "Adapt a package to poor photos, without labels."),
    "data": ("commands.data", "app", "Align, check and compare sets of photos and crops."),
    "evaluate": ("commands.evaluate", "app", "Measure a model package. Needs no torch."),
    "export": ("commands.train", "export_package", "Export a checkpoint as a model package that the service loads."),
    "prepare": ("commands.train", "prepare", "Do beforehand what a recipe needs done once with its data."),
    "prune": ("adaptation.narrow", "prune_package", "Make a narrower, faster copy of a package like SFace."),
    "train": ("commands.train", "train", "Train a recipe."),
    "try": ("commands.try_package", "try_package", "Serve a package and identify drawn people with it over REST."),
}
"""Commands with their module in `training`, the name in that module, and the help line."""


class LazyParts(TyperGroup):
    """Lists commands by name and help line, and imports a command's module when it runs.

    Contexts and commands are `Any`: they are click's, and typer has a private copy of click.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(PARTS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        if cmd_name not in PARTS:
            return None
        # OpenMP reads this when torch loads it. By default its threads spin while they wait, which makes training three
        # times slower on a machine that also does other work.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        module, attribute, _ = PARTS[cmd_name]
        part: Any = getattr(importlib.import_module(f"training.{module}"), attribute)
        if isinstance(part, typer.Typer):
            return get_command(part)
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(name=cmd_name)(part)
        return get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in PARTS.items()])


app = typer.Typer(
    cls=LazyParts, no_args_is_help=True, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False
)


@app.callback()
def main() -> None:
    """Train, measure and export face embedders."""


if __name__ == "__main__":
    app()
