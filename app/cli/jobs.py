"""jobs: work that outlasts a request."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.api import schemas
from app.cli import options, output
from app.cli.connect import connect
from app.cli.output import Exit
from app.client import Client
from app.errors import LikenessError

jobs = typer.Typer(no_args_is_help=True, help="See, wait for and cancel work that outlasts a request.")

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]


@jobs.command("list")
def list_jobs(
    gallery: Annotated[str | None, typer.Option(help="Only jobs of this gallery.")] = None,
    state: Annotated[str | None, typer.Option(help="Only queued, running, done, failed or cancelled ones.")] = None,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Every job, the newest first."""
    with connect(server, key) as client:
        found = list(client.all_jobs(gallery=gallery, state=state))
    if as_json:
        for job in found:
            output.say_json(job)
    else:
        rows = [[job.id, job.kind, job.gallery or "", job.state, _progress(job), job.key or ""] for job in found]
        output.say_table(["job", "kind", "gallery", "state", "done", "key"], rows)


@jobs.command()
def show(
    job_id: JobId, server: options.Server = None, key: options.Key = None, as_json: options.AsJson = False
) -> None:
    """How far a job is, and how it ended."""
    with connect(server, key) as client:
        say(client.job(job_id), as_json=as_json)


@jobs.command()
def cancel(
    job_id: JobId, server: options.Server = None, key: options.Key = None, as_json: options.AsJson = False
) -> None:
    """End a job; what it has done stays done."""
    with connect(server, key) as client:
        say(client.cancel_job(job_id), as_json=as_json)


@jobs.command()
def wait(
    job_id: JobId, server: options.Server = None, key: options.Key = None, as_json: options.AsJson = False
) -> None:
    """Wait until a job has ended. Exit code 3: it refused something, 4: it failed or was cancelled."""
    with connect(server, key) as client:
        job = await_job(client, job_id)
    say(job, as_json=as_json)
    raise typer.Exit(exit_code(job))


@jobs.command()
def report(
    job_id: JobId,
    path: Annotated[Path | None, typer.Option("--out", help="Where to write it; printed by default.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="CSV in place of lines of JSON.")] = False,
    server: options.Server = None,
    key: options.Key = None,
) -> None:
    """What a job refused, an item a line."""
    with connect(server, key) as client:
        found = client.job_report(job_id, csv=csv)
    if path is None:
        sys.stdout.write(found.decode())
    else:
        path.write_bytes(found)


def await_job(client: Client, job_id: str) -> schemas.Job:
    """The job once it has ended, with a bar meanwhile."""
    with _bar() as told:
        return client.wait_job(job_id, told=told)


def say(job: schemas.Job, *, as_json: bool) -> None:
    if as_json:
        output.say_json(job)
        return
    counted = ", ".join(f"{count} {name}" for name, count in sorted(job.counts.items()))
    output.say(f"{job.id}: {job.kind} {job.state}, {_progress(job)}" + (f": {counted}" if counted else ""))
    if job.error is not None:
        output.complain(LikenessError(job.error.message, code=job.error.code))


def exit_code(job: schemas.Job) -> Exit:
    """Of a job that has ended."""
    if job.state != "done":
        return Exit.FAILED
    return Exit.REFUSED if job.counts.get("refused") else Exit.DONE


def _progress(job: schemas.Job) -> str:
    return str(job.done) if job.total is None else f"{job.done}/{job.total}"


@contextmanager
def _bar() -> Iterator[Callable[[schemas.Job], None]]:
    """On the error output, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("waiting", total=None)
        yield lambda job: bar.update(task, description=job.kind, completed=job.done, total=job.total)
