"""`likeness detect`, `verify`, `enroll`, `identify`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from likeness_client import ApiError, Client, answers
from pydantic import BaseModel

from app import choices
from app.cli import options, output, photos
from app.cli.connect import Data
from app.cli.options import CliSession, command
from app.cli.output import Exit, Failure
from app.errors import LikenessError

AnswerT = TypeVar("AnswerT", bound=BaseModel)
BATCH = 8
"""Photos per enrollment request, few enough for any sensible limit of a request's size."""
commands = typer.Typer()


@command(
    commands, epilog="Examples: likeness detect photo.jpg\n\nlikeness detect holiday/ --json | jq '.faces | length'"
)
def detect(session: CliSession, paths: options.Paths, jobs: options.Jobs = 2) -> None:
    """Find the faces in photos: position, detection score and quality of each."""
    files, missing = photos.collect(paths)
    code = _say_all(session, session.client(Data.UNUSED).detect, files, "detect", jobs, _detect_lines)
    raise typer.Exit(Exit.REFUSED if missing else code)


@command(
    commands,
    epilog="Examples: likeness verify passport.jpg camera.jpg\n\nlikeness verify a.jpg b.jpg --fmr 1e-5 --json",
)
def verify(
    session: CliSession,
    photo1: Annotated[Path, typer.Argument(help="A photo; with --track also a folder of photos of one person.")],
    photo2: Annotated[Path, typer.Argument(help="Another one.")],
    fmr: options.Fmr = None,
    model: options.Embedder = None,
    face1: Annotated[int | None, typer.Option(min=0, help="The face of PHOTO1, as detect lists them from 0.")] = None,
    face2: Annotated[int | None, typer.Option(min=0, help="The face of PHOTO2.")] = None,
    population: options.Population = None,
    liveness: options.Liveness = None,
    liveness_of: Annotated[
        choices.LivenessOf | None, typer.Option(help="Which photos must be live: both by default.")
    ] = None,
    quality: options.LeastQuality = None,
    track: Annotated[bool, typer.Option("--track", help="Decide once for all photos of a folder.")] = False,
) -> None:
    """Compare two photos: do they show the same person? Exit code 0: yes, 1: no, or not for certain."""
    first, second = (photos.collect([photo])[0] for photo in (photo1, photo2))
    answer = session.client(Data.UNUSED).verify(
        first if track else photo1,
        second if track else photo2,
        track=track or None,
        fmr=fmr,
        model=model,
        population=population,
        face1=face1,
        face2=face2,
        liveness=liveness,
        liveness_of=liveness_of,
        quality=quality,
    )
    for warning in answer.warnings or ():
        output.warn(warning.message)
    word = {"known": "same person", "uncertain": "perhaps the same person"}.get(answer.decision, "not the same person")
    if answer.reason:
        word += " (too poor a photo)"
    faces = ((photo1, answer.face1), (photo2, answer.face2))
    session.say(
        answer,
        f"{word}: score {answer.score:.4f}, threshold {answer.threshold:.4f} at FMR {answer.fmr:g}",
        *(f"{path}: {_liveness_words(face.liveness)}" for path, face in faces if face.liveness),
    )
    raise typer.Exit(Exit.DONE if answer.match else Exit.NO)


@command(
    commands,
    epilog="Examples: likeness enroll staff ada ada1.jpg ada2.jpg --create\n\nlikeness enroll staff --people people/",
)
def enroll(
    session: CliSession,
    gallery: options.Gallery,
    subject: Annotated[str | None, typer.Argument(help="The person's id; a new person is created.")] = None,
    paths: Annotated[list[Path] | None, typer.Argument(help="Photos of that person, or folders of them.")] = None,
    people: Annotated[
        Path | None, typer.Option(help="In place of SUBJECT and PATHS: a folder with one folder per person.")
    ] = None,
    quality: options.Quality = None,
    liveness: options.Liveness = None,
    expires: Annotated[datetime | None, typer.Option(help="When these people are erased, in UTC.")] = None,
    consent: Annotated[str | None, typer.Option(help="A note on their consent.")] = None,
    face: Annotated[int | None, typer.Option(min=0, help="The face of a single photo, as detect lists them.")] = None,
    on_conflict: options.OnConflict = None,
    track: Annotated[
        bool, typer.Option("--track", help="Decide once for all photos of a person whether they show somebody else.")
    ] = False,
    create: options.Create = False,
    jobs: options.Jobs = 2,
) -> None:
    """Add people to a gallery: photos of one person, or a folder with one folder per person."""
    work, missing = _enrollments(subject, paths, people)
    client = client_for(session, gallery, create=create)

    def send(item: tuple[str, list[Path]]) -> answers.EnrollAnswer | Failure:
        return attempt(
            lambda: client.enroll(
                gallery,
                *item,
                quality=quality,
                liveness=liveness,
                expires_at=options.utc(expires),
                consent=consent,
                face=face,
                on_conflict=on_conflict,
                track=track or None,
            )
        )

    code = Exit.REFUSED if missing else Exit.DONE
    for (person, files), result in photos.in_parallel(send, work, "enroll", jobs=jobs):
        code = max(code, _say_enrolled(session, person, files, result))
    raise typer.Exit(code)


