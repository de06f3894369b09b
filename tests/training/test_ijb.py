"""IJB's protocol on a made-up set of its layout, beside a slow reading of its definition."""

from __future__ import annotations

import io
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from app.types import CANONICAL_LANDMARKS
from tests.conftest import PROJECT
from training.commands.evaluate import app
from training.data import open_dataset
from training.evaluation.ijb import FPIRS, IjbProtocol, measure, pool, read_protocol
from training.evaluation.photos import Templates

PEOPLE, FACES, SHIFT = 10, 8, 20
ROLES = (
    (0, "gallery", 7),
    (1, "gallery", 7),
    (2, "gallery", 8),
    (3, "one", 9),
    (4, "one", 9),
    (5, "one", 9),
    (6, "two", 10),
    (7, "two", 11),
)
"""Each person's faces: which template each belongs to, and its medium; 7 and 9 are videos."""


def write_set(root: Path, kind: str = "ijbc") -> None:
    """Two galleries of drawn people, five each, whose probes are two templates; one probe's only photos are broken."""
    drawn = open_dataset(f"procedural:people={PEOPLE},images={FACES},seed=3")
    (root / "meta").mkdir(parents=True)
    (root / "loose_crop").mkdir()
    members, points = [], []
    template_of = {
        (person, role): 100 + 3 * person + place
        for person in range(PEOPLE)
        for place, role in enumerate(("gallery", "one", "two"))
    }
    for person in range(PEOPLE):
        for face, role, medium in ROLES:
            name = f"{person * FACES + face + 1}.jpg"
            canvas = np.full((160, 160, 3), 90, np.uint8)
            canvas[SHIFT : SHIFT + 112, SHIFT : SHIFT + 112] = drawn[person * FACES + face][0]
            file = io.BytesIO()
            Image.fromarray(canvas).save(file, "JPEG", quality=95)
            broken = person == 9 and role == "two"
            (root / "loose_crop" / name).write_bytes(b"no photo" if broken else file.getvalue())
            members.append(f"{name} {template_of[person, role]} {100 * person + medium}")
            where = " ".join(f"{value:.3f}" for value in (CANONICAL_LANDMARKS + SHIFT).ravel())
            points.append(f"{name} {where} {0.5 + 0.05 * face:.2f}")
    (root / "meta" / f"{kind}_face_tid_mid.txt").write_text("\n".join(members) + "\n")
    (root / "meta" / f"{kind}_name_5pts_score.txt").write_text("\n".join(points[::-1]) + "\n")  # joined by name
    halves = ("S1", "S2") if kind == "ijbb" else ("G1", "G2")
    lists = {f"gallery_{half}": [(p, "gallery") for p in range(5 * i, 5 * i + 5)] for i, half in enumerate(halves)}
    lists["probe_mixed"] = list(product(range(PEOPLE), ("one", "two")))
    for name, entries in lists.items():
        rows = [f"{template_of[entry]},{1000 + entry[0]},img/{n}.jpg" for entry in entries for n in range(2)]
        text = "\n".join(["TEMPLATE_ID,SUBJECT_ID,FILENAME", *rows]) + "\n"
        (root / "meta" / f"{kind}_1N_{name}.csv").write_text(text)
    pairs = [
        f"{template_of[a, 'gallery']} {template_of[b, role]} {int(a == b)}"
        for a, b, role in product(range(PEOPLE), range(PEOPLE), ("one", "two"))
    ]
    (root / "meta" / f"{kind}_template_pair_label.txt").write_text("\n".join(pairs) + "\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ijb") / "IJBC"
    write_set(root)
    return root


def slow_template(
    made: Templates, protocol: IjbProtocol, template: int, *, by_score: bool
) -> NDArray[np.float64] | None:
    """A template as the definition says it, face by face; None without a face."""
    media: dict[int, list[NDArray[np.float64]]] = {}
    faces = protocol.faces
    for place, name in enumerate(faces.names):
        row = made.names.index(name)
        if faces.template[place] == template and made.found[row]:
            weight = faces.score[place] if by_score else 1.0
            media.setdefault(int(faces.medium[place]), []).append(weight * made.vectors[row].astype(np.float64))
    if not media:
        return None
    total = np.sum([np.mean(vectors, axis=0) for vectors in media.values()], axis=0)
    return np.asarray(total / np.linalg.norm(total))


