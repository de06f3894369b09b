"""`likeness galleries`: the core's commands. Features add theirs to the group."""

from __future__ import annotations

from typing import Annotated

import typer

from app import choices
from app.cli import options
from app.cli.connect import Data
from app.cli.options import CliSession, command, confirm

galleries = typer.Typer(no_args_is_help=True, epilog="Example: likeness galleries list")


@command(galleries, "list", epilog="Example: likeness galleries list --json")
def list_galleries(session: CliSession) -> None:
    """List the galleries with their counts."""
    session.say_list(
        ["gallery", "embedder", "subjects", "faces", "store", "search", "liveness"],
        list(session.client().all_galleries()),
        lambda row: [row.id, row.embedder, row.subjects, row.faces, row.store, row.search, row.liveness],
    )


@command(galleries, epilog="Example: likeness galleries create staff --store none")
def create(
    session: CliSession,
    gallery: options.Gallery,
    embedder: options.Embedder = None,
    store: Annotated[
        choices.CropPolicy | None, typer.Option(help="crop: keep the aligned crops; none: templates only.")
    ] = None,
    search: options.Search = None,
    on_conflict: options.OnConflict = None,
    population: options.Populations = None,
    liveness: options.Liveness = None,
    force: options.Force = False,
    accept_non_commercial: options.AcceptNonCommercial = False,
) -> None:
    """Create a gallery."""
    made = session.client(Data.CREATED).create_gallery(
        gallery,
        embedder=embedder,
        store=store,
        search=search,
        on_conflict=on_conflict,
        population=population,
        liveness=liveness,
        force=force or None,
        accept_non_commercial=accept_non_commercial or None,
    )
    session.say(made, f"{made.id}: created, for templates of {made.embedder}")


@command(galleries, epilog="Example: likeness galleries update staff --search int8")
def update(
    session: CliSession,
    gallery: options.Gallery,
    search: options.Search = None,
    on_conflict: options.OnConflict = None,
    population: options.Populations = None,
    no_population: Annotated[bool, typer.Option("--no-population", help="Declare no group of people.")] = False,
    liveness: options.Liveness = None,
) -> None:
    """Change how a gallery is searched, what it does with duplicates, whom it is for, or how it uses liveness."""
    given = {"search": search, "on_conflict": on_conflict, "liveness": liveness}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if population or no_population:
        changes["population"] = population or []
    updated = session.client().update_gallery(gallery, changes)
    declared = f", for {', '.join(updated.population)}" if updated.population else ""
    session.say(
        updated,
        f"{updated.id}: searched by {updated.search}, on conflict {updated.on_conflict}, liveness "
        f"{updated.liveness}{declared}",
    )


@command(galleries, epilog="Example: likeness galleries delete visitors --yes")
def delete(session: CliSession, gallery: options.Gallery, yes: options.Yes = False) -> None:
    """Delete a gallery with everybody in it."""
    confirm(f"Delete gallery {gallery} with everybody in it?", yes)
    session.client().delete_gallery(gallery)
    session.say_done(gallery, "deleted")
