"""The options that several commands share, and what a shell completes them with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from app import choices
from app.errors import LikenessError

COMPLETED = 100
"""Galleries that a shell is given at most."""
NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,99}"
"""Of a package's name, as in its manifest."""


def check_name(name: str, option: str) -> None:
    """Raise BadParameter if a manifest could not hold the name."""
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise typer.BadParameter(f"{name!r} must be up to 100 of a-z, 0-9 and . _ -", param_hint=option)


def _gallery_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the matching galleries of a running server; none where there is no server."""
    from app.cli import connect  # noqa: PLC0415 - only completion needs it here

    try:
        found = connect.find_server(context.params.get("server"), context.params.get("key"))
        if found is None:
            return []
        with found as client:
            galleries = client.galleries(limit=COMPLETED).galleries
    except LikenessError:
        return []
    return [gallery.id for gallery in galleries if gallery.id.startswith(incomplete)]


def _model_ids(incomplete: str) -> list[str]:
    return [name for name in _packages() if name.startswith(incomplete)]


def _packages() -> Iterator[str]:
    """Yield the ids of the model packages here, read as plain JSON: importing what checks manifests takes long."""
    from app.config import load_settings  # noqa: PLC0415 - only completion needs it here

    try:
        settings = load_settings()
    except LikenessError:
        return
    for path in (*settings.models_dir.glob("*/manifest.json"), *settings.data_dir.glob("packages/*/manifest.json")):
        try:
            manifest = json.loads(path.read_bytes())
            yield f"{manifest['name']}@{manifest['version']}"
        except (OSError, ValueError, KeyError, TypeError):
            continue


Server: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="URL of a running server. Default: the server that runs on the data folder; "
        "without one, the command does the work itself.",
        envvar="LIKENESS_SERVER",
    ),
]
Key: TypeAlias = Annotated[
    str | None, typer.Option(help="API key. Default: the admin key in the data folder.", envvar="LIKENESS_KEY")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one line of JSON per answer, errors too.")]
Jobs: TypeAlias = Annotated[int, typer.Option(min=1, max=64, help="Photos sent at the same time.")]
Fmr: TypeAlias = Annotated[
    float | None, typer.Option(help="False match rate that sets the threshold, for example 1e-4.")
]
Quality: TypeAlias = Annotated[choices.QualityName | None, typer.Option(help="Lowest quality that is accepted.")]
Liveness: TypeAlias = Annotated[
    choices.LivenessMode | None,
    typer.Option(help="Whether faces are live: report a verdict, or require it (docs/how-to/liveness.md)."),
]
Search: TypeAlias = Annotated[
    choices.IndexKind | None,
    typer.Option(help="How vectors are searched (docs/explanation/search.md)."),
]
OnConflict: TypeAlias = Annotated[
    choices.OnConflict | None,
    typer.Option(help="Faces that are enrolled already or match somebody else: say so, refuse them, or don't look."),
]
Population: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Group of people in the photo, as `likeness models show` lists them. Default: the gallery's."),
]
Populations: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--population", help="Group of people that it is for, as `likeness models show` lists them; may be repeated."
    ),
]
Wait: TypeAlias = Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")]
Create: TypeAlias = Annotated[bool, typer.Option("--create", help="Create the gallery if it doesn't exist.")]
Paths: TypeAlias = Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")]
Gallery: TypeAlias = Annotated[str, typer.Argument(help="The gallery's id.", autocompletion=_gallery_ids)]
AnyGallery: TypeAlias = Annotated[
    str | None, typer.Argument(help="The gallery's id. Default: all galleries.", autocompletion=_gallery_ids)
]
InGallery: TypeAlias = Annotated[
    str | None, typer.Option("--gallery", help="Only this gallery.", autocompletion=_gallery_ids)
]
InGalleries: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--gallery", help="Restrict the key to this gallery; may be repeated.", autocompletion=_gallery_ids),
]
Subject: TypeAlias = Annotated[str, typer.Argument(help="The person's id.")]
Package: TypeAlias = Annotated[
    str, typer.Argument(help="The model package: `name` or `name@version`.", autocompletion=_model_ids)
]
Embedder: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Model package. Default: the server's embedder.", autocompletion=_model_ids),
]
ImportPackage: TypeAlias = Annotated[
    str | None,
    typer.Option("--package", help="Templates: the model package that made them.", autocompletion=_model_ids),
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Take a package without operating points.")]
AcceptNonCommercial: TypeAlias = Annotated[
    bool, typer.Option("--accept-non-commercial", help="Take weights whose licence forbids commercial use.")
]
