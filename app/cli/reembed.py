"""reembed: moving galleries to other model packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from app.api import schemas
from app.cli import jobs, options, output
from app.cli.connect import connect
from app.client import Client

reembed = typer.Typer(no_args_is_help=True, help="Move a gallery to another model package while it is in use.")

Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")]


@reembed.command()
def start(
    gallery: options.Gallery,
    embedder: Annotated[str, typer.Argument(help="The model package: `name` or `name@version`.")],
    without_crop: Annotated[
        str | None, typer.Option(help="Faces without crop: refuse (nothing is begun) or drop.")
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option(min=0, help="How long after the switch a rollback is possible; 7 by default.")
    ] = None,
    wait: Wait = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Embed every face again, then switch; asked again, go on with what has stopped."""
    with connect(server, key) as client:
        found = client.reembed(gallery, embedder, without_crop=without_crop, keep_days=keep_days)
        _end(client, found, wait, as_json)


@reembed.command()
def show(
    gallery: options.Gallery,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """How far it is."""
    _do(lambda client: client.reembedding(gallery), False, server, key, as_json)


@reembed.command()
def rollback(
    gallery: options.Gallery,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Back to the package before, at once."""
    _do(lambda client: client.roll_back_reembedding(gallery), False, server, key, as_json)


@reembed.command()
def finish(
    gallery: options.Gallery,
    wait: Wait = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove the package before: no way back."""
    _do(lambda client: client.finish_reembedding(gallery), wait, server, key, as_json)


@reembed.command()
def cancel(
    gallery: options.Gallery,
    wait: Wait = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Stay with the package there is, and remove what there is of the other."""
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