def slow_score(first: NDArray[np.float64] | None, second: NDArray[np.float64] | None) -> float:
    return -1.0 if first is None or second is None else float(first @ second)


def slow_threshold(scores: list[float], share: float) -> float:
    """Just above the highest score that may not pass."""
    allowed = int(share * len(scores) + 1e-9)
    return float(np.nextafter(sorted(scores, reverse=True)[allowed], np.inf))


def slow_fnmr(vectors: dict[int, NDArray[np.float64] | None], protocol: IjbProtocol, fmr: float) -> float:
    scored = [(slow_score(vectors[a], vectors[b]), bool(same)) for a, b, same in protocol.pairs.tolist()]
    threshold = slow_threshold([score for score, same in scored if not same], fmr)
    mated = [score for score, same in scored if same]
    return sum(score < threshold for score in mated) / len(mated)


def slow_fnir(vectors: dict[int, NDArray[np.float64] | None], protocol: IjbProtocol, half: int, fpir: float) -> float:
    gallery = {protocol.subject_of[t]: vectors[t] for t in protocol.galleries[half].tolist()}
    strangers, missed, mates = [], 0, []
    for probe in protocol.probes.tolist():
        scores = {subject: slow_score(vectors[probe], enrolled) for subject, enrolled in gallery.items()}
        subject = protocol.subject_of[probe]
        if subject in gallery:
            others = [score for other, score in scores.items() if other != subject]
            mates.append((scores[subject], max(others)))
        else:
            strangers.append(max(scores.values()))
    threshold = slow_threshold(strangers, fpir)
    for mate_score, best_other in mates:
        missed += mate_score < threshold or best_other >= mate_score
    return missed / len(mates)


def random_templates(protocol: IjbProtocol) -> Templates:
    """Vectors that scatter widely around each person's own; two faces were not found."""
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(PEOPLE, 6))
    person = np.array([protocol.subject_of[t] - 1000 for t in protocol.faces.template.tolist()])
    vectors = centres[person] + 1.1 * rng.normal(size=(len(person), 6))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = np.ones(len(person), bool)
    found[[6, 7, 9]] = False  # one whole template, and one face of another
    names = protocol.faces.names
    failures = {names[place]: "no_face" for place in (6, 7, 9)}
    order = rng.permutation(len(names))  # templates come in any order
    return Templates(
        "toy@1", tuple(names[i] for i in order), (vectors * found[:, None]).astype(np.float32)[order], found[order],
        np.zeros(len(names), np.float32), failures, 1.0,
    )  # fmt: skip


@pytest.mark.parametrize("by_score", [False, True])
def test_figures_are_those_of_a_slow_reading(made: Path, by_score: bool) -> None:
    protocol = read_protocol(made)
    templates = random_templates(protocol)
    pooled = pool(templates, protocol, by_score=by_score)
    slow = {t: slow_template(templates, protocol, t, by_score=by_score) for t in protocol.subject_of}
    for name, vector, found in zip(pooled.names, pooled.vectors, pooled.found, strict=True):
        expected = slow[int(name.rpartition("/")[2])]
        assert found == (expected is not None)
        np.testing.assert_allclose(vector, np.zeros(6) if expected is None else expected, atol=1e-6)
    fmrs, fpirs = (0.3, 0.1, 0.02), (0.5, 0.2, 0.1)
    figures = measure(pooled, protocol, fmrs=fmrs, fpirs=fpirs, rounds=20)
    assert (figures.mated, figures.nonmated, figures.templates, figures.templates_without_face) == (20, 180, 30, 1)
    for rate, fmr in zip(figures.match_rates, fmrs, strict=True):
        assert 1 - rate.match.value == pytest.approx(slow_fnmr(slow, protocol, fmr))
        assert rate.match.low <= rate.match.value <= rate.match.high
    fnirs = [[slow_fnir(slow, protocol, half, fpir) for half in (0, 1)] for fpir in fpirs]
    assert len({value for pair in fnirs for value in pair}) > 2  # there is something to tell apart
    for draw, half in zip(figures.identification.draws, (0, 1), strict=True):
        assert (draw.subjects, draw.mated_searches, draw.stranger_searches) == (5, 10, 10)
        for rate, both in zip(draw.match_rates, fnirs, strict=True):
            assert 1 - rate.match.value == pytest.approx(both[half])
    for fpir, both in zip(fpirs, fnirs, strict=True):
        assert figures.identification.summary[f"FNIR at FPIR {fpir:g}"].mean == pytest.approx(np.mean(both))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ijbb", "ijbc"])
