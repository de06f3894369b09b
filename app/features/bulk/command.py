"""`likeness import`, `export`: enroll many faces from folders, tables and arrays; write a whole gallery to a file."""

from __future__ import annotations

import csv
import json
import sys
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeAlias

import typer
from likeness_client import ApiError, Client, answers

from app.choices import ImportContent
from app.cli import jobs, options, output, photos
from app.cli.connect import Data
from app.cli.options import CliSession, command, model_ids
from app.cli.output import Exit, Failure
from app.cli.recognition import attempt, client_for, ensure_gallery
from app.errors import FileMissing, InvalidInput, InvalidSource, LikenessError, Unusable
from app.features import tar_stream
from app.features.bulk import json_lines, npy
from app.features.bulk.archive import MANIFEST
from app.features.bulk.imports import FACES, TEMPLATES
from app.features.bulk.photo_import import PEOPLE
from app.features.bulk.template_import import IDS
from app.features.writable import check_writable
from app.files import delimiter_of
from app.photo_folders import SUFFIXES

REFUSALS_SHOWN = 10
"""Maximum number of rejected items that are printed when a job ends; the job's report lists all."""
ImportPackage: TypeAlias = Annotated[
    str | None,
    typer.Option("--package", help="Templates: the model package that made them.", autocompletion=model_ids),
]

commands = typer.Typer()


@command(
    commands,
    "import",
    epilog="Examples: likeness import staff people/ --create\n\n"
    "likeness import staff list.csv --report refused.csv\n\nlikeness import staff staff.archive\n\n"
    "likeness import staff holiday/ --group people/",
)
def import_(
    session: CliSession,
    gallery: options.Gallery,
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder with one folder per person, a CSV (path, id, name, ...), a tar, templates (.npy, Parquet) "
            "or an archive that `likeness export` wrote."
        ),
    ],
    content: Annotated[ImportContent | None, typer.Option(help="What a tar contains. Default: detected.")] = None,
    quality: options.Quality = None,
    package: ImportPackage = None,
    ids: Annotated[
        Path | None, typer.Option(help="Templates: the person of each, one per line (.txt, .csv, .jsonl).")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Templates: scale them to length 1.")] = False,
    trust: Annotated[
        str | None, typer.Option(help="Archives: public key of the server that signed it, or its SHA-256.")
    ] = None,
    on_conflict: options.OnConflict = None,
    create: options.Create = False,
    report: Annotated[Path | None, typer.Option(help="File for what was refused: lines of JSON, or .csv.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the job has ended.")] = True,
    group: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Photos without names: write their faces into this new folder, grouped by person, and enroll nobody. "
            "Name the groups' folders, delete others, and import it.",
        ),
    ] = None,
) -> None:
    """Enroll many people at once. Exit code 3: some items were refused; the first ones are printed."""
    if group is not None:
        raise typer.Exit(_group(session, client_for(session, gallery, create=create), gallery, source, group))
    upload = source_of(source, content, ids)
    for path in upload.missing:
        output.complain(LikenessError("no such file", code="file_not_found"), Path(path))
    check_writable(report)
    client = session.client(Data.CREATED if create else Data.EXISTING)
    created = create and ensure_gallery(client, gallery, package)
    try:
        job = client.import_faces(
            gallery,
            upload.tar,
            content=upload.content,
            quality=quality,
            package=package,
            normalize=normalize or None,
            trust=trust,
            on_conflict=on_conflict,
        )
    except ApiError:
        if created:
            client.delete_gallery(gallery)
        raise
    if not wait:
        jobs.say(session, job)
        return
    job = jobs.await_job(client, job.id)
    if created and job.state == "failed" and not client.gallery(gallery).subjects:
        client.delete_gallery(gallery)
    complain_of_refusals(client, job)
    jobs.say(session, job)
    if report is not None:
        jobs.write_report(client, job.id, report, as_csv=report.suffix.lower() == ".csv")
    code = jobs.exit_code(job)
    raise typer.Exit(Exit.REFUSED if upload.missing and code is Exit.DONE else code)