@command(
    commands, epilog="Examples: likeness identify staff door.jpg\n\nlikeness identify staff camera/ --fpir 0.001 --json"
)
def identify(
    session: CliSession,
    gallery: options.Gallery,
    paths: options.Paths,
    limit: Annotated[int | None, typer.Option(min=1, max=100, help="Candidates per face.")] = None,
    fmr: options.Fmr = None,
    fpir: Annotated[
        float | None, typer.Option(help="False positive identification rate that sets the threshold.")
    ] = None,
    population: options.Population = None,
    liveness: options.Liveness = None,
    quality: options.LeastQuality = None,
    track: Annotated[
        bool, typer.Option("--track", help="All photos show one person: decide once for them all.")
    ] = False,
    jobs: options.Jobs = 2,
) -> None:
    """Find the people of a gallery in photos. Exit code 1: nobody was identified."""
    files, missing = photos.collect(paths)
    client = session.client()
    decisions: set[str] = set()
    limited: answers.IdentifyAnswer | None = None
    warned: set[str] = set()

    def ask(path: Path) -> answers.IdentifyAnswer:
        nonlocal limited
        answer = client.identify(
            gallery,
            files if track else path,
            track=track or None,
            limit=limit,
            fmr=fmr,
            fpir=fpir,
            population=population,
            liveness=liveness,
            quality=quality,
        )
        for warning in answer.warnings or ():
            if warning.message not in warned:
                warned.add(warning.message)
                output.warn(warning.message)
        decisions.update(face.decision for face in answer.faces)
        limited = answer if answer.limited else limited
        return answer

    code = _say_all(session, ask, files[:1] if track else files, "identify", jobs, _identify_lines)
    if limited:
        output.warn(
            f"The default rate needs a rate that was not measured: expect FPIR {limited.fpir:.2g} among "
            f"{limited.subjects:,} subjects, at FMR {limited.fmr:g}."
        )
    if missing or code:
        raise typer.Exit(Exit.REFUSED)
    raise typer.Exit(Exit.DONE if "known" in decisions else Exit.NO)


def attempt(work: Callable[[], AnswerT]) -> AnswerT | Failure:
    """Return an error if a photo is at fault, so that the other photos are processed; raise any other error."""
    try:
        return work()
    except ApiError as error:
        if output.exit_code(error) is Exit.REFUSED:
            return error
        raise


def _say_all(
    session: CliSession,
    ask: Callable[[Path], AnswerT],
    files: Sequence[Path],
    label: str,
    jobs: int,
    lines: Callable[[Path, AnswerT], Iterator[str]],
) -> Exit:
    """Print the answer to each photo, or why it was rejected."""
    code = Exit.DONE
    for path, result in photos.in_parallel(lambda path: attempt(lambda: ask(path)), files, label, jobs=jobs):
        if isinstance(result, Failure):
            code = Exit.REFUSED
            output.complain(result, path)
            if session.as_json:
                output.say_json({"path": str(path), "error": output.problem(result)})
        else:
            answer = {"path": str(path)} | result.model_dump(mode="json", exclude_none=True)
            session.say(answer, *lines(path, result))
    return code


def _detect_lines(path: Path, answer: answers.DetectAnswer) -> Iterator[str]:
    if not answer.faces:
        yield f"{path}: no face"
    for face in answer.faces:
        box = face.box
        reasons = f" ({', '.join(face.quality.reasons)})" if face.quality.reasons else ""
        yield (
            f"{path}: face at {box.x:.0f},{box.y:.0f} {box.width:.0f}x{box.height:.0f}, "
            f"score {face.score:.2f}, quality {face.quality.score:.0f}{reasons}"
        )


