"""`likeness people merge`, `faces move`: correct who is who."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli import options
from app.cli.options import CliSession, command, confirm

people, faces = typer.Typer(), typer.Typer()


@command(people, epilog="Example: likeness people merge staff ada_l ada --yes")
def merge(
    session: CliSession,
    gallery: options.Gallery,
    subject: options.Subject,
    into: Annotated[str, typer.Argument(help="The id of the person who gets all faces.")],
    yes: options.Yes = False,
) -> None:
    """Give all faces of a person to another person, and delete the first, in one step.

    The other person keeps name, metadata and consent, and gets those that they lack; the earlier expiry counts. `faces
    move --create` undoes it.
    """
    if into == subject:
        raise typer.BadParameter("A person can't be merged into itself.", param_hint="INTO")
    confirm(f"Give all faces of {subject} to {into}, and delete {subject}?", yes)
    merged = session.client().merge_subject(gallery, subject, into)
    session.say(merged, f"{subject}: merged into {into}, {len(merged.faces)} faces")


@command(
    faces,
    epilog="Examples: likeness faces move staff ada 0b1c2d grace\n\n"
    "likeness faces move staff ada 0b1c2d,3e4f5a grace --create",
)
def move(
    session: CliSession,
    gallery: options.Gallery,
    subject: options.Subject,
    face: Annotated[str, typer.Argument(metavar="FACE", help="The face's id, or several with commas between them.")],
    to: Annotated[str, typer.Argument(help="The id of the person who gets the faces.")],
    create: Annotated[bool, typer.Option("--create", help="Create that person if missing.")] = False,
) -> None:
    """Move enrolled faces to another person of the gallery, all or none."""
    session.client().move_faces(gallery, subject, faces=face.split(","), to=to, create=create)
    session.say_done(face, f"moved to {to}")