def _group(session: CliSession, client: Client, gallery: str, source: Path, folder: Path) -> Exit:
    """Write the faces of the photos below ``source`` into ``folder``, grouped by person with the gallery's package."""
    from app.features.bulk.photo_groups import Roll  # noqa: PLC0415 - slow to import

    embedder = client.gallery(gallery).embedder
    (model,) = (model for model in client.models().models if model.id == embedder)
    files, _ = photos.collect([source])
    roll, code = Roll(folder), Exit.DONE

    def embed(path: Path) -> answers.EmbedAnswer | Failure:
        return attempt(lambda: client.embed(path, model=embedder))

    for path, found in photos.in_parallel(embed, files, "group", jobs=SENT_AT_ONCE):
        try:
            if isinstance(found, Failure):
                raise found
            roll.add(path, found.faces)
        except (ApiError, InvalidInput) as error:
            output.complain(error, path)
            code = Exit.REFUSED
    grouped = roll.write(
        [point for calibration in model.calibrations if calibration.default for point in calibration.points]
    )
    faces = sum(map(len, grouped.groups))
    answer = {"people": len(grouped.groups), "faces": faces, "without": len(grouped.without), "folder": str(folder)}
    session.say(
        answer,
        f"{folder}: faces {faces}, people {len(grouped.groups)}, photos without a usable face {len(grouped.without)}",
        *(f"  {path}" for path in grouped.without),
        f"Name the folders, delete those of others, then: likeness import {gallery} {folder}",
    )
    return code


@command(commands, epilog="Example: likeness export staff staff.archive")
def export(
    session: CliSession,
    gallery: options.Gallery,
    path: Annotated[Path, typer.Argument(help="Archive to write.")],
    crops: Annotated[bool, typer.Option(help="Include the stored crops.")] = True,
) -> None:
    """Write a gallery into one signed archive, which `likeness import` reads here or elsewhere."""
    client = session.client()
    check_writable(path)
    job = jobs.await_job(client, client.export_gallery(gallery, crops=crops).id)
    jobs.say(session, job)
    if job.has_result:
        client.job_result(job.id, path)
    raise typer.Exit(jobs.exit_code(job))


PIECE = 1024 * 1024
SENT_AT_ONCE = 2
"""Number of photos sent at the same time."""
ROWS = 4096
ID_COLUMNS, PATH_COLUMNS = ("id", "subject"), ("path", "photo", "image", "file")
VECTOR_COLUMNS = ("embedding", "template", "vector")
KNOWN_COLUMNS = {*ID_COLUMNS, *PATH_COLUMNS, "name", "metadata", "quality"}


@dataclass(frozen=True, slots=True)
class Source:
    """The source of an import. ``tar`` yields the tar to send; ``missing`` are photos that a CSV names but that don't
    exist."""

    content: str
    tar: Callable[[], Iterator[bytes]]
    missing: Sequence[str] = ()


def source_of(path: Path, content: str | None, ids: Path | None) -> Source:
    """Return the source at a path: a folder, a CSV, an `.npy` with ``ids``, a Parquet file or a tar.

    The ``content`` of a tar is detected unless it is given.

    Raises InvalidInput (``file_not_found``, ``invalid_source``), Unusable (``parquet_missing``).
    """
    if path.is_dir():
        return Source("photos", lambda: _folder(path))
    if not path.is_file():
        raise FileMissing(f"{path}: {photos.missing_file(path)}")
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return _table(path)
    if suffix == ".npy":
        return _arrays(path, ids)
    if suffix in {".parquet", ".pq"}:
        return _parquet(path)
    return Source(content or _content(path), lambda: _file(path))


