"""people, faces, corrections: what a gallery holds; erase, receipts: what it must no longer hold."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from likeness_client import answers

from app.cli import options, output, photos
from app.cli.connect import connect
from app.cli.options import Session, command, confirm
from app.cli.output import Exit
from app.errors import FileMissing, InvalidInput, Unusable

people = typer.Typer(no_args_is_help=True, epilog="Example: likeness people list staff")
faces = typer.Typer(no_args_is_help=True, epilog="Example: likeness faces list staff ada")
corrections = typer.Typer(no_args_is_help=True, epilog="Example: likeness corrections add staff ada door.jpg")

LEANS_MOST = 20.0
"""Degrees by which a face in an enrolled crop may lean. Of 131 crops that were aligned by made-up landmarks 129 lean by
more, and one of 435 others (LFW, turned in steps)."""
LOOKS = 2
"""Crops that are looked at at the same time."""

Face = Annotated[str, typer.Argument(metavar="FACE", help="The face's id, as `likeness faces list` shows it.")]


@command(people, "list", epilog="Examples: likeness people list staff\n\nlikeness people list staff --search lovelace")
def list_people(
    session: Session,
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
def show(session: Session, gallery: options.Gallery, subject: options.Subject) -> None:
    """Show one person: name, metadata, faces, expiry and consent."""
    person = session.client().subject(gallery, subject)
    session.say(person, *_lines(person))


@command(people, epilog='Example: likeness people rename staff ada "Ada Lovelace"')
def rename(
    session: Session,
    gallery: options.Gallery,
    subject: options.Subject,
    name: Annotated[str, typer.Argument(help="The new name.")],
) -> None:
    """Change a person's name. The id stays as it is."""
    person = session.client().update_subject(gallery, subject, {"name": name})
    session.say(person, *_lines(person))


@command(people, epilog="Example: likeness people merge staff ada_l ada --yes")
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
    confirm(f"Give all faces of {subject} to {into}, and delete {subject}?", yes)
    merged = session.client().merge_subject(gallery, subject, into)
    session.say(merged, f"{subject}: merged into {into}, {len(merged.faces)} faces")


@command(people, epilog="Example: likeness people delete staff ada --yes")
def delete(session: Session, gallery: options.Gallery, subject: options.Subject, yes: options.Yes = False) -> None:
    """Delete a person with all faces. `likeness erase` also gives a signed receipt."""
    confirm(f"Delete {subject} of gallery {gallery} with all faces?", yes)
    session.client().delete_subject(gallery, subject)
    session.say_done(subject, "deleted")


@command(faces, "list", epilog="Example: likeness faces list staff ada")
def list_faces(session: Session, gallery: options.Gallery, subject: options.Subject) -> None:
    """List the enrolled faces of a person."""
    session.say_list(
        ["face", "quality", "model", "enrolled (UTC)"],
        list(session.client().all_faces(gallery, subject)),
        lambda row: [row.face_id, f"{row.quality.score:.0f}", row.model, f"{row.created_at:%Y-%m-%d %H:%M}"],
    )


@command(
    faces,
    epilog="Examples: likeness faces move staff ada 0b1c2d grace\n\n"
    "likeness faces move staff ada 0b1c2d,3e4f5a grace --create",
)
def move(
    session: Session,
    gallery: options.Gallery,
    subject: options.Subject,
    face: Annotated[str, typer.Argument(metavar="FACE", help="The face's id, or several with commas between them.")],
    to: Annotated[str, typer.Argument(help="The id of the person who gets the faces.")],
    create: Annotated[bool, typer.Option("--create", help="Create that person if missing.")] = False,
) -> None:
    """Move enrolled faces to another person of the gallery, all or none."""
    session.client().move_faces(gallery, subject, faces=face.split(","), to=to, create=create)
    session.say_done(face, f"moved to {to}")


