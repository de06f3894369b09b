"""Prints the findings of a gallery's review, each with the commands that put it right."""

from __future__ import annotations

import shlex

from app.api import schemas
from app.api.schemas import FindingKind as Kind
from app.cli import output
from app.cli.output import Exit
from app.client import Client

TITLES: dict[Kind, str] = {
    "same_person": "may be one person",
    "misplaced_face": "looks like somebody else",
    "outlier": "looks like none of its own",
    "poor_face": "poor, and easily confused",
    "no_good_face": "no good face",
}


def say(
    client: Client, gallery: str, *, kind: Kind | None = None, dismissed: bool | None = None, as_json: bool
) -> Exit:
    """Print the last finished review, and return the exit code."""
    found = client.review(gallery, limit=1)
    findings = list(client.all_findings(gallery, kind=kind, dismissed=dismissed or None))
    if as_json:
        output.say_json(found.model_copy(update={"findings": findings, "next_cursor": None}))
    else:
        _say(found, findings)
    return Exit.NO if findings and not dismissed else Exit.DONE


def _say(found: schemas.Review, findings: list[schemas.Finding]) -> None:
    if found.summary is None:
        output.say(f"{found.gallery}: no review has finished yet")
        return
    done = found.summary
    output.say(
        f"{found.gallery}: {done.subjects} people, {done.faces} faces, reviewed {done.finished_at:%Y-%m-%d %H:%M} UTC"
    )
    output.say(f"  own faces missed (FNMR): {_rate(done.fnmr)}")
    output.say(f"  strangers taken for somebody (FPIR): {_rate(done.fpir)}; {done.fpir_expected:.2%} expected")
    if not findings:
        output.say("No findings.")
        return
    rows = [
        [
            TITLES[one.kind],
            one.face.subject,
            one.other.subject if one.other else "",
            _score(one.evidence.score),
            _score(one.evidence.own_score),
            f"{one.face.quality:.0f}",
            "\n".join(commands(found.gallery, one)),
        ]
        for one in findings
    ]
    output.say_table(["finding", "person", "other", "score", "own score", "quality", "what to do"], rows)


def commands(gallery: str, finding: schemas.Finding) -> list[str]:
    """Return the commands that put a finding right, the likeliest first, and the one that calls it right."""
    found = [_command(gallery, action) for action in finding.actions]
    return [*found, _line("galleries dismiss", gallery, finding.id)]


def _command(gallery: str, action: schemas.FindingAction) -> str:
    face, to = action.face_id or "", action.to or ""
    if action.do == "merge":
        return _line("people merge", gallery, action.subject, to)
    if action.do == "move":
        return _line("faces move", gallery, action.subject, face, to)
    if action.do == "delete":
        return _line("faces delete", gallery, action.subject, face)
    return _line("enroll", gallery, action.subject, "PHOTO")


def _line(command: str, *ids: str) -> str:
    dashes = ["--"] if any(one.startswith("-") for one in ids) else []
    return f"likeness {command} {shlex.join([*dashes, *ids])}"


def _rate(rate: schemas.ErrorRate | None) -> str:
    if rate is None:
        return "too few people to say"
    return f"{rate.value:.2%} ({rate.low:.2%} to {rate.high:.2%}, {rate.faces} faces of {rate.subjects} people)"


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.2f}"
