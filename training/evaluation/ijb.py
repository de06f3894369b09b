"""IJB-B's and IJB-C's protocol (Whitelam et al., CVPRW 2017; Maze et al., ICB 2018): templates of several faces, 1:1
over listed pairs, 1:N against two galleries of different people.

A folder has the layout of InsightFace's evaluation: ``loose_crop/`` with a photo per face, and in ``meta/``, where X is
``ijbb`` or ``ijbc``:

- ``X_face_tid_mid.txt``: photo, template, medium (a still image or a video) of each face
- ``X_name_5pts_score.txt``: photo, five landmarks x y in it, the detector's score
- ``X_template_pair_label.txt``: two templates, and 1 if they show one person
- ``X_1N_gallery_G1.csv``, ``…_G2.csv`` (IJB-B: S1, S2), ``X_1N_probe_mixed.csv``: ``TEMPLATE_ID,SUBJECT_ID,…``
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.models.calibration.intervals import Bools, Floats, Ints
from training.evaluation import identification, protocols
from training.evaluation.identification import Draw, Identifications
from training.evaluation.photos import Templates
from training.evaluation.protocols import NO_MATCH, MatchRate

FMRS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
FPIRS = (0.1, 0.01, 0.003)
PAIRS_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True)
class Faces:
    """The faces of all templates, in the order of the list."""

    names: tuple[str, ...]
    """Names of the photos in ``loose_crop``."""
    template: Ints
    medium: Ints
    landmarks: NDArray[np.float64]
    """(N, 5, 2) x, y in the photo."""
    score: Floats
    """(N,) scores of the detector, 0…1."""


@dataclass(frozen=True, slots=True)
class IjbProtocol:
    """A folder's lists."""

    faces: Faces
    pairs: Ints
    """(P, 3): two templates, and whether they show one person."""
    subject_of: Mapping[int, int]
    """The person of each template in a gallery or among the probes."""
    galleries: tuple[Ints, Ints]
    """The templates enrolled in each half, one per person."""
    probes: Ints
    """The templates to search with in both halves."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of both protocols, with intervals by bootstrap over people."""

    templates: int
    templates_without_face: int
    mated: int
    nonmated: int
    match_rates: tuple[MatchRate, ...]
    """1 − FNMR at each FMR that these pairs can measure."""
    identification: Identifications
    """One draw for each gallery."""


def read_protocol(folder: Path) -> IjbProtocol:
    """Read the lists in ``folder/meta``. Raises ValueError if they are missing, broken or contradict each other."""
    meta = folder / "meta"
    kind = next((name for name in ("ijbb", "ijbc") if (meta / f"{name}_face_tid_mid.txt").is_file()), None)
    if kind is None:
        raise ValueError(f"{meta} has neither ijbb_face_tid_mid.txt nor ijbc_face_tid_mid.txt")
    halves = ("S1", "S2") if kind == "ijbb" else ("G1", "G2")
    lists = [_subjects(meta / f"{kind}_1N_gallery_{half}.csv") for half in halves]
    for half, enrolled in zip(halves, lists, strict=True):
        if len(set(enrolled.values())) < len(enrolled):
            raise ValueError(f"{kind}_1N_gallery_{half}.csv enrolls a person with two templates")
    probes = _subjects(meta / f"{kind}_1N_probe_mixed.csv")
    subject_of = lists[0] | lists[1] | probes
    pairs = _numbers(meta / f"{kind}_template_pair_label.txt", 3)
    faces = _faces(meta / f"{kind}_face_tid_mid.txt", meta / f"{kind}_name_5pts_score.txt")
    unknown = set(np.unique(pairs[:, :2]).tolist()) - subject_of.keys()
    empty = subject_of.keys() - set(faces.template.tolist())
    if unknown or empty:
        problem = f"no person for template {min(unknown)}" if unknown else f"no face of template {min(empty)}"
        raise ValueError(f"{meta}: the lists name {problem}")
    first, second = (np.array(sorted(names), np.int64) for names in lists)
    return IjbProtocol(faces, pairs, subject_of, (first, second), np.array(sorted(probes), np.int64))


def _numbers(path: Path, columns: int) -> Ints:
    try:
        return np.loadtxt(path, np.int64, usecols=range(columns), ndmin=2)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can't be read: {error}") from error