@command(faces, "delete", epilog="Example: likeness faces delete staff ada 0b1c2d --yes")
def delete_face(
    session: Session, gallery: options.Gallery, subject: options.Subject, face: Face, yes: options.Yes = False
) -> None:
    """Delete one enrolled face."""
    confirm(f"Delete face {face} of {subject}?", yes)
    session.client().delete_face(gallery, subject, face)
    session.say_done(face, "deleted")


@command(faces, epilog="Example: likeness faces check staff")
def check(session: Session, gallery: options.Gallery) -> None:
    """List enrolled faces whose kept crops show no upright face. Exit code 1: there are some.

    Versions before 0.2.0 enrolled turned faces by landmarks that were made up; strangers turned alike match them.
    """
    client = session.client()
    enrolled = [
        (person.id, face) for person in client.all_subjects(gallery) for face in client.all_faces(gallery, person.id)
    ]
    kept = [(person, face.face_id) for person, face in enrolled if face.has_crop]

    def is_upright(face: tuple[str, str]) -> bool:
        seen = client.detect(client.face_crop(gallery, *face)).faces
        return any(each.landmarks is not None and _leaning(each.landmarks) <= LEANS_MOST for each in seen)

    wrong = [face for face, upright in photos.each(is_upright, kept, "check", jobs=LOOKS) if not upright]
    for person, face_id in wrong:
        session.say(
            {"subject": person, "face_id": face_id},
            f"{person}: no upright face in the crop of {face_id}: enroll another photo, and delete this face",
        )
    if not session.as_json:
        without = len(enrolled) - len(kept)
        output.say(f"{gallery}: {len(wrong)} of {len(kept)} crops show no upright face; {without} faces have no crop")
    raise typer.Exit(Exit.NO if wrong else Exit.DONE)


def _leaning(landmarks: Sequence[tuple[float, float]]) -> float:
    """Return by how many degrees a face leans to either side, 0-180."""
    eye, other_eye, _, mouth, other_mouth = landmarks
    across, down = ((mouth[i] + other_mouth[i] - eye[i] - other_eye[i]) for i in (0, 1))
    return abs(math.degrees(math.atan2(across, down)))


@command(corrections, "add", epilog="Example: likeness corrections add staff ada door.jpg")
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
    made = session.client().add_correction(gallery, subject, photo, face=face, confirm=confirm)
    session.say(made, f"{made.id}: not {subject}, until {made.expires_at:%Y-%m-%d}")


@command(corrections, "list", epilog="Example: likeness corrections list staff ada")
def list_corrections(session: Session, gallery: options.Gallery, subject: options.Subject) -> None:
    """List the photos that don't show a person."""
    session.say_list(
        ["correction", "model", "made (UTC)", "until"],
        session.client().corrections(gallery, subject).corrections,
        lambda row: [row.id, row.model, f"{row.created_at:%Y-%m-%d %H:%M}", f"{row.expires_at:%Y-%m-%d}"],
    )


@command(corrections, "delete", epilog="Example: likeness corrections delete staff ada 4c3a9a3e")
def delete_correction(
    session: Session,
    gallery: options.Gallery,
    subject: options.Subject,
    correction: Annotated[str, typer.Argument(help="The correction's id, as `likeness corrections list` shows it.")],
) -> None:
    """Delete a correction: it no longer counts when people are identified."""
    session.client().delete_correction(gallery, subject, correction)
    session.say_done(correction, "deleted")


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


commands = typer.Typer()
receipts = typer.Typer(no_args_is_help=True, epilog="Example: likeness receipts list")

KeyFile = Annotated[
    Path | None,
    typer.Option("--server-key", help="The server's public key: the answer of `GET /v1/server-key`, or PEM."),
]


