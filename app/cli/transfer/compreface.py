"""import-compreface: the photos of a CompreFace database, enrolled here."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, Annotated

import typer
from likeness_client import Client, ClientError

from app.cli import options, output
from app.cli.connect import Data
from app.cli.output import Exit
from app.cli.recognition import ensure_gallery
from app.cli.session import Session, with_session
from app.cli.transfer.compreface_dump import Dump, StoredPhoto, open_dump
from app.errors import FileMissing

DONE = "enrolled"
commands = typer.Typer()


@commands.command(
    "import-compreface", epilog="Example: likeness import-compreface dump.sql.gz staff --create --report done.jsonl"
)
@with_session
def import_compreface(
    session: Session,
    dump: Annotated[Path, typer.Argument(help="CompreFace's database, as `pg_dump` writes it: plain SQL, or gzipped.")],
    gallery: options.Gallery,
    service: Annotated[str | None, typer.Option(help="CompreFace's service, if the dump has several.")] = None,
    quality: options.Quality = None,
    create: options.Create = False,
    report: Annotated[
        Path | None,
        typer.Option(help="File with a JSON line per photo. Photos that it lists as enrolled are skipped."),
    ] = None,
    jobs: options.Jobs = 2,
) -> None:
    """Enroll the photos of a CompreFace database. Its embeddings can't be used: other models made them."""
    found = open_dump(dump, service)
    done = _enrolled_before(report)
    counts: Counter[str] = Counter()
    with session.connect(Data.CREATED if create else Data.EXISTING) as client:
        if create:
            ensure_gallery(client, gallery)
        wanted = (photo for photo in found.read() if (photo.image_id, photo.subject) not in done)
        with (
            report.open("a") if report else nullcontext() as file,
            output.progress("import", found.photos - len(done)) as update,
        ):
            for photo, outcome in _enrolled(client, gallery, wanted, quality, jobs):
                update(advance=1)
                counts[outcome] += 1
                _report(photo, outcome, file)
    _say_counts(session, found, counts, len(done))
    raise typer.Exit(Exit.REFUSED if set(counts) - {DONE} else Exit.DONE)


def _enrolled(
    client: Client, gallery: str, wanted: Iterator[StoredPhoto], quality: str | None, jobs: int
) -> Iterator[tuple[StoredPhoto, str]]:
    """Yield each photo with `enrolled` or an error code; ``jobs`` photos are in memory at a time."""

    def send(photo: StoredPhoto) -> str:
        if photo.content is None:
            return "invalid_dump"
        try:
            client.enroll(gallery, photo.subject, [photo.content], quality=quality)
        except ClientError as error:
            if output.exit_code(error) != Exit.REFUSED:
                raise
            return error.code
        return DONE

    with ThreadPoolExecutor(jobs) as pool:
        while some := list(islice(wanted, jobs)):
            sent: list[Future[str]] = [pool.submit(send, photo) for photo in some]
            for photo, future in zip(some, sent, strict=True):
                yield photo, future.result()


def _report(photo: StoredPhoto, outcome: str, file: IO[str] | None) -> None:
    if outcome != DONE:
        sys.stderr.write(f"{photo.subject}: photo {photo.image_id} was refused ({outcome})\n")
    if file:
        line = {"image_id": photo.image_id, "subject": photo.subject, "outcome": outcome}
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()


def _say_counts(session: Session, found: Dump, counts: Counter[str], before: int) -> None:
    refused = {code: count for code, count in sorted(counts.items()) if code != DONE}
    alone = sorted(found.without_photo)
    if session.as_json:
        output.say_json(
            {
                "service": found.service,
                "enrolled": counts[DONE],
                "enrolled_before": before,
                "refused": refused,
                "subjects_without_photo": alone,
            }
        )
        return
    output.say(f"{counts[DONE]} photos enrolled, {sum(refused.values())} refused, {before} enrolled before")
    for code, count in refused.items():
        output.say(f"  {code}: {count}")
    if alone:
        output.say(f"{len(alone)} subjects have examples without a stored photo, which can't be enrolled:")
        for name in alone:
            output.say(f"  {name}")


def _enrolled_before(report: Path | None) -> set[tuple[str, str]]:
    if report is None or not report.exists():
        return set()
    done = set()
    try:
        for line in report.read_text().splitlines():
            row = json.loads(line)
            if row["outcome"] == DONE:
                done.add((str(row["image_id"]), str(row["subject"])))
    except (ValueError, KeyError, TypeError):
        raise FileMissing(f"{report}: not a report of an import") from None
    return done
