"""`likeness audit`: print who did what, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from app.cli import options
from app.cli.options import CliSession, command

audit = typer.Typer(no_args_is_help=True, epilog="Example: likeness audit export --since 2026-01-01")

EXPORT_PAGE = 1000


@command(audit, epilog="Examples: likeness audit export --since 2026-01-01 --json")
def export(
    session: CliSession,
    by: Annotated[str | None, typer.Option(help="Only what this key did.")] = None,
    operation: Annotated[str | None, typer.Option(help="Only this operation, for example enroll.")] = None,
    gallery: options.InGallery = None,
    subject: Annotated[str | None, typer.Option(help="Only about this person.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only from this time on, in UTC.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only before this time, in UTC.")] = None,
) -> None:
    """Print the audit log, oldest first, one entry per line."""
    entries = session.client().all_audit(
        key=by,
        operation=operation,
        gallery=gallery,
        subject=subject,
        since=options.utc(since),
        until=options.utc(until),
        order="oldest",
        limit=EXPORT_PAGE,
    )
    for entry in entries:
        words = (entry.key, entry.operation, entry.gallery, entry.subject, entry.target, entry.status, entry.request_id)
        line = " ".join([entry.at.isoformat(), *("-" if word is None else str(word) for word in words)])
        session.say(entry.model_dump(mode="json"), line)
