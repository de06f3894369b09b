"""people, faces, corrections: what a gallery holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.api import schemas
from app.cli import options, output, photos
from app.cli.connect import connect

people = typer.Typer(no_args_is_help=True, epilog="Example: likeness people list staff")
faces = typer.Typer(no_args_is_help=True, epilog="Example: likeness faces list staff ada")
corrections = typer.Typer(no_args_is_help=True, epilog="Example: likeness corrections add staff ada door.jpg")

Face = Annotated[str, typer.Argument(metavar="FACE", help="The face's id, as `likeness faces list` shows it.")]


@people.command("list", epilog="Examples: likeness people list staff\n\nlikeness people list staff --search lovelace")
def list_people(
    gallery: options.Gallery,
    search: Annotated[str | None, typer.Option(help="Only people whose id or name contains this text.")] = None,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """List the people of a gallery."""
    with connect(server, key) as client:
        found = list(client.all_subjects(gallery, search=search))
    if as_json:
        for person in found:
            output.say_json(person)
    else:
        rows = [[p.id, p.name or "", str(p.face_count), f"{p.updated_at:%Y-%m-%d %H:%M}"] for p in found]
        output.say_table(["person", "name", "faces", "changed (UTC)"], rows)


@people.command(epilog="Example: likeness people show staff ada")
def show(
    gallery: options.Gallery,
    subject: options.Subject,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one person: name, metadata, faces, expiry and consent."""
    with connect(server, key) as client:
        _say(client.subject(gallery, subject), as_json=as_json)


@people.command(epilog='Example: likeness people rename staff ada "Ada Lovelace"')
def rename(
    gallery: options.Gallery,
    subject: options.Subject,
    name: Annotated[str, typer.Argument(help="The new name.")],
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Change a person's name. The id stays as it is."""
    with connect(server, key) as client:
        _say(client.update_subject(gallery, subject, {"name": name}), as_json=as_json)


@people.command(epilog="Example: likeness people merge staff ada_l ada --yes")
def merge(
    gallery: options.Gallery,
    subject: options.Subject,
    into: Annotated[str, typer.Argument(help="The id of the person who gets all faces.")],
    yes: options.Yes = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Give all faces of a person to another one and delete the first, in one step.

    The other one keeps its name, metadata and consent, and takes those it lacks; the earlier expiry counts. `faces
    move --create` undoes it.
    """
    if into == subject:
        raise typer.BadParameter("A person can't be merged into itself.", param_hint="INTO")
    if not yes:
        typer.confirm(f"Give all faces of {subject} to {into}, and delete {subject}?", abort=True)
    with connect(server, key) as client:
        merged = client.merge_subject(gallery, subject, into)
    if as_json:
        output.say_json(merged)
    else:
        output.say_done(subject, f"merged into {into}, {len(merged.faces)} faces", as_json=False)


@people.command(epilog="Example: likeness people delete staff ada --yes")
def delete(
    gallery: options.Gallery,
    subject: options.Subject,
    yes: options.Yes = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete a person with all faces. `likeness erase` also gives a signed receipt."""
    if not yes:
        typer.confirm(f"Delete {subject} of gallery {gallery} with all faces?", abort=True)
    with connect(server, key) as client:
        client.delete_subject(gallery, subject)
    output.say_done(subject, "deleted", as_json=as_json)


@faces.command("list", epilog="Example: likeness faces list staff ada")
def list_faces(
    gallery: options.Gallery,
    subject: options.Subject,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """List the enrolled faces of a person."""
    with connect(server, key) as client:
        found = list(client.all_faces(gallery, subject))
    if as_json:
        for face in found:
            output.say_json(face)
    else:
        rows = [[f.face_id, f"{f.quality.score:.0f}", f.model, f"{f.created_at:%Y-%m-%d %H:%M}"] for f in found]
        output.say_table(["face", "quality", "model", "enrolled (UTC)"], rows)


@faces.command(
    epilog="Examples: likeness faces move staff ada 0b1c2d grace\n\n"
    "likeness faces move staff ada 0b1c2d,3e4f5a grace --create"
)
def move(
    gallery: options.Gallery,
    subject: options.Subject,
    face: Annotated[str, typer.Argument(metavar="FACE", help="The face's id, or several with commas between them.")],
    to: Annotated[str, typer.Argument(help="The id of the person who gets the faces.")],
    create: Annotated[bool, typer.Option("--create", help="Create that person if missing.")] = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Move enrolled faces to another person of the gallery, all or none."""
    with connect(server, key) as client:
        client.move_faces(gallery, subject, face.split(","), to, create=create)
    output.say_done(face, f"moved to {to}", as_json=as_json)


@faces.command("delete", epilog="Example: likeness faces delete staff ada 0b1c2d --yes")
def delete_face(
    gallery: options.Gallery,
    subject: options.Subject,
    face: Face,
    yes: options.Yes = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete one enrolled face."""
    if not yes:
        typer.confirm(f"Delete face {face} of {subject}?", abort=True)
    with connect(server, key) as client:
        client.delete_face(gallery, subject, face)
    output.say_done(face, "deleted", as_json=as_json)


@corrections.command("add", epilog="Example: likeness corrections add staff ada door.jpg")
def add_correction(
    gallery: options.Gallery,
    subject: options.Subject,
    photo: Annotated[Path, typer.Argument(help="The photo of somebody else who was taken for that person.")],
    face: Annotated[int | None, typer.Option(min=0, help="The face in the photo, as detect lists them.")] = None,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Say that a photo does not show the person: those who look like it are no longer taken for that person."""
    photos.collect([photo])
    with connect(server, key) as client:
        made = client.add_correction(gallery, subject, photo, face=face)
    if as_json:
        output.say_json(made)
    else:
        output.say_done(made.id, f"not {subject}, until {made.expires_at:%Y-%m-%d}", as_json=False)


@corrections.command("list", epilog="Example: likeness corrections list staff ada")
def list_corrections(
    gallery: options.Gallery,
    subject: options.Subject,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """List the photos that don't show a person."""
    with connect(server, key) as client:
        found = client.corrections(gallery, subject).corrections
    if as_json:
        for one in found:
            output.say_json(one)
    else:
        rows = [[c.id, c.model, f"{c.created_at:%Y-%m-%d %H:%M}", f"{c.expires_at:%Y-%m-%d}"] for c in found]
        output.say_table(["correction", "model", "made (UTC)", "until"], rows)


@corrections.command("delete", epilog="Example: likeness corrections delete staff ada 4c3a9a3e")
def delete_correction(
    gallery: options.Gallery,
    subject: options.Subject,
    correction: Annotated[str, typer.Argument(help="The correction's id, as `likeness corrections list` shows it.")],
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete a correction: it no longer counts when people are identified."""
    with connect(server, key) as client:
        client.delete_correction(gallery, subject, correction)
    output.say_done(correction, "deleted", as_json=as_json)


def _say(person: schemas.Subject, *, as_json: bool) -> None:
    if as_json:
        output.say_json(person)
        return
    output.say(f"{person.id}: {person.name or 'no name'}, {person.face_count} faces")
    output.say(f"  created {person.created_at:%Y-%m-%d %H:%M} UTC, changed {person.updated_at:%Y-%m-%d %H:%M} UTC")
    if person.expires_at:
        output.say(f"  erased on {person.expires_at:%Y-%m-%d %H:%M} UTC")
    if person.consent:
        output.say(f"  consent of {person.consent.given_at:%Y-%m-%d}: {person.consent.note}")
    for name, value in person.metadata.items():
        output.say(f"  {name}: {value}")
