"""galleries, models, key: looking after an installation."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli import options, output, photos
from app.cli.connect import connect
from app.cli.output import Exit
from app.config import load_settings

galleries = typer.Typer(no_args_is_help=True, help="List, make, delete and check galleries.")
key = typer.Typer(invoke_without_command=True)
models = typer.Typer(no_args_is_help=True, help="List model packages, and fetch the files of those that name a URL.")

Search = Annotated[
    str | None, typer.Option(help="How vectors are searched: fp32 or int8 (docs/explanation/search.md).")
]
Name = Annotated[str, typer.Argument(help="The package: `name` or `name@version`.")]


@galleries.command("list")
def list_galleries(server: options.Server = None, key: options.Key = None, as_json: options.AsJson = False) -> None:
    """Every gallery, with its counts."""
    with connect(server, key) as client:
        found = list(client.all_galleries())
    if as_json:
        for gallery in found:
            output.say_json(gallery)
    else:
        rows = [[g.id, g.embedder, str(g.subjects), str(g.faces), g.store, g.search] for g in found]
        output.say_table(["gallery", "embedder", "subjects", "faces", "store", "search"], rows)


@galleries.command()
def create(
    gallery: options.Gallery,
    embedder: Annotated[str | None, typer.Option(help="Model package; the server's own by default.")] = None,
    store: Annotated[str | None, typer.Option(help="crop: keep aligned crops; none: templates alone.")] = None,
    search: Search = None,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a gallery."""
    with connect(server, key) as client:
        made = client.create_gallery(gallery, embedder=embedder, store=store, search=search)
    if as_json:
        output.say_json(made)
    else:
        output.say(f"{made.id}: made, for templates of {made.embedder}")


@galleries.command()
def update(
    gallery: options.Gallery,
    search: Search = None,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Change how a gallery is searched."""
    with connect(server, key) as client:
        updated = client.update_gallery(gallery, {} if search is None else {"search": search})
    if as_json:
        output.say_json(updated)
    else:
        output.say(f"{updated.id}: searched by {updated.search}")


@galleries.command()
def delete(
    gallery: options.Gallery,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    server: options.Server = None,
    key: options.Key = None,
) -> None:
    """Delete a gallery with everyone in it."""
    if not yes:
        typer.confirm(f"Delete gallery {gallery} with everyone in it?", abort=True)
    with connect(server, key) as client:
        client.delete_gallery(gallery)
    output.say(f"{gallery}: deleted")


@galleries.command()
def check(
    gallery: Annotated[str | None, typer.Argument(help="The gallery's id; all of them where none is given.")] = None,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Do database and index agree? Exit code 1: they do not."""
    with connect(server, key) as client:
        names = [gallery] if gallery is not None else [found.id for found in client.all_galleries()]
        reports = list(photos.each(client.check_gallery, names, "check", jobs=1))
    for name, report in reports:
        if as_json:
            output.say_json({"gallery": name} | report.model_dump(mode="json"))
        else:
            word = "in order" if report.ok else "NOT in order"
            output.say(f"{name}: {word}: {report.faces} faces in the database, {report.indexed} in the index")
            for problem in report.problems:
                output.say(f"  {problem}")
    raise typer.Exit(Exit.DONE if all(report.ok for _, report in reports) else Exit.NO)


@models.command("list")
def list_models(server: options.Server = None, key: options.Key = None, as_json: options.AsJson = False) -> None:
    """Every model package: what it does, its licence, whether it runs now."""
    with connect(server, key) as client:
        found = client.models().models
    if as_json:
        for model in found:
            output.say_json(model)
        return
    rows = [
        [
            model.id,
            model.task,
            str(model.dimension or ""),
            model.licence.name + (" (non-commercial)" if model.licence.non_commercial else ""),
            model.device or "-",
            model.sha256[:12],
        ]
        for model in found
    ]
    output.say_table(["model", "task", "dimension", "licence", "runs on", "sha256"], rows)


@models.command()
def pull(
    name: Name,
    accept_non_commercial: Annotated[
        bool, typer.Option("--accept-non-commercial", help="Take weights whose licence forbids commercial use.")
    ] = False,
) -> None:
    """Fetch a package's file from the URL in its manifest, and check it."""
    from app.runtime import package  # noqa: PLC0415 (the other commands need none of it)

    settings = load_settings()
    chosen = package.select(package.find_packages(settings.models_dir), name)
    path = package.pull(chosen, settings.data_dir / "models", accept_non_commercial=accept_non_commercial)
    output.say(f"{chosen.id}: {path} ({chosen.manifest.licence.name})")


@key.callback()
def show_key(
    context: typer.Context,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make a new one; a running server keeps the old.")] = False,
) -> None:
    """Print the admin key (made at the first start, or right now), or make one of another kind."""
    if context.invoked_subcommand is not None:
        return
    from app import main  # noqa: PLC0415 (the other commands need none of it)

    settings = load_settings()
    output.say(main.rotate_admin_key(settings.data_dir) if rotate else main.admin_key(settings.data_dir))
