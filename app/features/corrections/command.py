"""`likeness corrections`: record whom a photo does not show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli import options, photos
from app.cli.options import CliSession, command

corrections = typer.Typer(no_args_is_help=True, epilog="Example: likeness corrections add staff ada door.jpg")


@command(corrections, "add", epilog="Example: likeness corrections add staff ada door.jpg")
def add_correction(
    session: CliSession,
    gallery: options.Gallery,
    subject: options.Subject,
    photo: Annotated[Path, typer.Argument(help="The photo of somebody else who was taken for that person.")],
    face: Annotated[int | None, typer.Option(min=0, help="The face's place in `detect`'s list, from 0.")] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Record it even if the photo matches the person beyond doubt.")
    ] = False,
) -> None:
    """Record that a photo does not show the person. People who look like the photo are no longer taken for that
    person."""
    photos.collect([photo])
    made = session.client().add_correction(gallery, subject, photo, face=face, confirm=confirm)
    session.say(made, f"{made.id}: not {subject}, until {made.expires_at:%Y-%m-%d}")


@command(corrections, "list", epilog="Example: likeness corrections list staff ada")
def list_corrections(session: CliSession, gallery: options.Gallery, subject: options.Subject) -> None:
    """List the corrections about a person: photos that don't show this person."""
    session.say_list(
        ["correction", "model", "made (UTC)", "until"],
        session.client().corrections(gallery, subject).corrections,
        lambda row: [row.id, row.model, f"{row.created_at:%Y-%m-%d %H:%M}", f"{row.expires_at:%Y-%m-%d}"],
    )


@command(corrections, "delete", epilog="Example: likeness corrections delete staff ada 4c3a9a3e")
def delete_correction(
    session: CliSession,
    gallery: options.Gallery,
    subject: options.Subject,
    correction: Annotated[str, typer.Argument(help="The correction's id, as `likeness corrections list` shows it.")],
) -> None:
    """Delete a correction, so that it no longer counts when people are identified."""
    session.client().delete_correction(gallery, subject, correction)
    session.say_done(correction, "deleted")