def _subjects(path: Path) -> dict[int, int]:
    """Read the person of each template from a CSV file with a line per face."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {int(row["TEMPLATE_ID"]): int(row["SUBJECT_ID"]) for row in csv.DictReader(file)}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} can't be read: {error!r}") from error


def _faces(members: Path, points: Path) -> Faces:
    try:
        placed = [line.split() for line in members.read_text("utf-8").splitlines() if line.strip()]
        points_of = {
            line.split()[0]: line.split()[1:] for line in points.read_text("utf-8").splitlines() if line.strip()
        }
        names = tuple(row[0] for row in placed)
        numbers = np.array([[float(value) for value in points_of[name]] for name in names])
        template, medium = (np.array([int(row[column]) for row in placed], np.int64) for column in (1, 2))
        return Faces(names, template, medium, numbers[:, :10].reshape(-1, 5, 2), numbers[:, 10])
    except (OSError, KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{members} and {points} can't be read together: {error!r}") from error


def pool(made: Templates, protocol: IjbProtocol, *, by_score: bool = False) -> Templates:
    """Return a template for each set of faces, named ``person/template``: the mean over each medium's faces, summed
    over the media and normalised. So a video counts as one still image.

    A photo without a face is left out of its set. ``by_score`` weights each face by its detector's score, as
    InsightFace's evaluation does.
    """
    faces = protocol.faces
    rows = made.rows(faces.names)
    seen = made.found[rows]
    rows, template, medium, score = rows[seen], faces.template[seen], faces.medium[seen], faces.score[seen]
    vectors = made.vectors[rows] * (score if by_score else np.ones_like(score))[:, None].astype(np.float32)
    media, of_medium, counts = np.unique(
        np.stack([template, medium], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    means = _sums(vectors, of_medium.ravel(), len(media)) / counts.astype(np.float32)[:, None]
    templates = np.array(sorted(protocol.subject_of), np.int64)
    wanted = np.isin(media[:, 0], templates)
    sums = _sums(means[wanted], np.searchsorted(templates, media[wanted, 0]), len(templates))
    length = np.linalg.norm(sums, axis=1, keepdims=True)
    shown = length[:, 0] > 0
    names = tuple(f"{protocol.subject_of[number]}/{number}" for number in templates.tolist())
    return Templates(
        made.package,
        names,
        np.divide(sums, length, out=np.zeros_like(sums), where=length > 0),
        shown,
        np.zeros(len(names), np.float32),
        {name: "no_face" for name, there in zip(names, shown, strict=True) if not there},
        made.seconds,
    )


def _sums(vectors: NDArray[np.float32], group: Ints, groups: int) -> NDArray[np.float32]:
    """Return the sum of each group's vectors: (N, D) → (groups, D), zero for an empty group."""
    order = np.argsort(group, kind="stable")
    there, starts = np.unique(group[order], return_index=True)
    sums = np.zeros((groups, vectors.shape[1]), np.float32)
    if len(there):
        sums[there] = np.add.reduceat(vectors[order], starts, axis=0)
    return sums


def pair_scores(pooled: Templates, protocol: IjbProtocol) -> Floats:
    """Return the cosine of each listed pair, (P,); `NO_MATCH` if a template has no face."""
    templates = np.array(sorted(protocol.subject_of), np.int64)
    first, second = (np.searchsorted(templates, protocol.pairs[:, side]) for side in (0, 1))
    scores = np.empty(len(first))
    for start in range(0, len(first), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        scores[part] = np.einsum("pd,pd->p", pooled.vectors[first[part]], pooled.vectors[second[part]])
    both_shown: Bools = pooled.found[first] & pooled.found[second]
    return np.where(both_shown, np.clip(scores, -1, 1), NO_MATCH)


def draws(protocol: IjbProtocol) -> list[Draw]:
    """Return each gallery with the probes of its people and, as strangers, all other probes."""

    def name(template: int) -> str:
        return f"{protocol.subject_of[template]}/{template}"

    made = []
    for half, gallery in enumerate(protocol.galleries):
        place = {protocol.subject_of[template]: row for row, template in enumerate(gallery.tolist())}
        probes = [(template, place.get(protocol.subject_of[template])) for template in protocol.probes.tolist()]
        made.append(
            Draw(
                seed=half + 1,
                enrolled=tuple(name(template) for template in gallery.tolist()),
                mates=tuple(name(template) for template, row in probes if row is not None),
                strangers=tuple(name(template) for template, row in probes if row is None),
                columns=tuple(row for _, row in probes if row is not None),
            )
        )
    return made


def measure(
    pooled: Templates,
    protocol: IjbProtocol,
    *,
    fmrs: Sequence[float] = FMRS,
    fpirs: Sequence[float] = FPIRS,
    rounds: int = 200,
    seed: int = 0,
) -> Figures:
    """Measure both protocols on the pooled templates."""
    scores, mated = pair_scores(pooled, protocol), protocol.pairs[:, 2] == 1
    numbered = {subject: number for number, subject in enumerate(sorted(set(protocol.subject_of.values())))}
    owner = np.array([numbered[protocol.subject_of[template]] for template in sorted(protocol.subject_of)], np.int64)
    people = owner[np.searchsorted(sorted(protocol.subject_of), protocol.pairs[:, :2])]
    return Figures(
        templates=len(pooled.names),
        templates_without_face=len(pooled.failures),
        mated=int(mated.sum()),
        nonmated=int((~mated).sum()),
        match_rates=protocols.match_rates(scores, mated, people, fmrs, rounds=rounds, seed=seed),
        identification=identification.measure(pooled, draws(protocol), fpirs=fpirs, rounds=rounds, seed=seed),
    )
