"""`likeness import-compreface`: enroll the photos of a CompreFace database.

It reads what `pg_dump` writes by default: plain SQL with COPY blocks, also gzipped, of CompreFace 0.6 and later (the
tables `model`, `subject`, `embedding` and `img` of its migrations up to 0.2.7). A dump is read twice, line by line,
because the photos come before some of the rows that say whose they are. Only ids, names and the photos being sent are
in memory.
"""

from __future__ import annotations

import binascii
import gzip
import io
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Annotated

import typer
from likeness_client import Client, ClientError

from app.cli import options, output
from app.cli.options import CliSession, command
from app.cli.output import Exit
from app.cli.recognition import client_for
from app.errors import FileMissing, InvalidInput

DONE = "enrolled"
commands = typer.Typer()


@command(
    commands,
    "import-compreface",
    epilog="Example: likeness import-compreface dump.sql.gz staff --create --report done.jsonl",
)
def import_compreface(
    session: CliSession,
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
    """Enroll the photos of a CompreFace database. Its embeddings can't be used, since other models made them."""
    dumped = open_dump(dump, service)
    done = _enrolled_before(report)
    counts: Counter[str] = Counter()
    client = client_for(session, gallery, create=create)
    wanted = (photo for photo in dumped.read() if (photo.image_id, photo.subject) not in done)
    with (
        report.open("a") if report else nullcontext() as file,
        output.progress("import", dumped.photos - len(done)) as update,
    ):
        for photo, outcome in _enrolled(client, gallery, wanted, quality, jobs):
            update(advance=1)
            counts[outcome] += 1
            if outcome != DONE:
                sys.stderr.write(f"{photo.subject}: photo {photo.image_id} was refused ({outcome})\n")
            if file:
                line = {"image_id": photo.image_id, "subject": photo.subject, "outcome": outcome}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
    refused = {code: count for code, count in sorted(counts.items()) if code != DONE}
    alone = sorted(dumped.without_photo)
    summary = {
        "service": dumped.service,
        "enrolled": counts[DONE],
        "enrolled_before": len(done),
        "refused": refused,
        "subjects_without_photo": alone,
    }
    session.say(
        summary,
        f"{counts[DONE]} photos enrolled, {sum(refused.values())} refused, {len(done)} enrolled before",
        *(f"  {code}: {count}" for code, count in refused.items()),
        *([f"{len(alone)} subjects have examples without a stored photo, which can't be enrolled:"] if alone else []),
        *(f"  {name}" for name in alone),
    )
    raise typer.Exit(Exit.REFUSED if refused else Exit.DONE)


def _enrolled(
    client: Client, gallery: str, wanted: Iterator[StoredPhoto], quality: str | None, jobs: int
) -> Iterator[tuple[StoredPhoto, str]]:
    """Send the photos, ``jobs`` at a time; yield each with its outcome: `enrolled` or an error code."""

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
        while batch := list(islice(wanted, jobs)):
            yield from zip(batch, pool.map(send, batch), strict=True)


def _enrolled_before(report: Path | None) -> set[tuple[str, str]]:
    if report is None or not report.exists():
        return set()
    try:
        rows = [json.loads(line) for line in report.read_text().splitlines()]
        return {(str(row["image_id"]), str(row["subject"])) for row in rows if row["outcome"] == DONE}
    except (ValueError, KeyError, TypeError):
        raise FileMissing(f"{report}: not a report of an import") from None


MAX_LINE = 256 * 1024 * 1024
"""Maximum bytes of a row. CompreFace accepts photos of 5 MB, which take 10 MB as hexadecimal digits."""
TABLES = ("model", "subject", "embedding", "img")
_COPY = re.compile(rb'COPY (?:"?public"?\.)?"?(\w+)"? \(([^)]*)\) FROM stdin;\r?\n')
_END = (b"\\.\n", b"\\.\r\n", b"\\.")
_GZIP = b"\x1f\x8b"
_CUSTOM = b"PGDMP"
_NULL = b"\\N"
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


@dataclass(frozen=True, slots=True)
class StoredPhoto:
    """A photo and its subject's name; ``content`` is None if the row is damaged."""

    image_id: str
    subject: str
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Dump:
    """The contents of a dump about one service, except the photos, which `read` yields."""

    path: Path
    service: str
    subjects: Mapping[str, str]
    """Subjects' names by id."""
    owners: Mapping[str, tuple[str, ...]]
    """The ids of the subjects of each photo, by the photo's id; several only if the database was edited by hand."""
    without_photo: Mapping[str, int]
    """Number of examples without a stored photo, by the subject's name. Only subjects that have some are included, and
    those without any example, with 0."""

    @property
    def photos(self) -> int:
        return sum(len(subjects) for subjects in self.owners.values())

    def read(self) -> Iterator[StoredPhoto]:
        """Yield the photos in the dump's order. Raises InvalidInput (``invalid_dump``)."""
        for _, row in _rows(self.path, ("img",)):
            image_id, content = row.get("id") or "", row.get("content")
            for subject in self.owners.get(image_id, ()):
                yield StoredPhoto(image_id, self.subjects[subject], _bytea(content))


def open_dump(path: Path, service: str | None = None) -> Dump:
    """Read a dump except its photos. ``service`` names a service of CompreFace, and is required if there are several.

    Raises InvalidInput: ``invalid_dump``, ``service_due`` (``details.services`` names them), ``file_not_found``.
    """
    rows: dict[str, list[Mapping[str, str | None]]] = {table: [] for table in TABLES}
    seen: set[str] = set()
    for table, row in _rows(path, ("model", "subject", "embedding"), seen):
        rows[table].append(row)
    if missing := [table for table in ("subject", "embedding", "img") if table not in seen]:
        message = (
            f"{path}: no COPY of the table {missing[0]}: is this `pg_dump`'s plain format, of CompreFace 0.6 or later?"
        )
        raise InvalidInput(message, code="invalid_dump")
    names = {row.get("api_key"): row.get("name") or "" for row in rows["model"]}
    keys = [row.get("api_key") for row in rows["subject"]]
    chosen = _choose(path, {key: names.get(key, "") for key in keys}, service)
    subjects = {
        _due(path, row, "id"): _due(path, row, "subject_name")
        for row in rows["subject"]
        if row.get("api_key") == chosen
    }
    owners: dict[str, tuple[str, ...]] = {}
    without: Counter[str] = Counter()
    has_any = set()
    for row in rows["embedding"]:
        subject, image = row.get("subject_id"), row.get("img_id")
        if subject not in subjects:
            continue
        has_any.add(subject)
        if image is None:
            without[subject] += 1
        elif subject not in owners.get(image, ()):  # a photo embedded by several models counts once
            owners[image] = (*owners.get(image, ()), subject)
    unseen = {name: without[key] for key, name in subjects.items() if without[key] or key not in has_any}
    return Dump(path, names.get(chosen, ""), subjects, owners, unseen)


def _choose(path: Path, services: Mapping[str | None, str], wanted: str | None) -> str | None:
    """Return the API key of the wanted service, or of the only service. Raises InvalidInput ``invalid_dump``,
    ``service_due``."""
    if not services:
        raise InvalidInput(f"{path}: it contains no subjects", code="invalid_dump")
    fitting = [key for key, name in services.items() if wanted in {None, name}]
    if len(fitting) == 1:
        return fitting[0]
    listed = sorted(services.values())
    message = f"{path} has subjects of {len(services)} services: name one of {', '.join(map(repr, listed))}"
    raise InvalidInput(message, code="service_due", services=listed)


def _due(path: Path, row: Mapping[str, str | None], column: str) -> str:
    value = row.get(column)
    if value is None:
        raise InvalidInput(f"{path}: a subject has no {column}", code="invalid_dump")
    return value


def _bytea(text: str | None) -> bytes | None:
    """Decode PostgreSQL's hexadecimal form of bytes; return None for any other text."""
    if text is None or not text.startswith("\\x"):
        return None
    try:
        return binascii.unhexlify(text[2:])
    except (binascii.Error, ValueError):
        return None


def _rows(
    path: Path, tables: Sequence[str], seen: set[str] | None = None
) -> Iterator[tuple[str, Mapping[str, str | None]]]:
    """Yield the rows of these tables, each after its table's name; add the name of every table in the dump to
    ``seen``."""
    with _opened(path) as file:
        lines = _lines(path, file)
        for line in lines:
            if not (head := _COPY.fullmatch(line)):
                continue
            table = head[1].decode("ascii", "replace")
            if seen is not None:
                seen.add(table)
            columns = [column.strip().strip(b'"').decode("utf-8", "replace") for column in head[2].split(b",")]
            for row in lines:
                if row in _END:
                    break
                if table in tables:
                    yield table, _fields(path, row, columns)
            else:
                raise InvalidInput(f"{path}: the dump is cut short", code="invalid_dump")


def _fields(path: Path, row: bytes, columns: Sequence[str]) -> Mapping[str, str | None]:
    fields = row.rstrip(b"\r\n").split(b"\t")
    if len(fields) != len(columns):
        raise InvalidInput(f"{path}: a row has {len(fields)} fields instead of {len(columns)}", code="invalid_dump")
    try:
        values = [None if field == _NULL else _ESCAPE.sub(_meant, field).decode() for field in fields]
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}: the dump is not in UTF-8", code="invalid_dump") from None
    return dict(zip(columns, values, strict=True))


def _meant(escape: re.Match[bytes]) -> bytes:
    """Decode an escape of COPY's text format (PostgreSQL's documentation of COPY, "Text Format")."""
    octal, hexadecimal, letter = escape.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    return bytes([int(hexadecimal, 16)]) if hexadecimal else _LETTERS.get(letter, letter)


def _lines(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    try:
        while line := file.readline(MAX_LINE):
            if len(line) == MAX_LINE:
                raise InvalidInput(f"{path}: a line is longer than {MAX_LINE} bytes", code="invalid_dump")
            yield line
    except (OSError, EOFError, ValueError, zlib.error) as error:  # gzip raises these for damaged files
        raise InvalidInput(f"{path}: can't be read ({error})", code="invalid_dump") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise FileMissing(f"{path}: {error.strerror}") from None
    with file:
        start = file.peek(len(_CUSTOM))
        if start.startswith(_CUSTOM):
            message = f"{path}: this is pg_dump's custom format; turn it into SQL: pg_restore -f dump.sql {path.name}"
            raise InvalidInput(message, code="invalid_dump")
        if start.startswith(_GZIP):
            with gzip.open(file) as unpacked:
                yield io.BufferedReader(unpacked)
        else:
            yield file