@command(commands, epilog="Example: likeness erase staff ada --save ada.receipt.json --yes")
def erase(
    session: Session,
    gallery: options.Gallery,
    subject: options.Subject,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="PostgreSQL: rewrite the tables, which are locked meanwhile.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the receipt to this file.")] = None,
    yes: options.Yes = False,
) -> None:
    """Erase a person for good, and get a signed receipt. Exit code 1: the server still has to clear some copies."""
    confirm(f"Erase {subject} of gallery {gallery} for good?", yes)
    client = session.client()
    output.check_writable(save)
    receipt = client.erase_subject(gallery, subject, rewrite=rewrite)
    if session.as_json:
        output.say(as_signed(receipt))
    else:
        counts = receipt.erased
        output.say(f"{subject}: erased at {receipt.erased_at}, {counts.faces} faces and {counts.crops} crops")
        output.say(f"receipt {receipt.id}: tables {receipt.cleared.tables}, log {receipt.cleared.write_ahead_log}")
        for place in receipt.not_reached:
            output.say(f"  not reached: {place}")
    if save is not None:  # last: the receipt is shown even if the disk is full by now
        save.write_text(as_signed(receipt) + "\n", encoding="utf-8")
    raise typer.Exit(output.Exit.DONE if receipt.complete else output.Exit.NO)


@command(receipts, "list", epilog="Example: likeness receipts list")
def list_receipts(session: Session) -> None:
    """List the receipts, oldest first."""
    receipts = list(session.client().all_receipts())
    if session.as_json:
        for receipt in receipts:
            output.say(as_signed(receipt))
    else:
        rows = [[row.id, row.gallery, row.erased_at, row.reason, row.erased.faces] for row in receipts]
        output.say_table(["receipt", "gallery", "erased at", "reason", "faces"], rows)


@receipts.command("show", epilog="Example: likeness receipts show 3f2a > receipt.json")
def show_receipt(
    receipt: Annotated[str, typer.Argument(help="The receipt's id.")],
    server: options.Server = None,
    key: options.Key = None,
) -> None:
    """Print one receipt, as JSON."""
    with connect(server, key) as client:
        output.say(as_signed(client.receipt(receipt)))


@receipts.command(epilog="Example: likeness receipts verify receipt.json --server-key server-key.json --subject ada")
def verify(
    file: Annotated[Path, typer.Argument(help="The receipt, a JSON file.")],
    server_key: KeyFile = None,
    subject: Annotated[str | None, typer.Option(help="Check that it is about this person, too.")] = None,
) -> None:
    """Check the signature of a receipt. No server is needed. Exit code 1: the receipt is not in order."""
    from app.gallery.erasure import check_receipt, is_about  # noqa: PLC0415 - slow to import

    document = _json(file)
    try:
        known = check_receipt(document, read_public_key(server_key) if server_key else None)
    except Unusable as error:
        output.say(f"NOT in order: {error.message}")
        raise typer.Exit(output.Exit.NO) from None
    if subject is not None and not is_about(document, str(document["gallery"]), subject):
        output.say(f"NOT about {subject}")
        raise typer.Exit(output.Exit.NO)
    whose = "the server's key" if known else f"key {document['signature']['key_id']}; compare it with the server's"
    output.say(f"in order: erased at {document['erased_at']}, signed with {whose}")


def as_signed(receipt: answers.Receipt) -> str:
    """Return the receipt as JSON with what the server sent and nothing more: its signature is over exactly that."""
    return receipt.model_dump_json(exclude_unset=True)


def _json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileMissing(f"{file}: {error.strerror}") from None
    except ValueError:
        raise InvalidInput(f"{file}: not JSON", code="invalid_json") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"{file}: not a JSON object", code="invalid_json")
    return document


def read_public_key(file: Path) -> bytes:
    """Return the public key in a file: the answer of `GET /v1/server-key`, or PEM."""
    from app.db import signing  # noqa: PLC0415 - slow to import

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise FileMissing(f"{file}: cannot be read") from None
    if text.lstrip().startswith("-----BEGIN"):
        return signing.read_pem(text)
    return signing.decode(str(_json(file).get("public_key")))
