"""import, export: many faces in, a whole gallery out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from app.cli import jobs, options, output
from app.cli.connect import Data
from app.cli.output import Exit
from app.cli.recognition import ensure_gallery
from app.cli.session import Session, with_session
from app.cli.transfer import sources
from app.errors import LikenessError

commands = typer.Typer()


@commands.command(
    "import",
    epilog="Examples: likeness import staff people/ --create\n\n"
    "likeness import staff list.csv --report refused.csv\n\nlikeness import staff staff.archive",
)
@with_session
def import_(
    session: Session,
    gallery: options.Gallery,
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder with one folder per person, a CSV (path, id, name, ...), a tar, templates (.npy, Parquet) "
            "or an archive that `likeness export` wrote."
        ),
    ],
    content: Annotated[
        Literal["photos", "templates", "archive"] | None, typer.Option(help="What a tar contains. Default: detected.")
    ] = None,
    quality: options.Quality = None,
    package: options.ImportPackage = None,
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
) -> None:
    """Enroll many people at once. Exit code 3: some were refused; the first ones are printed."""
    found = sources.find(source, content, ids)
    for path in found.missing:
        output.complain(LikenessError("no such file", code="file_not_found"), Path(path))
    with session.connect(Data.CREATED if create else Data.EXISTING) as client:
        output.check_writable(report)
        if create:
            ensure_gallery(client, gallery)
        job = client.import_faces(
            gallery,
            found.tar,
            content=found.content,
            quality=quality,
            package=package,
            normalize=normalize or None,
            trust=trust,
            on_conflict=on_conflict,
        )
        if wait:
            job = jobs.await_job(client, job.id)
            jobs.complain_of_refusals(client, job)
        jobs.say(session, job)
        if wait and report is not None:
            jobs.write_report(client, job.id, report, as_csv=report.suffix.lower() == ".csv")
    if not wait:
        return
    code = jobs.exit_code(job)
    raise typer.Exit(Exit.REFUSED if found.missing and code is Exit.DONE else code)


@commands.command(epilog="Example: likeness export staff staff.archive")
@with_session
def export(
    session: Session,
    gallery: options.Gallery,
    path: Annotated[Path, typer.Argument(help="Archive to write.")],
    crops: Annotated[bool, typer.Option(help="Include the stored crops.")] = True,
) -> None:
    """Write a gallery into one signed archive, which `likeness import` reads here or elsewhere."""
    with session.connect() as client:
        output.check_writable(path)
        job = jobs.await_job(client, client.export_gallery(gallery, crops=crops).id)
        jobs.say(session, job)
        if job.has_result:
            client.job_result(job.id, path)
    raise typer.Exit(jobs.exit_code(job))
