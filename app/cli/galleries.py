"""galleries, reembed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import typer

from app.api import schemas
from app.cli import jobs, options, output, photos
from app.cli.connect import Data, connect
from app.cli.output import Exit
from app.client import Client

galleries = typer.Typer(no_args_is_help=True, epilog="Example: likeness galleries list")
reembed = typer.Typer(no_args_is_help=True, epilog="Example: likeness reembed start staff arcface --wait")


@galleries.command("list", epilog="Example: likeness galleries list --json")
def list_galleries(server: options.Server = None, key: options.Key = None, as_json: options.AsJson = False) -> None:
    """List the galleries with their counts."""
    with connect(server, key) as client:
        found = list(client.all_galleries())
    if as_json:
        for gallery in found:
            output.say_json(gallery)
    else:
        rows = [[g.id, g.embedder, str(g.subjects), str(g.faces), g.store, g.search, g.liveness] for g in found]
        output.say_table(["gallery", "embedder", "subjects", "faces", "store", "search", "liveness"], rows)


@galleries.command(epilog="Example: likeness galleries create staff --store none")
def create(
    gallery: options.Gallery,
    embedder: options.Embedder = None,
    store: Annotated[
        Literal["crop", "none"] | None, typer.Option(help="crop: keep the aligned crops; none: templates only.")
    ] = None,
    search: options.Search = None,
    population: options.Populations = None,
    liveness: options.Liveness = None,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a gallery."""
    with connect(server, key, Data.CREATED) as client:
        made = client.create_gallery(
            gallery, embedder=embedder, store=store, search=search, population=population, liveness=liveness
        )
    if as_json:
        output.say_json(made)
    else:
        output.say(f"{made.id}: created, for templates of {made.embedder}")


@galleries.command(epilog="Example: likeness galleries update staff --search int8")
def update(
    gallery: options.Gallery,
    search: options.Search = None,
    population: options.Populations = None,
    no_population: Annotated[bool, typer.Option("--no-population", help="Declare no group of people.")] = False,
    liveness: options.Liveness = None,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Change how a gallery is searched, whom it is for, or what it asks of liveness."""
    given = {"search": search, "liveness": liveness}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if population or no_population:
        changes["population"] = population or []
    with connect(server, key) as client:
        updated = client.update_gallery(gallery, changes)
    if as_json:
        output.say_json(updated)
    else:
        declared = f", for {', '.join(updated.population)}" if updated.population else ""
        output.say(f"{updated.id}: searched by {updated.search}{declared}, liveness {updated.liveness}")


@galleries.command(epilog="Example: likeness galleries delete visitors --yes")
def delete(
    gallery: options.Gallery,
    yes: options.Yes = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete a gallery with everybody in it."""
    if not yes:
        typer.confirm(f"Delete gallery {gallery} with everybody in it?", abort=True)
    with connect(server, key) as client:
        client.delete_gallery(gallery)
    output.say_done(gallery, "deleted", as_json=as_json)


@galleries.command(epilog="Example: likeness galleries check staff")
def check(
    gallery: options.AnyGallery = None,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that database and index hold the same faces. Exit code 1: they don't."""
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


@reembed.command(epilog="Example: likeness reembed start staff arcface@1 --keep-days 14 --wait")
def start(
    gallery: options.Gallery,
    embedder: options.Package,
    without_crop: Annotated[
        Literal["refuse", "drop"] | None, typer.Option(help="Faces without a crop: refuse to start, or drop them.")
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option(min=0, help="Days after the switch in which a rollback is possible. Default: 7.")
    ] = None,
    wait: options.Wait = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Embed every face with another package, then switch to it. Called again, it continues a stopped move."""
    with connect(server, key) as client:
        found = client.reembed(gallery, embedder, without_crop=without_crop, keep_days=keep_days)
        _end(client, found, wait, as_json)


@reembed.command(epilog="Example: likeness reembed show staff")
def show(
    gallery: options.Gallery,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the state of a gallery's move."""
    _do(lambda client: client.reembedding(gallery), False, server, key, as_json)


@reembed.command(epilog="Example: likeness reembed rollback staff")
def rollback(
    gallery: options.Gallery,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Return to the previous package at once."""
    _do(lambda client: client.roll_back_reembedding(gallery), False, server, key, as_json)


@reembed.command(epilog="Example: likeness reembed finish staff --wait")
def finish(
    gallery: options.Gallery,
    wait: options.Wait = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete the templates of the previous package. This ends the time in which a rollback is possible."""
    _do(lambda client: client.finish_reembedding(gallery), wait, server, key, as_json)


@reembed.command(epilog="Example: likeness reembed cancel staff")
def cancel(
    gallery: options.Gallery,
    wait: options.Wait = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Keep the current package, and delete the templates made so far with the other one."""
    _do(lambda client: client.cancel_reembedding(gallery), wait, server, key, as_json)


def _do(
    call: Callable[[Client], schemas.Reembedding], wait: bool, server: str | None, key: str | None, as_json: bool
) -> None:
    with connect(server, key) as client:
        _end(client, call(client), wait, as_json)


def _end(client: Client, found: schemas.Reembedding, wait: bool, as_json: bool) -> None:
    if not wait or found.job is None:
        _say(found, as_json)
        return
    job = jobs.await_job(client, found.job.id)
    jobs.say(job, as_json=as_json)
    raise typer.Exit(jobs.exit_code(job))


def _say(found: schemas.Reembedding, as_json: bool) -> None:
    if as_json:
        output.say_json(found)
        return
    until = f", rollback until {found.keep_until:%Y-%m-%d %H:%M} UTC" if found.keep_until else ""
    missing = f", {found.missing} faces without crop" if found.missing else ""
    output.say(f"{found.gallery}: {found.source} to {found.target}: {found.state}{missing}{until}")
    if found.job is not None:
        jobs.say(found.job, as_json=False)
