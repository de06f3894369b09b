"""galleries."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated

import typer
from likeness_client import answers

from app import choices
from app.choices import FindingKind
from app.cli import jobs, options, output, photos
from app.cli.connect import Data
from app.cli.options import Session, command, confirm
from app.cli.output import Exit

WHY = {
    "not_measured": "the gallery's is not measured yet",
    "too_few_subjects": "the gallery has too few subjects",
    "other_model": "the gallery's was measured with another model",
    "rate_not_supported": "the gallery's pairs do not support the rate",
}
galleries = typer.Typer(no_args_is_help=True, epilog="Example: likeness galleries list")

FINDINGS: Mapping[str, str] = {
    "same_person": "may be one person",
    "two_people": "may be two people",
    "misplaced_face": "looks like somebody else",
    "outlier": "looks like none of its own",
    "corrected_face": "looks like a recorded wrong answer",
    "poor_face": "poor, and easily confused",
    "no_good_face": "no good face",
}


@command(galleries, "list", epilog="Example: likeness galleries list --json")
def list_galleries(session: Session) -> None:
    """List the galleries with their counts."""
    session.say_list(
        ["gallery", "embedder", "subjects", "faces", "store", "search", "liveness"],
        list(session.client().all_galleries()),
        lambda row: [row.id, row.embedder, row.subjects, row.faces, row.store, row.search, row.liveness],
    )


@command(galleries, epilog="Example: likeness galleries create staff --store none")
def create(
    session: Session,
    gallery: options.Gallery,
    embedder: options.Embedder = None,
    store: Annotated[
        choices.CropPolicy | None, typer.Option(help="crop: keep the aligned crops; none: templates only.")
    ] = None,
    search: options.Search = None,
    on_conflict: options.OnConflict = None,
    population: options.Populations = None,
    liveness: options.Liveness = None,
    force: options.Force = False,
    accept_non_commercial: options.AcceptNonCommercial = False,
) -> None:
    """Create a gallery."""
    made = session.client(Data.CREATED).create_gallery(
        gallery,
        embedder=embedder,
        store=store,
        search=search,
        on_conflict=on_conflict,
        population=population,
        liveness=liveness,
        force=force or None,
        accept_non_commercial=accept_non_commercial or None,
    )
    session.say(made, f"{made.id}: created, for templates of {made.embedder}")


@command(galleries, epilog="Example: likeness galleries update staff --search int8")
def update(
    session: Session,
    gallery: options.Gallery,
    search: options.Search = None,
    on_conflict: options.OnConflict = None,
    population: options.Populations = None,
    no_population: Annotated[bool, typer.Option("--no-population", help="Declare no group of people.")] = False,
    liveness: options.Liveness = None,
) -> None:
    """Change how a gallery is searched, what it does with duplicates, whom it is for, or what it asks of liveness."""
    given = {"search": search, "on_conflict": on_conflict, "liveness": liveness}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if population or no_population:
        changes["population"] = population or []
    updated = session.client().update_gallery(gallery, changes)
    declared = f", for {', '.join(updated.population)}" if updated.population else ""
    session.say(
        updated,
        f"{updated.id}: searched by {updated.search}, on conflict {updated.on_conflict}, liveness "
        f"{updated.liveness}{declared}",
    )


@command(galleries, epilog="Example: likeness galleries delete visitors --yes")
def delete(session: Session, gallery: options.Gallery, yes: options.Yes = False) -> None:
    """Delete a gallery with everybody in it."""
    confirm(f"Delete gallery {gallery} with everybody in it?", yes)
    session.client().delete_gallery(gallery)
    session.say_done(gallery, "deleted")


@command(galleries, epilog="Example: likeness galleries check staff")
def check(session: Session, gallery: options.AnyGallery = None) -> None:
    """Check that database and index hold the same faces. Exit code 1: they don't."""
    client = session.client()
    names = [gallery] if gallery is not None else [row.id for row in client.all_galleries()]
    reports = list(photos.each(client.check_gallery, names, "check", jobs=1))
    for name, report in reports:
        word = "in order" if report.ok else "NOT in order"
        head = f"{name}: {word}: {report.faces} faces in the database, {report.indexed} in the index"
        answer = {"gallery": name} | report.model_dump(mode="json")
        session.say(answer, head, *(f"  {problem}" for problem in report.problems))
    raise typer.Exit(Exit.DONE if all(report.ok for _, report in reports) else Exit.NO)


@command(galleries, epilog="Example: likeness galleries review staff --wait")
def review(
    session: Session,
    gallery: options.Gallery,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended, and print the findings.")] = False,
) -> None:
    """Look for what is probably wrong in a gallery: a job. With --wait, exit code 1: there are findings."""
    client = session.client()
    job = client.start_review(gallery)
    if wait:
        job = jobs.await_job(client, job.id)
        if job.state == "done":
            raise typer.Exit(_say_review(session, gallery))
    jobs.say(session, job)
    raise typer.Exit(jobs.exit_code(job) if wait else Exit.DONE)


