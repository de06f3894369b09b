"""`likeness reembed`: move a gallery to another model package."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer
from likeness_client import answers

from app.choices import WithoutCrop
from app.cli import jobs, options
from app.cli.options import CliSession, command

Wait: TypeAlias = Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")]

reembed = typer.Typer(no_args_is_help=True, epilog="Example: likeness reembed start staff arcface --wait")


@command(reembed, epilog="Example: likeness reembed start staff arcface@1 --keep-days 14 --wait")
def start(
    session: CliSession,
    gallery: options.Gallery,
    embedder: options.Package,
    without_crop: Annotated[
        WithoutCrop | None, typer.Option(help="Faces without a crop: refuse to start, or drop them.")
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option(min=0, help="Days after the switch in which a rollback is possible. Default: 7.")
    ] = None,
    force: options.Force = False,
    accept_non_commercial: options.AcceptNonCommercial = False,
    wait: Wait = False,
) -> None:
    """Embed every face with another package, then switch to it. Repeat the command to continue a stopped move."""
    move = session.client().reembed(
        gallery,
        embedder,
        without_crop=without_crop,
        keep_days=keep_days,
        force=force or None,
        accept_non_commercial=accept_non_commercial or None,
    )
    _say_move(session, move, wait=wait)


@command(reembed, epilog="Example: likeness reembed show staff")
def show(session: CliSession, gallery: options.Gallery) -> None:
    """Show the state of a gallery's move."""
    _say_move(session, session.client().reembedding(gallery))


@command(reembed, epilog="Example: likeness reembed rollback staff")
def rollback(session: CliSession, gallery: options.Gallery) -> None:
    """Return to the previous package at once."""
    _say_move(session, session.client().roll_back_reembedding(gallery))


@command(reembed, epilog="Example: likeness reembed finish staff --wait")
def finish(session: CliSession, gallery: options.Gallery, wait: Wait = False) -> None:
    """Delete the templates of the previous package. After this, no rollback is possible."""
    _say_move(session, session.client().finish_reembedding(gallery), wait=wait)


@command(reembed, epilog="Example: likeness reembed cancel staff")
def cancel(session: CliSession, gallery: options.Gallery, wait: Wait = False) -> None:
    """Keep the current package, and delete the templates made so far with the other one."""
    _say_move(session, session.client().cancel_reembedding(gallery), wait=wait)


def _say_move(session: CliSession, move: answers.Reembedding, *, wait: bool = False) -> None:
    """Print the state of the move, or wait until its job has ended."""
    if wait and move.job is not None:
        job = jobs.await_job(session.client(), move.job.id)
        jobs.say(session, job)
        raise typer.Exit(jobs.exit_code(job))
    until = f", rollback until {move.keep_until:%Y-%m-%d %H:%M} UTC" if move.keep_until else ""
    missing = f", {move.missing} faces without crop" if move.missing else ""
    session.say(move, f"{move.gallery}: {move.source} to {move.target}: {move.state}{missing}{until}")
    if move.job is not None and not session.as_json:
        jobs.say(session, move.job)