def test_a_folder_is_measured_from_its_photos(tmp_path: Path, kind: str) -> None:
    write_set(tmp_path / kind, kind)
    command = [
        "ijb", "--folder", str(tmp_path / kind), "--package", "sface", "--models", str(PROJECT / "models"), "--cache",
        str(PROJECT / "data" / "cache"), "--out", str(tmp_path / "out"), "--templates", str(tmp_path / "kept.npz"),
        "--rounds", "10",
    ]  # fmt: skip
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    result: dict[str, Any] = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(result["photos"]["failures"]) == {"79.jpg", "80.jpg"}
    assert result["templates_without_face"] == 1
    protocol, kept = read_protocol(tmp_path / kind), Templates.load(tmp_path / "kept.npz")
    crop = kept.vectors[kept.names.index("1.jpg")] @ kept.vectors[kept.names.index("2.jpg")]
    assert crop > 0.3  # two drawings of one person: the landmarks bring them into the crop
    slow = {t: slow_template(kept, protocol, t, by_score=False) for t in protocol.subject_of}
    assert [rate["at"] for rate in result["match_rates"]] == [0.01]
    assert 1 - result["match_rates"][0]["match"]["value"] == pytest.approx(slow_fnmr(slow, protocol, 0.01))
    for half, gallery in enumerate(result["identification"]["galleries"]):
        measured = {rate["at"]: 1 - rate["match"]["value"] for rate in gallery["match_rates"]}
        assert measured == {0.1: pytest.approx(slow_fnir(slow, protocol, half, 0.1))}
    assert (tmp_path / "out" / "det.svg").is_file()
    assert CliRunner().invoke(app, [*command, "--by-score", "--no-draw"]).exit_code == 0
    assert FPIRS[1:] == (0.01, 0.003)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("ijbc_face_tid_mid.txt", None, "neither ijbb_face_tid_mid.txt nor"),
        ("ijbc_face_tid_mid.txt", "1.jpg one 2\n", "can't be read together"),
        ("ijbc_name_5pts_score.txt", "1.jpg 1 2 3\n", "can't be read together"),
        ("ijbc_template_pair_label.txt", "1 2\n", "can't be read"),
        ("ijbc_template_pair_label.txt", "1 2 1\n", "no person for template 1"),
        ("ijbc_1N_gallery_G1.csv", None, "can't be read"),
        ("ijbc_1N_gallery_G1.csv", "TEMPLATE_ID,SUBJECT_ID\n100,1000\n101,1000\n", "with two templates"),
        ("ijbc_1N_probe_mixed.csv", "TEMPLATE_ID,WHO\n1,1\n", "SUBJECT_ID"),
        ("ijbc_1N_probe_mixed.csv", "TEMPLATE_ID,SUBJECT_ID\n7,1\n", "no person for template|no face of template 7"),
    ],
)
def test_lists_that_are_broken_are_named(made: Path, tmp_path: Path, name: str, text: str | None, problem: str) -> None:
    (tmp_path / "meta").mkdir()
    for path in (made / "meta").iterdir():
        if path.name != name:
            (tmp_path / "meta" / path.name).write_bytes(path.read_bytes())
    if text is not None:
        (tmp_path / "meta" / name).write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_protocol(tmp_path)