def _identify_lines(path: Path, answer: answers.IdentifyAnswer) -> Iterator[str]:
    if not answer.faces:
        yield f"{path}: no face"
    for face in answer.faces:
        place = f"face at {face.box.x:.0f},{face.box.y:.0f}"
        live = f", {_liveness_words(face.liveness)}" if face.liveness else ""
        if face.displaced_by is not None:
            other = answer.faces[face.displaced_by].box
            live += f", nearest to the person of the face at {other.x:.0f},{other.y:.0f}"
        if not face.candidates:
            yield f"{path}: {place}: {face.decision}{live}"
            continue
        best = face.candidates[0]
        name = f" ({best.name})" if best.name else ""
        nearest = "" if face.decision == "known" else "nearest "
        decision = f"{face.decision} (too poor a photo)" if face.reason else face.decision
        yield f"{path}: {place}: {decision}: {nearest}{best.subject}{name}, score {best.score:.4f}{live}"


def _liveness_words(liveness: answers.Liveness) -> str:
    reason = f" ({liveness.reason.replace('_', ' ')})" if liveness.reason else ""
    return f"liveness: {liveness.live.replace('_', ' ')}{reason}, score {liveness.live_score:.3f}"


def _enrollments(
    subject: str | None, paths: list[Path] | None, people: Path | None
) -> tuple[list[tuple[str, list[Path]]], int]:
    """Return subject and photos of each request, and how many of ``paths`` are missing."""
    if (people is None) == (subject is None) or (subject is not None and not paths):
        raise typer.BadParameter("after the gallery give the person's id and photos, or --people FOLDER")
    missing = 0
    if people is not None:
        everyone = photos.people(people)
    else:
        files, missing = photos.collect(paths or [])
        everyone = {subject or "": files}
    work = [
        (person, files[start : start + BATCH])
        for person, files in everyone.items()
        for start in range(0, len(files), BATCH)
    ]
    return work, missing


def client_for(session: CliSession, gallery: str, *, create: bool) -> Client:
    """Connect for work on a gallery; with ``create`` it is created unless it exists."""
    client = session.client(Data.CREATED if create else Data.EXISTING)
    if create:
        ensure_gallery(client, gallery)
    return client


def ensure_gallery(client: Client, gallery: str, embedder: str | None = None) -> bool:
    """Create a gallery unless it exists, and return whether it was created."""
    try:
        client.create_gallery(gallery, embedder=embedder)
    except ApiError as error:
        if error.code != "gallery_exists":
            raise
        return False
    return True


def _say_enrolled(session: CliSession, person: str, files: list[Path], result: answers.EnrollAnswer | Failure) -> Exit:
    """Print the result of a request. Raises the refusal if it is not about single photos."""
    if isinstance(result, Failure):
        answer: dict[str, object] = {"error": output.problem(result)}
    else:
        answer = result.model_dump(mode="json", exclude_none=True)
    if session.as_json:  # even where `_rejected` raises
        output.say_json({"subject": person, "paths": [str(path) for path in files]} | answer)
    enrolled, rejected = ((), _rejected(result)) if isinstance(result, Failure) else (result.enrolled, result.rejected)
    if not session.as_json:
        output.say(f"{person}: {len(files) - len(rejected)} enrolled, {len(rejected)} refused")
    for row in rejected:
        reasons = [*row.reasons, *_findings(row)]
        said = f"{row.message}: {', '.join(reasons)}" if reasons else row.message
        output.complain(LikenessError(said, code=row.code), files[row.index])
    for face in () if session.as_json else enrolled:
        unlike = [f"looks like none of {person}'s other faces"] if face.unlike else []
        for line in (*_findings(face), *unlike):
            output.warn(f"{files[face.index]}: {line}")
    return Exit.REFUSED if rejected else Exit.DONE


def _findings(face: answers.EnrolledFace | answers.RejectedImage) -> Iterator[str]:
    if face.conflict is not None:
        yield f"matches {_whom(face.conflict)}"
    if face.duplicate is not None:
        yield f"is enrolled already, as a face of {_whom(face.duplicate)}"


def _whom(resemblance: answers.Resemblance) -> str:
    if resemblance.subject is None or resemblance.score is None:
        return "somebody"
    return f"{resemblance.subject}{f' ({resemblance.name})' if resemblance.name else ''}, score {resemblance.score:.4f}"


def _rejected(refusal: Failure) -> list[answers.RejectedImage]:
    """Return the rejected photos of a request that enrolled none. Raises the refusal if it is about something else."""
    listed = refusal.details.get("rejected")
    if not isinstance(listed, list):
        raise refusal
    return [answers.RejectedImage.model_validate(row) for row in listed]
