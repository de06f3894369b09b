"""`likeness jobs`: work that outlasts a request."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from likeness_client import Client, answers

from app import choices
from app.cli import options, output
from app.cli.connect import connect
from app.cli.options import CliSession, command
from app.cli.output import Exit
from app.errors import LikenessError

jobs = typer.Typer(no_args_is_help=True, epilog="Example: likeness jobs list --state running")

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]


@command(jobs, "list", epilog="Example: likeness jobs list --gallery staff")
def list_jobs(
    session: CliSession,
    gallery: options.InGallery = None,
    state: Annotated[choices.JobStateName | None, typer.Option(help="Only jobs in this state.")] = None,
) -> None:
    """List the jobs, newest first."""
    session.say_list(
        ["job", "kind", "gallery", "state", "done", "key"],
        list(session.client().all_jobs(gallery=gallery, state=state)),
        lambda job: [job.id, job.kind, job.gallery, job.state, _progress(job), job.key],
    )


@command(jobs, epilog="Example: likeness jobs show 3f2a")
def show(session: CliSession, job_id: JobId) -> None:
    """Show the progress of a job, and how it ended."""
    say(session, session.client().job(job_id))


@command(jobs, epilog="Example: likeness jobs cancel 3f2a")
def cancel(session: CliSession, job_id: JobId) -> None:
    """Cancel a job. What it has done so far stays."""
    say(session, session.client().cancel_job(job_id))


@command(jobs, epilog="Example: likeness jobs wait 3f2a")
def wait(session: CliSession, job_id: JobId) -> None:
    """Wait until a job has ended. Exit code 3: it rejected some items, 4: it failed or was cancelled."""
    job = await_job(session.client(), job_id)
    say(session, job)
    raise typer.Exit(exit_code(job))


@jobs.command(epilog="Example: likeness jobs report 3f2a --csv --out refused.csv")
def report(
    job_id: JobId,
    path: Annotated[Path | None, typer.Option("--out", help="File to write. Default: standard output.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Write CSV instead of lines of JSON.")] = False,
    server: options.Server = None,
    key: options.Key = None,
) -> None:
    """Print the items that a job rejected, one per line."""
    with connect(server, key) as client:
        write_report(client, job_id, path, as_csv=csv)


def write_report(client: Client, job_id: str, path: Path | None, *, as_csv: bool) -> None:
    """Write the items that a job rejected to a file, or to standard output."""
    content = client.job_report(job_id, format_="csv" if as_csv else "jsonl")
    if path is None:
        sys.stdout.write(content.decode())
    else:
        path.write_bytes(content)


def await_job(client: Client, job_id: str) -> answers.Job:
    """Wait until the job has ended, with a progress bar, and return it."""
    with output.progress("waiting") as update:
        return client.wait_job(
            job_id, told=lambda job: update(description=job.kind, completed=job.done, total=job.total)
        )


def say(session: CliSession, job: answers.Job) -> None:
    """Print a job, and its error to standard error."""
    counted = ", ".join(f"{count} {name}" for name, count in sorted(job.counts.items()))
    session.say(job, f"{job.id}: {job.kind} {job.state}, {_progress(job)}" + (f": {counted}" if counted else ""))
    if job.error is not None and not session.as_json:
        output.complain(LikenessError(job.error.message, code=job.error.code))


def exit_code(job: answers.Job) -> Exit:
    """Return the exit code for a job that has ended."""
    if job.state != "done":
        return Exit.FAILED
    return Exit.REFUSED if job.counts.get("refused") else Exit.DONE


def _progress(job: answers.Job) -> str:
    return str(job.done) if job.total is None else f"{job.done}/{job.total}"
