"""`python -m bench.review`: precision and recall of a review's findings on LFW, and its time and memory as it grows."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from app.calibration.intervals import Interval, people_weights, percentile_interval
from app.config import PROJECT
from app.inference.package import load_package
from app.inference.thresholds import Thresholds
from app.search.types import IndexKind
from bench import machine
from bench.review import corrections as corrected
from bench.review import corrupted, growth
from bench.review.corrupted import Faces, Judged
from bench.review.running import opened
from bench.review.templates import Kept, faces_of_lfw, people_to_choose_on

ROUNDS = 1000
"""Rounds of the bootstrap over people."""
DRAWS = 10
"""Times that labels are corrupted anew."""
KINDS = ("same_person", "misplaced_face", "outlier", "foreign_face", "poor_face", "no_good_face")
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Images = Annotated[Path, typer.Option(help="Folder or tar of LFW's photos.")]
TemplatesFolder = Annotated[Path, typer.Option(help="Folder that templates are kept in.")]
PackageName = Annotated[str, typer.Option(help="Embedder package, in models/.")]
Out = Annotated[Path, typer.Option(help="File for the figures, JSON.")]


@app.command()
def lfw(
    *,
    images: Images,
    out: Out,
    templates: TemplatesFolder,
    package: PackageName = "sface",
    part: Annotated[
        Literal["choose", "report"], typer.Option(help="The people on whom rules are chosen, or all others.")
    ] = "report",
    draws: int = DRAWS,
    seed: int = 0,
) -> None:
    """Give 5 % of the faces to others, split 5 % of the people, make 5 % of the faces poor; count what is found."""
    manifest = load_package(PROJECT / "models" / package).manifest
    faces = faces_of_lfw(images, Kept(templates, package))
    chosen = people_to_choose_on(faces)
    mine = faces.only(chosen if part == "choose" else set(faces.people) - chosen)
    judged: dict[str, list[Judged]] = defaultdict(list)
    separations: list[Mapping[str, Any]] = []
    for draw in range(draws):
        gallery = corrupted.corrupt(mine, seed + draw)
        with (
            tempfile.TemporaryDirectory() as folder,
            opened(Path(folder), manifest, mine.vectors.shape[1]) as one,
        ):
            one.fill(gallery.subjects, gallery.faces.vectors, gallery.faces.qualities)
            done = one.review()
        for kind, found in corrupted.judge(gallery, done.findings).items():
            judged[kind].append(found)
        separations.append(asdict(done.summary))
    rows = {kind: _figures(judged[kind], mine) for kind in KINDS}
    document = {
        "package": manifest.id,
        "part": part,
        "people": len(set(mine.people)),
        "faces": len(mine.people),
        "draws": draws,
        "seed": seed,
        "findings": rows,
        "separation": separations[0],
    }
    _write(out, document)
    _show(rows)


def _figures(found: Sequence[Judged], faces: Faces) -> dict[str, Any]:
    """Return precision and recall over all draws."""
    right, wrong, hits, missed = (_all(found, field) for field in ("right", "wrong", "found", "missed"))
    return {
        "precision": _share(faces, right, wrong),
        "findings": len(right) + len(wrong),
        "recall": _share(faces, hits, missed),
        "to_find": len(hits) + len(missed),
    }


def _all(found: Sequence[object], field: str) -> list[str]:
    return [name for one in found for name in getattr(one, field)]


def _share(faces: Faces, good: Iterable[str], bad: Iterable[str]) -> dict[str, float]:
    """Return the share of the good ones, each given by the person it counts for, with an interval by bootstrap over
    people."""
    people = {name: column for column, name in enumerate(sorted(set(faces.people)))}
    weights = people_weights(len(people), ROUNDS)
    hits, misses = np.zeros(len(people)), np.zeros(len(people))
    for column, names in ((hits, good), (misses, bad)):
        for name, count in Counter(names).items():
            column[people[name]] += count
    if not hits.sum() + misses.sum():
        return asdict(Interval(float("nan"), 0.0, 1.0))
    totals = weights @ (hits + misses)
    samples = np.divide(weights @ hits, totals, out=np.full(len(totals), np.nan), where=totals > 0)
    return asdict(percentile_interval(float(hits.sum() / (hits.sum() + misses.sum())), samples))


def _show(rows: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table("finding", "precision", "of", "recall", "of")
    for kind, row in rows.items():
        shares = [
            f"{one['value']:.3f} ({one['low']:.3f}-{one['high']:.3f})" for one in (row["precision"], row["recall"])
        ]
        table.add_row(kind, shares[0], str(row["findings"]), shares[1], str(row["to_find"]))
    Console().print(table)


@app.command()
def corrections(
    *,
    images: Images,
    out: Out,
    templates: TemplatesFolder,
    package: PackageName = "sface",
    fpir: Annotated[list[float] | None, typer.Option(help="FPIR of the gallery; may be given again.")] = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> None:
    """Correct the false matches of strangers; count those that come again, and the misses that it costs."""
    manifest = load_package(PROJECT / "models" / package).manifest
    faces = faces_of_lfw(images, Kept(templates, package))
    rows = []
    for rate in fpir or [0.01, 0.3]:
        found = [corrected.count(faces, Thresholds(manifest), rate, seed + draw) for draw in range(draws)]
        wrong, right, known, unknown, missed, others = (
            _all(found, field)
            for field in ("still_wrong", "put_right", "known", "unknown", "newly_missed", "as_before")
        )
        row = {
            "fpir": rate,
            "enrolled_people": found[0].enrolled,
            "corrections": sum(one.corrections for one in found),
            "come_again": len(wrong) + len(right),
            "as_the_same_subject": _share(faces, wrong, right),
            "as_anybody": _share(faces, known, unknown),
            "mated_probes": len(missed) + len(others),
            "newly_missed": _share(faces, missed, others),
        }
        rows.append(row)
        Console().print(row)
    settings = {"package": manifest.id, "people": len(set(faces.people)), "faces": len(faces.people)}
    _write(out, settings | {"draws": draws, "seed": seed, "rates": rows})


def _write(out: Path, document: Mapping[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine.describe(), **document}
    out.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@app.command()
def grow(
    *,
    out: Out,
    faces: Annotated[list[int] | None, typer.Option(help="Faces in the gallery; may be given again.")] = None,
    dimension: int = 128,
    search: Annotated[IndexKind, typer.Option(help="How vectors are searched.")] = "fp32",
) -> None:
    """Time and memory of a review of generated people, each size in a process of its own."""
    rows = []
    for count in faces or [1_000, 10_000, 100_000]:
        command = [sys.executable, "-m", "bench.review", "one", str(count), str(dimension), search]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603 (our own program)
        rows.append(row)
        Console().print(row)
        _write(out, {"dimension": dimension, "search": search, "sizes": rows})


@app.command(hidden=True)
def one(faces: int, dimension: int, search: IndexKind) -> None:
    """Print the figures of one size as JSON."""
    manifest = load_package(PROJECT / "models" / "sface").manifest
    people = growth.people(faces, dimension)
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder), manifest, dimension, search=search) as gallery:
        for first, subjects, vectors, qualities in people:
            gallery.fill(subjects, vectors, qualities, first)
        before, cpu = _resident_mib(), time.process_time()
        done = gallery.review()
        cpu = time.process_time() - cpu
    figures = {
        "faces": faces,
        "subjects": done.summary.subjects,
        "findings": len(done.findings),
        "seconds": round(done.seconds, 2),
        "processor_seconds": round(cpu, 2),
        "mib_before": before,
        "mib_most": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "load": round(os.getloadavg()[0], 1),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


if __name__ == "__main__":
    app()
