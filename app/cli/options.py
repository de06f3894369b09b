"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Server: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="URL of a running server; by default the one on this data folder, or none: the work is done right here.",
        envvar="LIKENESS_SERVER",
    ),
]
Key: TypeAlias = Annotated[
    str | None,
    typer.Option(help="The server's key; the data folder's own where none is given.", envvar="LIKENESS_KEY"),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One line of JSON per answer.")]
Jobs: TypeAlias = Annotated[int, typer.Option(min=1, max=64, help="Photos sent at once.")]
Fmr: TypeAlias = Annotated[float | None, typer.Option(help="False match rate to decide at, e.g. 1e-4.")]
Paths: TypeAlias = Annotated[list[Path], typer.Argument(help="Photos, or folders of them.")]
Gallery: TypeAlias = Annotated[str, typer.Argument(help="The gallery's id.")]
