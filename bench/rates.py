"""`python -m bench rates`: stated against found error rates, for any people, photos per subject and calibration.

People are drawn as subjects of a gallery; all others are strangers to it. Thresholds come from the service's own
`identify_point` and `verify_point`, scores from comparing everybody, so a server with these faces would answer the
same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

import cv2
import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from app.errors import OperatingPointUnavailable
from app.face.quality import QualityLevel
from app.features.calibration.population import deciding, measure_population
from app.models.calibration import operating_points as points
from app.models.calibration.fusion import measure_fusion
from app.models.calibration.intervals import Floats, Ints
from app.models.stages import Stages, pixels_of
from app.package.folders import load_package
from app.package.manifest import Manifest
from app.package.thresholds import Thresholds, fuse_templates
from app.pipeline import choose_face
from app.recognition.decisions import DefaultRates, identify_point, verify_point
from app.recognition.duplicates import CONFLICT_FPIR
from app.types import Vector, Vectors
from training.commands.options import Images, Out, TemplateOptions, read_or_embed, templates_of, with_template_options
from training.evaluation.pairs import person_of
from training.evaluation.photos import Embed, Templates, open_photos
from training.terminal import told

Source: TypeAlias = Literal["package", "others", "gallery", "laxer"]
"""Whose operating points decide: the package's; those of the half of the people who are not in galleries; or the
gallery's own, without or with `allow_laxer`."""
SOURCES = get_args(Source)
MIXED = 0
"""Photos per subject by a geometric distribution, 2.9 on average."""
MIXED_MEAN, MIXED_MOST = 2.9, 15
ASKED: tuple[tuple[str, float], ...] = (
    ("identify fpir", 0.1),
    ("identify fpir", 0.01),
    ("conflict fpir", CONFLICT_FPIR),
    ("verify subject fmr", 1e-3),
    ("verify photos fmr", 1e-3),
    ("verify photos fmr", 1e-4),
)
MISSED = "FNIR at fpir 0.01"
MISSED_FOUND = "at a found 0.01"
JPEG_QUALITY = 80
"""JPEG quality of reduced photos, about a camera's."""
MOST_TRACKS = 4
"""Maximum number of tracks drawn from a person's photos: more tracks of one person add no evidence."""
WIDTH = 160
"""Columns of the table."""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Setting:
    photos: int
    """Photos of each subject, or MIXED."""
    subjects: int
    unnamed: float
    """Share of unnamed subjects, each with one further face of the same people."""
    source: Source
    probe: int = 1
    """Number of one person's photos in a probe; several are a track. `verify photos` then compares tracks."""


@dataclass(frozen=True, slots=True)
class Row:
    """The rates found in a setting, by the requested rate: mean, lowest and highest of the draws."""

    setting: Setting
    found: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Faces:
    """(N, D) unit vectors, their people, (N,), numbered from 0, and the manifest of the package that made them."""

    vectors: Vectors
    people: Ints
    manifest: Manifest
    searching: Vectors | None = None
    """The same photos as probes, if probes differ from the enrolled photos."""


@dataclass(frozen=True, slots=True)
class Probes:
    """(P, D) unit vectors, and the lengths, (P,), of the means that they come from; 1 for single photos."""

    vectors: Vectors
    lengths: Floats


@dataclass(frozen=True, slots=True)
class Drawn:
    """A gallery, whose subjects are numbered from 0, named ones first, and the probes that search it.

    ``faces`` are rows of the vectors, ``mates`` and ``strangers`` rows of the photos of each probe, (P, probe).
    """

    faces: Ints
    subjects: Ints
    named: int
    mates: Ints
    mated: Ints
    """The subject of each of the mates."""
    strangers: Ints
    weights: Floats
    """Weights by which each stranger counts once, with any number of photos."""


