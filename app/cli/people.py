"""`likeness people`, `faces`: the content of a gallery."""

from __future__ import annotations

from typing import Annotated

import typer
from likeness_client import answers

from app.cli import options
from app.cli.options import CliSession, command, confirm

people = typer.Typer(no_args_is_help=True, epilog="Example: likeness people list staff")
faces = typer.Typer(no_args_is_help=True, epilog="Example: likeness faces list staff ada")

Face = Annotated[str, typer.Argument(metavar="FACE", help="The face's id, as `likeness faces list` shows it.")]


@command(people, "list", epilog="Examples: likeness people list staff\n\nlikeness people list staff --search lovelace")
def list_people(
    session: CliSession,
    gallery: options.Gallery,
    search: Annotated[str | None, typer.Option(help="Only people whose id or name contains this text.")] = None,
) -> None:
    """List the people of a gallery."""
    session.say_list(
        ["person", "name", "faces", "changed (UTC)"],
        list(session.client().all_subjects(gallery, search=search)),
        lambda row: [row.id, row.name, row.face_count, f"{row.updated_at:%Y-%m-%d %H:%M}"],
    )


@command(people, epilog="Example: likeness people show staff ada")
def show(session: CliSession, gallery: options.Gallery, subject: options.Subject) -> None:
    """Show one person: name, metadata, faces, expiry and consent."""
    person = session.client().subject(gallery, subject)
    session.say(person, *_lines(person))


@command(people, epilog='Example: likeness people rename staff ada "Ada Lovelace"')
def rename(
    session: CliSession,
    gallery: options.Gallery,
    subject: options.Subject,
    name: Annotated[str, typer.Argument(help="The new name.")],
) -> None:
    """Change a person's name. The id stays as it is."""
    person = session.client().update_subject(gallery, subject, {"name": name})
    session.say(person, *_lines(person))


@command(people, epilog="Example: likeness people delete staff ada --yes")
def delete(session: CliSession, gallery: options.Gallery, subject: options.Subject, yes: options.Yes = False) -> None:
    """Delete a person with all faces. `likeness erase` also gives a signed receipt."""
    confirm(f"Delete {subject} of gallery {gallery} with all faces?", yes)
    session.client().delete_subject(gallery, subject)
    session.say_done(subject, "deleted")


@command(faces, "list", epilog="Example: likeness faces list staff ada")
def list_faces(session: CliSession, gallery: options.Gallery, subject: options.Subject) -> None:
    """List the enrolled faces of a person."""
    session.say_list(
        ["face", "quality", "model", "enrolled (UTC)"],
        list(session.client().all_faces(gallery, subject)),
        lambda row: [row.face_id, f"{row.quality.score:.0f}", row.model, f"{row.created_at:%Y-%m-%d %H:%M}"],
    )


@command(faces, "delete", epilog="Example: likeness faces delete staff ada 0b1c2d --yes")
def delete_face(
    session: CliSession, gallery: options.Gallery, subject: options.Subject, face: Face, yes: options.Yes = False
) -> None:
    """Delete one enrolled face."""
    confirm(f"Delete face {face} of {subject}?", yes)
    session.client().delete_face(gallery, subject, face)
    session.say_done(face, "deleted")


def _lines(person: answers.Subject) -> list[str]:
    lines = [
        f"{person.id}: {person.name or 'no name'}, {person.face_count} faces",
        f"  created {person.created_at:%Y-%m-%d %H:%M} UTC, changed {person.updated_at:%Y-%m-%d %H:%M} UTC",
    ]
    if person.expires_at:
        lines.append(f"  erased on {person.expires_at:%Y-%m-%d %H:%M} UTC")
    if person.consent:
        lines.append(f"  consent of {person.consent.given_at:%Y-%m-%d}: {person.consent.note}")
    return [*lines, *(f"  {name}: {value}" for name, value in person.metadata.items())]
