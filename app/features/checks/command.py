"""`likeness galleries check`, `faces check`: check what is enrolled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from app.cli import options, output, photos
from app.cli.options import CliSession, command, gallery_ids
from app.cli.output import Exit

AnyGallery: TypeAlias = Annotated[
    str | None, typer.Argument(help="The gallery's id. Default: all galleries.", autocompletion=gallery_ids)
]

galleries, faces = typer.Typer(), typer.Typer()

LEANS_MOST = 20.0
"""Maximum degrees by which a face in an enrolled crop may lean. 129 of 131 crops that were aligned by wrong landmarks
lean by more, and one of 435 others (photos of LFW, turned in steps)."""
LOOKS = 2
"""Number of crops examined at the same time."""


@command(galleries, "check", epilog="Example: likeness galleries check staff")
def check_galleries(session: CliSession, gallery: AnyGallery = None) -> None:
    """Check that database and index contain the same faces. Exit code 1: they don't."""
    client = session.client()
    names = [gallery] if gallery is not None else [row.id for row in client.all_galleries()]
    reports = list(photos.in_parallel(client.check_gallery, names, "check", jobs=1))
    for name, report in reports:
        word = "in order" if report.ok else "NOT in order"
        head = f"{name}: {word}: {report.faces} faces in the database, {report.indexed} in the index"
        answer = {"gallery": name} | report.model_dump(mode="json")
        session.say(answer, head, *(f"  {problem}" for problem in report.problems))
    raise typer.Exit(Exit.DONE if all(report.ok for _, report in reports) else Exit.NO)


@command(faces, "check", epilog="Example: likeness faces check staff")
def check_faces(session: CliSession, gallery: options.Gallery) -> None:
    """List enrolled faces whose stored crops show no upright face. Exit code 1: there are some.

    Versions before 0.2.0 enrolled turned faces with wrong landmarks: strangers who are turned the same way match them.
    """
    client = session.client()
    enrolled = [
        (person.id, face) for person in client.all_subjects(gallery) for face in client.all_faces(gallery, person.id)
    ]
    kept = [(person, face.face_id) for person, face in enrolled if face.has_crop]

    def is_upright(face: tuple[str, str]) -> bool:
        seen = client.detect(client.face_crop(gallery, *face)).faces
        return any(found.landmarks is not None and _leaning(found.landmarks) <= LEANS_MOST for found in seen)

    wrong = [face for face, upright in photos.in_parallel(is_upright, kept, "check", jobs=LOOKS) if not upright]
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
    """Return by how many degrees a face leans to the left or right, 0-180."""
    eye, other_eye, _, mouth, other_mouth = landmarks
    across, down = ((mouth[i] + other_mouth[i] - eye[i] - other_eye[i]) for i in (0, 1))
    return abs(math.degrees(math.atan2(across, down)))