@command(galleries, epilog="Example: likeness galleries findings staff --kind same_person")
def findings(
    session: Session,
    gallery: options.Gallery,
    kind: Annotated[FindingKind | None, typer.Option(help="Only findings of this kind.")] = None,
    dismissed: Annotated[bool, typer.Option("--dismissed", help="Those that were called right.")] = False,
) -> None:
    """List what the last review found, with commands that put it right. Exit code 1: there are findings."""
    raise typer.Exit(_say_review(session, gallery, kind=kind, dismissed=dismissed))


@command(galleries, epilog="Example: likeness galleries dismiss staff 5f0f0c4c3a9a3e0c6d7b8a9f106f1f2d")
def dismiss(
    session: Session,
    gallery: options.Gallery,
    finding: Annotated[str, typer.Argument(help="The finding's id.")],
    undo: Annotated[bool, typer.Option("--undo", help="Ask about it again.")] = False,
) -> None:
    """Call a finding right: later reviews don't ask again unless other faces are its evidence."""
    client = session.client()
    (client.reopen_finding if undo else client.dismiss_finding)(gallery, finding)
    session.say_done(finding, "reopened" if undo else "right, not asked again")


@command(galleries, epilog="Example: likeness galleries calibrate staff --use gallery")
def calibrate(
    session: Session,
    gallery: options.Gallery,
    use: Annotated[choices.CalibrationSource | None, typer.Option(help="Whose operating points are to decide.")] = None,
    allow_laxer: Annotated[
        bool | None,
        typer.Option("--allow-laxer/--no-allow-laxer", help="Whether the gallery's may be laxer than the floor."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show the last measurement; make none.")] = False,
) -> None:
    """Measure operating points among a gallery's own subjects, and choose whose decide."""
    client = session.client()
    given = {"calibration": use, "allow_laxer": allow_laxer}
    if changes := {name: value for name, value in given.items() if value is not None}:
        client.update_gallery(gallery, changes)
    started = None if show else client.calibrate_gallery(gallery).job
    if started is not None:
        job = jobs.await_job(client, started.id)
        if (code := jobs.exit_code(job)) is not Exit.DONE:
            jobs.say(session, job)
            raise typer.Exit(code)
    calibration = client.calibration(gallery)
    if session.as_json:
        output.say_json(calibration)
    else:
        _say_calibration(calibration)


def _say_calibration(calibration: answers.GalleryCalibration) -> None:
    measured, decides = calibration.measured, calibration.decides
    if measured is None:
        output.say(f"{calibration.gallery}: not measured yet")
    else:
        output.say(
            f"{calibration.gallery}: {measured.compared_faces:,} of {measured.faces:,} faces compared, "
            f"{measured.compared_subjects:,} of {measured.subjects:,} subjects, "
            f"{measured.comparisons:,} pairs of different ones, {measured.measured_at:%Y-%m-%d}"
        )
    rows = [
        [
            f"{point.fmr:g}",
            "-" if point.threshold is None else f"{point.threshold:.4f}",
            "-" if point.threshold_low is None else f"{point.threshold_low:.4f}-{point.threshold_high:.4f}",
            "-" if point.package is None else f"{point.package:.4f}",
            "-" if point.found is None else f"{point.found:.1e} ({point.found_low:.1e}-{point.found_high:.1e})",
            "-" if point.decides is None else f"{point.decides:.4f}",
        ]
        for point in calibration.points
    ]
    heads = ["FMR", "gallery", "95 % interval", "package", "FMR here at the package's", "with --use gallery"]
    output.say_table(heads, rows)
    if measured is not None and measured.suspicious:
        expected = "" if measured.suspicious_expected is None else f", {measured.suspicious_expected:.2g} by chance"
        output.say(
            f"Pairs of subjects that may be one person: {measured.suspicious}{expected}; left out, so that each FMR "
            f"may be too low by {measured.missed:.1e} at most:"
        )
    for pair in calibration.pairs:
        first, second = pair.first, pair.second
        output.say(f"  {pair.score:.3f} {first.subject} ({first.face_id}), {second.subject} ({second.face_id})")
    why = f" ({WHY[decides.fallback]})" if decides.fallback else ""
    output.say(f"Decides: the {decides.source}'s calibration{f' {decides.name}' if decides.name else ''}{why}")


def _say_review(
    session: Session, gallery: str, *, kind: FindingKind | None = None, dismissed: bool | None = None
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
    """Return the commands that put a finding right, the likeliest first, and the one that calls it right."""
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