def draw(people: Mapping[int, Ints], setting: Setting, rng: np.random.Generator) -> Drawn:
    """Draw a gallery from the rows of each person, with at most four fifths of the people who have enough photos.

    Raises ValueError if fewer than two people have enough.
    """
    least = max(setting.photos, 1) + setting.probe
    fits = [person for person, rows in people.items() if len(rows) >= least]
    chosen = rng.permutation(fits)[: min(setting.subjects, len(fits) * 4 // 5)].tolist()
    if not chosen:
        raise ValueError(f"{len(fits)} of {len(people)} people have {least} photos with a face or more: 2 are needed")
    faces, subjects, mates, mated = list[int](), list[int](), list[Ints](), list[int]()
    for number, person in enumerate(chosen):
        rows = rng.permutation(people[person])
        wanted = setting.photos or min(int(rng.geometric(1 / MIXED_MEAN)), MIXED_MOST)
        cut = min(wanted, len(rows) - setting.probe)
        faces += rows[:cut].tolist()
        subjects += [number] * cut
        tracks = tracks_of(rows[cut:], setting.probe, rng)
        mates += tracks
        mated += [number] * len(tracks)
    extra = rng.permutation(len(mates))[: round(len(chosen) * setting.unnamed / (1 - setting.unnamed))]
    faces += [int(mates[place][0]) for place in extra.tolist()]
    subjects += range(len(chosen), len(chosen) + len(extra))
    kept = np.array([place for place, rows in enumerate(mates) if not np.isin(rows, faces).any()], np.int64)
    outside = (tracks_of(rows, setting.probe, rng) for person, rows in people.items() if person not in set(chosen))
    others = [tracks for tracks in outside if tracks]
    weights = np.concatenate([np.full(len(tracks), 1 / len(tracks)) for tracks in others])
    return Drawn(
        np.array(faces, np.int64),
        np.array(subjects, np.int64),
        len(chosen),
        np.stack(mates)[kept],
        np.array(mated, np.int64)[kept],
        np.concatenate(others),
        weights / weights.sum(),
    )


def tracks_of(rows: Ints, photos: int, rng: np.random.Generator) -> list[Ints]:
    """Return the rows of a person's probes of ``photos`` each: every photo alone, or MOST_TRACKS random tracks."""
    if photos == 1:
        return list(rows[:, None])
    most = 0 if len(rows) < photos else 1 if len(rows) == photos else MOST_TRACKS
    return [rng.permutation(rows)[:photos] for _ in range(most)]


def probes_of(vectors: Vectors, rows: Ints) -> Probes:
    """Return the fused probes, given each one's rows, (P, probe)."""
    if rows.shape[1] == 1:
        return Probes(vectors[rows[:, 0]], np.ones(len(rows)))
    means, lengths = zip(*(fuse_templates(vectors[members]) for members in rows), strict=True)
    return Probes(np.stack(means), np.array(lengths))


def best_scores(probes: Probes, vectors: Vectors, drawn: Drawn) -> NDArray[np.float32]:
    """Return each probe's best score with each subject, (P, S)."""
    order = np.argsort(drawn.subjects, kind="stable")
    starts = np.searchsorted(drawn.subjects[order], np.arange(drawn.subjects.max() + 1))
    best: NDArray[np.float32] = np.maximum.reduceat(probes.vectors @ vectors[drawn.faces[order]].T, starts, axis=1)
    return best


def subject_scores(probes: Probes, vectors: Vectors, drawn: Drawn, thresholds: Thresholds) -> Floats:
    """Return each probe's score with each subject, (P, S), reduced by `reduced`; the best face's if fusion was not
    measured."""
    if thresholds.fusion is None:
        best = best_scores(probes, vectors, drawn)
        return best * reduced(probes.lengths, np.ones(1), thresholds)
    means = [
        fuse_templates(vectors[drawn.faces[drawn.subjects == subject]]) for subject in range(drawn.subjects.max() + 1)
    ]
    lengths = np.array([length for _, length in means])
    return probes.vectors @ np.stack([mean for mean, _ in means]).T * reduced(probes.lengths, lengths, thresholds)


def reduced(lengths: Floats, others: Floats, thresholds: Thresholds) -> Floats:
    """Return the factors, (P, O), at which scores of fused templates count as those of two photos."""
    powers = [thresholds.power(length) for length in lengths.tolist()]  # to which the others' lengths are raised
    factors: Floats = (lengths ** thresholds.power(1.0))[:, None] * others[None, :] ** np.array(powers)[:, None]
    return factors


def found_in(faces: Faces, drawn: Drawn, thresholds: Thresholds) -> dict[str, float]:
    """Return the rate found for each requested one; rejected ones are left out."""
    vectors, searching = faces.vectors, faces.vectors if faces.searching is None else faces.searching
    strangers, mates = probes_of(searching, drawn.strangers), probes_of(searching, drawn.mates)
    scores, weights = subject_scores(strangers, vectors, drawn, thresholds), drawn.weights
    alone = np.ones(len(drawn.faces))
    best = best_scores(strangers, vectors, drawn) * reduced(strangers.lengths, alone[:1], thresholds)
    best = best[:, : drawn.named]
    counts = np.bincount(drawn.subjects)
    sizes = Counter(counts.tolist())
    named = scores[:, : drawn.named]
    second = mates if drawn.mates.shape[1] > 1 else Probes(vectors[drawn.faces], alone)
    pairs = strangers.vectors @ second.vectors.T * reduced(strangers.lengths, second.lengths, thresholds)
    found = {}
    for what, asked in ASKED:
        try:
            if what.endswith("fpir"):
                conflict = what.startswith("conflict")  # these compare single faces
                rates, reaching = DefaultRates(asked, asked), best if conflict else scores
                threshold = identify_point(thresholds, None, asked, rates, sizes, fused_scores=not conflict).threshold
                reached = reaching.max(axis=1) >= threshold
            elif what == "verify subject fmr":
                of_named = counts[: drawn.named].tolist()
                at = [verify_point(thresholds, asked, asked, count, fused_scores=True).threshold for count in of_named]
                reached = (named >= at).mean(axis=1)
            else:
                reached = (pairs >= verify_point(thresholds, asked, asked).threshold).mean(axis=1)
        except OperatingPointUnavailable:
            continue
        found[f"{what} {asked:g}"] = float((reached * weights).sum())
        if (what, asked) == ("identify fpir", 0.01):
            reaching = subject_scores(mates, vectors, drawn, thresholds)[:, : drawn.named]
            is_first, top = reaching.argmax(axis=1) == drawn.mated, reaching.max(axis=1)
            found[MISSED] = 1 - float((is_first & (top >= threshold)).mean())
            found[MISSED_FOUND] = 1 - float((is_first & (top >= reached_by(scores.max(axis=1), weights, asked))).mean())
    return found


def reached_by(scores: Floats, weights: Floats, share: float) -> float:
    """Return the threshold that at most this share of the strangers reach, as for an FPIR."""
    order = np.argsort(-scores)
    return float(np.nextafter(scores[order][np.cumsum(weights[order]) > share][0], np.inf))


def thresholds_for(source: Source, faces: Faces, drawn: Drawn, others: Ints) -> Thresholds:
    """Return the thresholds that decide in the gallery; ``others`` are the rows of unused people."""
    package, vectors = Thresholds(faces.manifest), faces.vectors
    if source == "package":
        return package
    if source in {"gallery", "laxer"}:
        named = drawn.subjects < drawn.named
        faces_of = vectors[drawn.faces[named]], drawn.subjects[named]
        measured = measure_population(*faces_of, package, measured_on="gallery")
        calibration = measured.calibration
        return deciding(package, calibration, allow_laxer=source == "laxer") if calibration else package
    who = points.number_people([str(name) for name in faces.people[others]])
    compared = points.compare_all(vectors[others], who)
    found = points.measure(compared, who, rounds=2)
    fusion, on = measure_fusion(vectors[others], who), "other people"
    new = points.calibration(found, name="others", measured_on=on, pairs="all", default=True, fusion=fusion)
    return Thresholds(faces.manifest.model_copy(update={"calibrations": (new,)}))


def measure(faces: Faces, setting: Setting, draws: int) -> Row:
    """Draw galleries and average their rates. If the points of ``others`` decide, each half of the people is in turn
    the half that is drawn from."""
    rates: dict[str, list[float]] = {}
    rows = points.rows_of_people(faces.people)
    half = np.random.default_rng(0).permutation(len(rows)) % 2
    known: dict[int, Thresholds] = {}
    for number in range(draws):
        inside = half == number % 2 if setting.source == "others" else np.ones(len(rows), bool)
        drawn = draw(
            {person: rows[person] for person in np.flatnonzero(inside).tolist()}, setting, np.random.default_rng(number)
        )
        others = np.flatnonzero(~inside[faces.people])
        side = number % 2 if setting.source == "others" else number
        thresholds = known.get(side) or thresholds_for(setting.source, faces, drawn, others)
        known[side] = thresholds
        for what, rate in found_in(faces, drawn, thresholds).items():
            rates.setdefault(what, []).append(rate)
    return Row(setting, {what: (float(np.mean(values)), min(values), max(values)) for what, values in rates.items()})


def seen_from_afar(images: Path, names: Sequence[str], width: int, way: TemplateOptions) -> Templates:
    """Return the templates of photos, each reduced until its main face is ``width`` pixels wide.

    A face that is too poor for a track counts as not found.
    """

    def embed(stages: Stages) -> Embed:
        photos = open_photos(images)

        def embed_name(name: str) -> tuple[Vector, float]:
            data = photos.read(name)
            detected = stages.pipeline.detect(data)
            ratio = width / detected.faces[choose_face(detected).index].box.width
            small = cv2.resize(pixels_of(data), None, fx=ratio, fy=ratio, interpolation=cv2.INTER_AREA)
            jpeg = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
            return stages.embed_photo(cv2.imencode(".jpg", small[:, :, ::-1], jpeg)[1].tobytes())

        return embed_name

    made = read_or_embed(images, names, replace(way, templates=None), embed)
    return replace(made, found=made.found & (made.quality >= QualityLevel.LOW.minimum))


def one_person_each(vectors: Vectors, people: Ints, above: float | None) -> NDArray[np.bool_]:
    """Return which photos to keep. Both photos of a pair are dropped if they show one person under two names
    (`points.same_people`)."""
    kept = np.ones(len(people), bool)
    if above is not None:
        same = points.same_people(vectors, people, points.compare_all(vectors, people), above=above)
        kept[np.concatenate([same.keys // len(people), same.keys % len(people)])] = False
    return kept


@app.command()
@with_template_options()
def rates(
    way: TemplateOptions,
    *,
    images: Images,
    out: Out = Path("bench/results/rates"),
    photos: Annotated[list[int], typer.Option(help="Photos a subject; 0: mixed.")] = [1, 2, 3, 5, 10, MIXED],  # noqa: B006 - typer's way
    subjects: Annotated[list[int], typer.Option(help="Subjects of a gallery.")] = [250],  # noqa: B006 - the same
    unnamed: Annotated[list[float], typer.Option(help="Unnamed subjects, as a share of all.")] = [0.0],  # noqa: B006 - the same
    source: Annotated[list[str], typer.Option(help=f"{', '.join(SOURCES)}: whose points.")] = ["package"],  # noqa: B006 - the same
    probe: Annotated[
        list[int], typer.Option(min=1, help="Photos of a probe; several: a track, compared with tracks.")
    ] = [1],  # noqa: B006 - the same
    face_width: Annotated[
        int | None, typer.Option(min=8, help="Pixels to which faces of probes are reduced: people far from a camera.")
    ] = None,
    draws: Annotated[int, typer.Option(min=1, help="Galleries drawn in each setting.")] = 10,
    same_above: Annotated[float | None, typer.Option(help="As in `models measure`: people under two names.")] = None,
) -> None:
    """Find the error rates that callers get when they request one, in galleries of your people."""
    if unknown := sorted(set(source) - set(SOURCES)):
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(SOURCES)}", param_hint="--source")
    with told(ValueError, OSError):
        templates = templates_of(images, (), way).with_face()
        if not templates.names:
            raise ValueError(f"no photo of {images} shows a face")
        if face_width and way.aligned:
            raise ValueError("--face-width needs whole photos, not aligned crops")
        searching = seen_from_afar(images, templates.names, face_width, way) if face_width else templates
    people = points.number_people([person_of(name) for name in templates.names])
    kept = one_person_each(templates.vectors, people, same_above) & searching.found
    people = points.number_people([str(name) for name in people[kept]])
    manifest = load_package(way.folder).manifest
    faces = Faces(templates.vectors[kept], people, manifest, searching.vectors[kept])
    about: dict[str, object] = {"images": str(images), "package": manifest.id, "draws": draws, "photos": len(people)}
    if face_width:
        about |= {"face_width": face_width, "unusable": int((~searching.found).sum())}
    found: list[Row] = []
    for setting in product(photos, subjects, unnamed, source, probe):
        try:
            found.append(measure(faces, Setting(*setting), draws))  # type: ignore[arg-type]  # it is one of SOURCES
        except ValueError as error:  # there are too few people for this setting
            Console(stderr=True).print(f"{setting[0] or 'mixed'} photos, points of {setting[3]}: left out, {error}")
        else:
            write(out, found, about)
    if not found:
        raise typer.Exit(2)
    Console(width=WIDTH).print(table(found))
    Console(width=WIDTH).print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in about.items()))


def table(found: Sequence[Row]) -> Table:
    """Return found rates divided by requested ones, by setting."""
    columns = [f"{what} {asked:g}" for what, asked in ASKED]
    shown = Table("photos", "probe", "subjects", "unnamed", "points", *columns, MISSED, MISSED_FOUND)
    for row in found:
        ratios = [(row.found.get(name), asked) for name, (_, asked) in zip(columns, ASKED, strict=True)]
        setting, missed = row.setting, (row.found.get(MISSED), row.found.get(MISSED_FOUND))
        shown.add_row(
            str(setting.photos or "mixed"),
            str(setting.probe),
            str(setting.subjects),
            f"{setting.unnamed:g}",
            setting.source,
            *("refused" if rate is None else f"{rate[0] / asked:.2f}" for rate, asked in ratios),
            *("" if rate is None else f"{rate[0]:.2%}" for rate in missed),
        )
    return shown


def write(folder: Path, found: Sequence[Row], about: Mapping[str, object]) -> None:
    """Write the rows as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"asked": about, "rows": [asdict(row) for row in found]}
    (folder / "rates.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
