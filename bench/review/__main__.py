"""`python -m bench.review`: precision and recall of a review's findings on LFW, and its time and memory as it grows."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from app.calibration.intervals import Interval, people_weights, percentile_interval
from app.config import PROJECT
from app.inference.package import load_package
from app.search.types import IndexKind
from bench import machine
from bench.review import corrupted, growth
from bench.review.corrupted import Faces, Judged
from bench.review.running import opened
from bench.review.templates import Kept, faces_of_lfw

ROUNDS = 1000
"""Rounds of the bootstrap over people."""
DRAWS = 10
"""Times that labels are corrupted anew."""
KINDS = ("same_person", "misplaced_face", "outlier", "foreign_face", "poor_face", "no_good_face")
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Out = Annotated[Path, typer.Option(help="File for the figures, JSON.")]


@app.command()
def lfw(
    *,
    images: Annotated[Path, typer.Option(help="Folder or tar of LFW's photos.")],
    out: Out,
    templates: Annotated[Path, typer.Option(help="Folder that templates are kept in.")],
    package: Annotated[str, typer.Option(help="Embedder package, in models/.")] = "sface",
    half: Annotated[str, typer.Option(help="`choose`, for which rules may be changed, or `report`.")] = "report",
    people_drawn: Annotated[int, typer.Option("--people", help="Only so many people; 0: all.")] = 0,
    draws: int = DRAWS,
    seed: int = 0,
) -> None:
    """Give 5 % of the faces to others, split 5 % of the people, make 5 % of the faces poor; count what is found."""
    manifest = load_package(PROJECT / "models" / package).manifest
    faces = faces_of_lfw(images, Kept(templates, package), people_drawn)
    people = sorted(set(faces.people))
    order = np.random.default_rng(seed).permutation(len(people))
    halves = {"choose": order[::2], "report": order[1::2]}
    mine = faces.only({people[place] for place in halves[half].tolist()})
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
        "machine": machine.describe(),
        "package": manifest.id,
        "half": half,
        "people": len(set(mine.people)),
        "faces": len(mine.people),
        "draws": draws,
        "seed": seed,
        "findings": rows,
        "separation": separations[0],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _show(rows)


def _figures(found: Sequence[Judged], faces: Faces) -> dict[str, Any]:
    """Return precision and recall over all draws, with intervals by bootstrap over people."""
    people = {name: column for column, name in enumerate(sorted(set(faces.people)))}
    weights = people_weights(len(people), ROUNDS)

    def share(good: Iterable[str], bad: Iterable[str]) -> Interval:
        counts = [np.zeros(len(people)) for _ in range(2)]
        for column, names in zip(counts, (good, bad), strict=True):
            for name, count in Counter(names).items():
                column[people[name]] += count
        hits, misses = counts
        if not hits.sum() + misses.sum():
            return Interval(float("nan"), 0.0, 1.0)
        totals = weights @ (hits + misses)
        samples = np.divide(weights @ hits, totals, out=np.full(len(totals), np.nan), where=totals > 0)
        return percentile_interval(float(hits.sum() / (hits.sum() + misses.sum())), samples)

    def all_of(field: str) -> list[str]:
        return [name for one in found for name in getattr(one, field)]

    return {
        "precision": asdict(share(all_of("right"), all_of("wrong"))),
        "findings": len(all_of("right")) + len(all_of("wrong")),
        "recall": asdict(share(all_of("found"), all_of("missed"))),
        "to_find": len(all_of("found")) + len(all_of("missed")),
    }


def _show(rows: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table("finding", "precision", "of", "recall", "of")
    for kind, row in rows.items():
        shares = [
            f"{one['value']:.3f} ({one['low']:.3f}-{one['high']:.3f})" for one in (row["precision"], row["recall"])
        ]
        table.add_row(kind, shares[0], str(row["findings"]), shares[1], str(row["to_find"]))
    Console().print(table)


def _shown(share: Mapping[str, float]) -> str:
    return f"{share['value']:.3f} ({share['low']:.3f}-{share['high']:.3f})"


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
    document = {"machine": machine.describe(), "dimension": dimension, "search": search, "sizes": rows}
    out.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@app.command(hidden=True)
def one(faces: int, dimension: int, search: IndexKind) -> None:
    """Print the figures of one size as JSON."""
    manifest = load_package(PROJECT / "models" / "sface").manifest
    people = growth.people(faces, dimension)
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder), manifest, dimension, search=search) as gallery:
        for first, subjects, vectors, qualities in people:
            gallery.fill(subjects, vectors, qualities, first)
        before = _resident_mib()
        done = gallery.review()
    figures = {
        "faces": faces,
        "subjects": done.summary.subjects,
        "findings": len(done.findings),
        "seconds": round(done.seconds, 2),
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
