"""import, export: many faces in, a whole gallery out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.api import schemas
from app.cli import jobs, options, output, sources
from app.cli.connect import connect
from app.cli.output import Exit
from app.client import ApiError, Client
from app.errors import LikenessError


def import_(
    gallery: options.Gallery,
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder with a folder a person, a CSV (path, id, name, ...), a tar, an .npy of templates, a Parquet "
            "file of templates, or an archive that `export` made."
        ),
    ],
    content: Annotated[str | None, typer.Option(help="What a tar holds: photos, templates or archive.")] = None,
    quality: Annotated[str | None, typer.Option(help="Photos: least quality taken: none, low, medium or high.")] = None,
    package: Annotated[str | None, typer.Option(help="Templates: the model package that made them.")] = None,
    ids: Annotated[
        Path | None, typer.Option(help="Templates: whose they are, a line each (.txt, .csv, .jsonl).")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Templates: bring them to length 1.")] = False,
    trust: Annotated[
        str | None, typer.Option(help="Archives: the signing server's public key, or its SHA-256.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the gallery if it is not there.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write what was refused there: lines of JSON, or .csv.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the job has ended.")] = True,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Enroll many people at once. Exit code 3: some were refused; `--report` lists them."""
    found = sources.find(source, content, ids)
    for path in found.missing:
        output.complain(LikenessError("no such photo", code="file_not_found"), Path(path))
    with connect(server, key) as client:
        if create:
            _ensure_gallery(client, gallery)
        job = client.import_faces(
            gallery,
            found.tar,
            content=found.content,
            quality=quality,
            package=package,
            normalize=normalize or None,
            trust=trust,
        )
        if wait:
            job = jobs.await_job(client, job.id)
            _write_report(client, job, report)
    jobs.say(job, as_json=as_json)
    if not wait:
        return
    code = jobs.exit_code(job)
    raise typer.Exit(Exit.REFUSED if found.missing and code is Exit.DONE else code)


def export(
    gallery: options.Gallery,
    path: Annotated[Path, typer.Argument(help="The archive to write.")],
    crops: Annotated[bool, typer.Option(help="With the stored crops, or without them.")] = True,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a whole gallery into one signed archive, which `import` takes, here or elsewhere."""
    with connect(server, key) as client:
        job = jobs.await_job(client, client.export_gallery(gallery, crops=crops).id)
        if job.has_result:
            client.job_result(job.id, path)
    jobs.say(job, as_json=as_json)
    raise typer.Exit(jobs.exit_code(job))


def _ensure_gallery(client: Client, gallery: str) -> None:
    try:
        client.create_gallery(gallery)
    except ApiError as error:
        if error.code != "gallery_exists":
            raise


def _write_report(client: Client, job: schemas.Job, path: Path | None) -> None:
    if path is not None:
        path.write_bytes(client.job_report(job.id, csv=path.suffix.lower() == ".csv"))
