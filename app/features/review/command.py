"""`likeness galleries review`, `findings`, `dismiss`: find what is probably wrong in a gallery."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated

import typer
from likeness_client import answers

from app.choices import FindingKind
from app.cli import jobs, options, output
from app.cli.options import CliSession, command
from app.cli.output import Exit

commands = typer.Typer()

FINDINGS: Mapping[str, str] = {
    "same_person": "may be one person",
    "two_people": "may be two people",
    "misplaced_face": "looks like somebody else",
    "outlier": "looks like none of its own",
    "corrected_face": "looks like a recorded wrong answer",
    "poor_face": "poor, and easily confused",
    "no_good_face": "no good face",
}


@command(commands, epilog="Example: likeness galleries review staff --wait")
def review(
    session: CliSession,
    gallery: options.Gallery,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended, and print the findings.")] = False,
) -> None:
    """Start a job that looks for what is probably wrong in a gallery. Exit code 1, with --wait: there are findings."""
    client = session.client()
    job = client.start_review(gallery)
    if wait:
        job = jobs.await_job(client, job.id)
        if job.state == "done":
            raise typer.Exit(_say_review(session, gallery))
    jobs.say(session, job)
    raise typer.Exit(jobs.exit_code(job) if wait else Exit.DONE)


@command(commands, epilog="Example: likeness galleries findings staff --kind same_person")
def findings(
    session: CliSession,
    gallery: options.Gallery,
    kind: Annotated[FindingKind | None, typer.Option(help="Only findings of this kind.")] = None,
    dismissed: Annotated[bool, typer.Option("--dismissed", help="Only findings that were marked as right.")] = False,
) -> None:
    """List what the last review found, with the commands that correct it. Exit code 1: there are findings."""
    raise typer.Exit(_say_review(session, gallery, kind=kind, dismissed=dismissed))


@command(commands, epilog="Example: likeness galleries dismiss staff 5f0f0c4c3a9a3e0c6d7b8a9f106f1f2d")
def dismiss(
    session: CliSession,
    gallery: options.Gallery,
    finding: Annotated[str, typer.Argument(help="The finding's id.")],
    undo: Annotated[bool, typer.Option("--undo", help="List the finding again.")] = False,
) -> None:
    """Mark a finding as right: later reviews don't list it again unless the evidence is other faces."""
    client = session.client()
    (client.reopen_finding if undo else client.dismiss_finding)(gallery, finding)
    session.say_done(finding, "reopened" if undo else "right, not asked again")


def _say_review(
    session: CliSession, gallery: str, *, kind: FindingKind | None = None, dismissed: bool | None = None
) -> Exit:
    """Print the last finished review, and return the exit code."""
    client = session.client()
    last = client.review(gallery, limit=1)
    findings = list(client.all_findings(gallery, kind=kind, dismissed=dismissed or None))
    if session.as_json:
        output.say_json(last.model_copy(update={"findings": findings, "next_cursor": None}))
    else:
        _say_findings(last, findings)
    return Exit.NO if findings and not dismissed else Exit.DONE


def _say_findings(last: answers.Review, findings: list[answers.Finding]) -> None:
    if last.summary is None:
        output.say(f"{last.gallery}: no review has finished yet")
        return
    done = last.summary
    output.say(
        f"{last.gallery}: {done.subjects} people, {done.faces} faces, reviewed {done.finished_at:%Y-%m-%d %H:%M} UTC"
    )
    output.say(f"  own faces missed (FNMR): {_rate(done.fnmr)}")
    output.say(f"  strangers taken for somebody (FPIR): {_rate(done.fpir)}; {done.fpir_expected:.2%} expected")
    if not findings:
        output.say("No findings.")
        return
    rows = [
        [
            FINDINGS[finding.kind],
            finding.face.subject,
            finding.other and finding.other.subject,
            _score(finding.evidence.score),
            _score(finding.evidence.own_score),
            f"{finding.face.quality:.0f}",
            "\n".join(_remedies(last.gallery, finding)),
        ]
        for finding in findings
    ]
    output.say_table(["finding", "person", "other", "score", "own score", "quality", "what to do"], rows)


def _remedies(gallery: str, finding: answers.Finding) -> list[str]:
    """Return the commands that correct a finding, the likeliest first, and then the command that dismisses it."""
    lines = []
    for action in finding.actions:
        face, to = action.face_id or "", action.to or ""
        words = {
            "merge": ("people merge", action.subject, to),
            "part": ("faces move --create", action.subject, ",".join(action.faces), to),
            "move": ("faces move", action.subject, face, to),
            "delete": ("faces delete", action.subject, face),
        }
        lines.append(words.get(action.do, ("enroll", action.subject, "PHOTO")))
    commands = []
    for name, *ids in (*lines, ("galleries dismiss", finding.id)):
        dashes = ["--"] if any(identifier.startswith("-") for identifier in (gallery, *ids)) else []
        commands.append(f"likeness {name} {shlex.join([*dashes, gallery, *ids])}")
    return commands


def _rate(rate: answers.ErrorRate | None) -> str:
    if rate is None:
        return "too few people to say"
    return f"{rate.value:.2%} ({rate.low:.2%} to {rate.high:.2%}, {rate.faces} faces of {rate.subjects} people)"


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.2f}"
