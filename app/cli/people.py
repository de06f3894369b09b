"""people, faces, corrections: what a gallery holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from likeness_client import answers

from app.cli import options, photos
from app.cli.session import Session, with_session

people = typer.Typer(no_args_is_help=True, epilog="Example: likeness people list staff")
faces = typer.Typer(no_args_is_help=True, epilog="Example: likeness faces list staff ada")
corrections = typer.Typer(no_args_is_help=True, epilog="Example: likeness corrections add staff ada door.jpg")

Face = Annotated[str, typer.Argument(metavar="FACE", help="The face's id, as `likeness faces list` shows it.")]


@people.command("list", epilog="Examples: likeness people list staff\n\nlikeness people list staff --search lovelace")
@with_session
def list_people(
    session: Session,
    gallery: options.Gallery,
    search: Annotated[str | None, typer.Option(help="Only people whose id or name contains this text.")] = None,
) -> None:
    """List the people of a gallery."""
    with session.connect() as client:
        found = list(client.all_subjects(gallery, search=search))
    session.say_list(
        ["person", "name", "faces", "changed (UTC)"],
        found,
        lambda one: [one.id, one.name or "", str(one.face_count), f"{one.updated_at:%Y-%m-%d %H:%M}"],
    )


@people.command(epilog="Example: likeness people show staff ada")
@with_session
def show(session: Session, gallery: options.Gallery, subject: options.Subject) -> None:
    """Show one person: name, metadata, faces, expiry and consent."""
    with session.connect() as client:
        found = client.subject(gallery, subject)
    session.say(found, _text(found))


@people.command(epilog='Example: likeness people rename staff ada "Ada Lovelace"')
@with_session
def rename(
    session: Session,
    gallery: options.Gallery,
    subject: options.Subject,
    name: Annotated[str, typer.Argument(help="The new name.")],
) -> None:
    """Change a person's name. The id stays as it is."""
    with session.connect() as client:
        found = client.update_subject(gallery, subject, {"name": name})
    session.say(found, _text(found))


@people.command(epilog="Example: likeness people merge staff ada_l ada --yes")
@with_session
def merge(
    session: Session,
    gallery: options.Gallery,
    subject: options.Subject,
    into: Annotated[str, typer.Argument(help="The id of the person who gets all faces.")],
    yes: options.Yes = False,
) -> None:
    """Give all faces of a person to another one and delete the first, in one step.

    The other one keeps its name, metadata and consent, and takes those it lacks; the earlier expiry counts. `faces
    move --create` undoes it.
    """
    if into == subject:
        raise typer.BadParameter("A person can't be merged into itself.", param_hint="INTO")
    if not yes:
        typer.confirm(f"Give all faces of {subject} to {into}, and delete {subject}?", abort=True)
    with session.connect() as client:
        merged = client.merge_subject(gallery, subject, into)
    session.say(merged, f"{subject}: merged into {into}, {len(merged.faces)} faces")


@people.command(epilog="Example: likeness people delete staff ada --yes")
@with_session
def delete(session: Session, gallery: options.Gallery, subject: options.Subject, yes: options.Yes = False) -> None:
    """Delete a person with all faces. `likeness erase` also gives a signed receipt."""
    if not yes:
        typer.confirm(f"Delete {subject} of gallery {gallery} with all faces?", abort=True)
    with session.connect() as client:
        client.delete_subject(gallery, subject)
    session.say_done(subject, "deleted")


@faces.command("list", epilog="Example: likeness faces list staff ada")
@with_session
def list_faces(session: Session, gallery: options.Gallery, subject: options.Subject) -> None:
    """List the enrolled faces of a person."""
    with session.connect() as client:
        found = list(client.all_faces(gallery, subject))
    session.say_list(
        ["face", "quality", "model", "enrolled (UTC)"],
        found,
        lambda one: [one.face_id, f"{one.quality.score:.0f}", one.model, f"{one.created_at:%Y-%m-%d %H:%M}"],
    )