def _content(path: Path) -> str:
    """Return what a tar contains, `archive`, `templates` or `photos`, judged by its first three files."""
    try:
        entries = tar_stream.entries(lambda: _file(path), sys.maxsize)
        names = [entry.name.removeprefix("./") for entry in islice(entries, 3)]
    except InvalidInput as error:
        raise InvalidSource(f"{path}: {_no_source(path)}") from error
    if names[:1] == [MANIFEST]:
        return "archive"
    return "templates" if {TEMPLATES, FACES, IDS} & set(names) else "photos"


def _no_source(path: Path) -> str:
    """Return the advice for a file that can't be imported."""
    if zipfile.is_zipfile(path):
        return "a zip is not read: unpack it, and name the folder"
    if path.suffix.lower() in SUFFIXES:
        return "a single photo: `likeness enroll GALLERY PERSON PHOTO` enrolls it"
    return "no folder, tar, exported gallery, table (.csv, .parquet) or array (.npy)"


def _file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def _member(name: str, path: Path) -> Iterator[bytes]:
    """Yield a file as a tar member. If its length changes meanwhile, the tar is invalid and the server rejects it."""
    size = path.stat().st_size
    yield tar_stream.header(name, size)
    yield from _file(path)
    yield tar_stream.padding(size)


def _lines(name: str, lines: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Yield lines of JSON as a tar member."""
    content = b"".join(map(json_lines.write, lines))
    yield tar_stream.header(name, len(content)) + content + tar_stream.padding(len(content))


def _folder(path: Path) -> Iterator[bytes]:
    for person, files in photos.people(path).items():
        for file in files:
            yield from _member("/".join([person, *file.relative_to(path).parts[1:]]), file)
    yield tar_stream.TAR_END


# ---------------------------------------------------------------- CSV


def _table(path: Path) -> Source:
    try:
        rows = list(_rows(path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidSource(f"{path}: not a CSV in UTF-8 ({error})") from None
    there = [(name, file, line) for name, file, line in rows if file.is_file()]

    def pieces() -> Iterator[bytes]:
        yield from _lines(PEOPLE, (line for _, _, line in there))
        for name, file, _ in there:
            yield from _member(name, file)
        yield tar_stream.TAR_END

    return Source("photos", pieces, [str(file) for _, file, _ in rows if not file.is_file()])


def _rows(path: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield each photo's name in the tar, its path, and its line in `people.jsonl`."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = _reader(file)
        columns = list(reader.fieldnames or [])
        id_column, path_column = _column(path, columns, ID_COLUMNS), _column(path, columns, PATH_COLUMNS)
        for number, row in enumerate(reader, 1):
            photo = _photo(path.parent, row.pop(path_column) or "")
            name = f"{number:09}/{photo.name}"
            yield name, photo, {"photo": name, **_about(row, id_column)}


def _photo(folder: Path, named: str) -> Path:
    """Return the path of the photo that a table names. The table may come from Windows or macOS, which write paths
    differently."""
    for text in (named, named.replace("\\", "/")):
        for spelled in (text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)):
            if (folder / spelled).is_file():
                return folder / spelled
    return folder / named


def _reader(file: TextIO) -> csv.DictReader[str]:
    """Return a reader of a CSV in which the known columns have lower-case names."""
    reader = csv.DictReader(file, delimiter=delimiter_of(file))
    plain = {name: name.strip().lower() for name in reader.fieldnames or ()}
    reader.fieldnames = [plain[name] if plain[name] in KNOWN_COLUMNS else name for name in plain]
    return reader


def _about(row: dict[str, Any], id_column: str) -> dict[str, Any]:
    """Return the row's subject, name and metadata. Metadata are the JSON in the column `metadata` and every unknown
    column."""
    line: dict[str, Any] = {"subject": "" if row[id_column] is None else str(row[id_column]).strip()}
    metadata: dict[str, Any] = {}
    for column, value in row.items():
        if column in {id_column, None} or value is None or value == "":
            continue
        if column == "name":
            line["name"] = value
        elif column == "metadata":
            metadata |= _json_object(value)
        else:
            metadata[column] = value
    return line | ({"metadata": metadata} if metadata else {})


def _about_template(row: dict[str, Any], id_column: str) -> dict[str, Any]:
    """Return the row's subject, name, metadata and quality."""
    quality = row.pop("quality", None)
    line = _about(row, id_column)
    if quality not in {None, ""}:
        try:
            line["quality"] = float(quality)
        except ValueError:
            raise InvalidSource("The column `quality` must hold numbers.") from None
    return line


def _json_object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise InvalidSource("The column `metadata` must hold JSON objects.")
    return value


def _column(path: Path, columns: Sequence[str], names: Sequence[str]) -> str:
    for name in names:
        if name in columns:
            return name
    raise InvalidSource(f"{path}: a column {' or '.join(names)} is required")


# ---------------------------------------------------------------- templates


def _arrays(path: Path, ids: Path | None) -> Source:
    beside = [path.with_suffix(suffix) for suffix in (".jsonl", ".csv", ".txt")]
    told = ids or next((file for file in beside if file.is_file()), None)
    if told is None or not told.is_file():
        raise FileMissing(
            f"{told or path}: name the person of each template with --ids: a .txt, .csv or .jsonl with one line per "
            "template"
        )
    suffix = told.suffix.lower()

    def pieces() -> Iterator[bytes]:
        if suffix == ".csv":
            yield from _lines(FACES, _template_rows(told))
        else:
            yield from _member(FACES if suffix == ".jsonl" else IDS, told)
        yield from _member(TEMPLATES, path)
        yield tar_stream.TAR_END

    return Source("templates", pieces)


def _template_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = _reader(file)
        id_column = _column(path, list(reader.fieldnames or []), ID_COLUMNS)
        for row in reader:
            yield _about_template(row, id_column)


def _parquet(path: Path) -> Source:
    opened = _open_parquet(path)
    columns = list(opened.schema_arrow.names)
    id_column, vector_column = _column(path, columns, ID_COLUMNS), _column(path, columns, VECTOR_COLUMNS)
    others = [name for name in columns if name != vector_column]

    def about() -> Iterator[bytes]:
        for batch in opened.iter_batches(ROWS, columns=others):
            for row in batch.to_pylist():
                yield json_lines.write(_about_template(row, id_column))

    def vectors() -> Iterator[Any]:
        for batch in opened.iter_batches(ROWS, columns=[vector_column]):
            column = batch.column(0)
            yield column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1).astype("<f4")

    def pieces() -> Iterator[bytes]:
        size = sum(len(line) for line in about())
        yield tar_stream.header(FACES, size)
        yield from about()
        yield tar_stream.padding(size)
        dimension = next((batch.shape[1] for batch in vectors()), 1)
        head = npy.head(opened.metadata.num_rows, dimension)
        size = len(head) + opened.metadata.num_rows * dimension * 4
        yield tar_stream.header(TEMPLATES, size) + head
        for batch in vectors():
            yield batch.tobytes()
        yield tar_stream.padding(size) + tar_stream.TAR_END

    return Source("templates", pieces)


def _open_parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet  # noqa: PLC0415 (an extra, and large)
    except ModuleNotFoundError:
        message = "Parquet needs pyarrow: pip install 'likeness-server[parquet]'"
        raise Unusable(message, code="parquet_missing") from None
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise InvalidSource(f"{path}: not a Parquet file") from error


def complain_of_refusals(client: Client, job: answers.Job) -> None:
    """Print the first items that the job refused to standard error, each with its reason."""
    refused = job.counts.get("refused", 0)
    if not refused:
        return
    lines = [json.loads(line) for line in client.job_report(job.id).splitlines()]
    for line in lines[:REFUSALS_SHOWN]:
        reasons = f": {', '.join(line['reasons'])}" if line.get("reasons") else ""
        output.complain(LikenessError(f"{line['message']}{reasons}", code=line["code"]), Path(str(line["name"])))
    if len(lines) > REFUSALS_SHOWN:
        output.warn(f"... and {len(lines) - REFUSALS_SHOWN} more: likeness jobs report {job.id}")