@faces.command(
    epilog="Examples: likeness faces move staff ada 0b1c2d grace\n\n"
    "likeness faces move staff ada 0b1c2d,3e4f5a grace --create"
)
@with_session
def move(
    session: Session,
    gallery: options.Gallery,
    subject: options.Subject,
    face: Annotated[str, typer.Argument(metavar="FACE", help="The face's id, or several with commas between them.")],
    to: Annotated[str, typer.Argument(help="The id of the person who gets the faces.")],
    create: Annotated[bool, typer.Option("--create", help="Create that person if missing.")] = False,
) -> None:
    """Move enrolled faces to another person of the gallery, all or none."""
    with session.connect() as client:
        client.move_faces(gallery, subject, faces=face.split(","), to=to, create=create)
    session.say_done(face, f"moved to {to}")


@faces.command("delete", epilog="Example: likeness faces delete staff ada 0b1c2d --yes")
@with_session
def delete_face(
    session: Session, gallery: options.Gallery, subject: options.Subject, face: Face, yes: options.Yes = False
) -> None:
    """Delete one enrolled face."""
    if not yes:
        typer.confirm(f"Delete face {face} of {subject}?", abort=True)
    with session.connect() as client:
        client.delete_face(gallery, subject, face)
    session.say_done(face, "deleted")


@corrections.command("add", epilog="Example: likeness corrections add staff ada door.jpg")
@with_session
def add_correction(
    session: Session,
    gallery: options.Gallery,
    subject: options.Subject,
    photo: Annotated[Path, typer.Argument(help="The photo of somebody else who was taken for that person.")],
    face: Annotated[int | None, typer.Option(min=0, help="The face in the photo, as detect lists them.")] = None,
    confirm: Annotated[bool, typer.Option("--confirm", help="Even if it matches that person beyond doubt.")] = False,
) -> None:
    """Say that a photo does not show the person: those who look like it are no longer taken for that person."""
    photos.collect([photo])
    with session.connect() as client:
        made = client.add_correction(gallery, subject, photo, face=face, confirm=confirm)
    session.say(made, f"{made.id}: not {subject}, until {made.expires_at:%Y-%m-%d}")


@corrections.command("list", epilog="Example: likeness corrections list staff ada")
@with_session
def list_corrections(session: Session, gallery: options.Gallery, subject: options.Subject) -> None:
    """List the photos that don't show a person."""
    with session.connect() as client:
        found = client.corrections(gallery, subject).corrections
    session.say_list(
        ["correction", "model", "made (UTC)", "until"],
        found,
        lambda one: [one.id, one.model, f"{one.created_at:%Y-%m-%d %H:%M}", f"{one.expires_at:%Y-%m-%d}"],
    )


@corrections.command("delete", epilog="Example: likeness corrections delete staff ada 4c3a9a3e")
@with_session
def delete_correction(
    session: Session,
    gallery: options.Gallery,
    subject: options.Subject,
    correction: Annotated[str, typer.Argument(help="The correction's id, as `likeness corrections list` shows it.")],
) -> None:
    """Delete a correction: it no longer counts when people are identified."""
    with session.connect() as client:
        client.delete_correction(gallery, subject, correction)
    session.say_done(correction, "deleted")


def _text(person: answers.Subject) -> str:
    lines = [
        f"{person.id}: {person.name or 'no name'}, {person.face_count} faces",
        f"  created {person.created_at:%Y-%m-%d %H:%M} UTC, changed {person.updated_at:%Y-%m-%d %H:%M} UTC",
    ]
    if person.expires_at:
        lines.append(f"  erased on {person.expires_at:%Y-%m-%d %H:%M} UTC")
    if person.consent:
        lines.append(f"  consent of {person.consent.given_at:%Y-%m-%d}: {person.consent.note}")
    return "\n".join([*lines, *(f"  {name}: {value}" for name, value in person.metadata.items())])
