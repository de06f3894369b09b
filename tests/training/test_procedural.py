"""Drawn faces: always the same, different people, learnable, not trivially so; and what every set of crops promises."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.types import CANONICAL_LANDMARKS
from training.data import drawn
from training.data.crops import all_crops, open_pixels
from training.data.dataset import FaceSet
from training.data.drawn import Person, ProceduralFaces, View, draw

Matrix = NDArray[np.float32]


@settings(max_examples=30)
@given(seed=st.integers(0, 2**40), person=st.integers(0, 2**30), image=st.integers(0, 99))
def test_every_image_is_a_crop_that_its_numbers_alone_decide(seed: int, person: int, image: int) -> None:
    faces = ProceduralFaces(1, 100, seed, first=person)
    crop, label = faces[image]
    assert crop.shape == (112, 112, 3)
    assert crop.dtype == np.uint8
    assert crop.std() > 3  # no image is blank
    assert label == 0
    np.testing.assert_array_equal(crop, ProceduralFaces(1, 100, seed, first=person)[image][0])


def test_a_person_is_the_same_whatever_else_is_in_the_set() -> None:
    wide, narrow = ProceduralFaces(10, 5, 3), ProceduralFaces(2, 5, 3, first=7)
    np.testing.assert_array_equal(wide[7 * 5 + 2][0], narrow[2][0])
    assert wide.people[7:9] == narrow.people
    np.testing.assert_array_equal(ProceduralFaces(8, 9, 3)[7 * 9 + 2][0], narrow[2][0])
    assert ProceduralFaces(2, 3, 0).describe(1) == ProceduralFaces(1, 9, 0).describe(1)


def test_labels_go_person_by_person_and_the_end_is_the_end() -> None:
    faces = ProceduralFaces(3, 2)
    assert len(faces) == 6
    assert faces.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert [faces[i][1] for i in range(6)] == [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(faces[-1][0], faces[5][0])
    assert len(list(iter(faces))) == 6
    with pytest.raises(IndexError):
        faces[6]


def test_decoded_copies_are_made_anew_when_faces_are_drawn_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ProceduralFaces(2, 3).stamp()
    monkeypatch.setattr(drawn, "DRAWING", drawn.DRAWING + 1)
    assert ProceduralFaces(2, 3).stamp() != before


def test_an_image_is_described_by_all_that_decides_it() -> None:
    sets = [ProceduralFaces(2, 3, 0), ProceduralFaces(2, 3, 1), ProceduralFaces(2, 3, 0, first=2)]
    assert len({faces.describe(index) for faces in sets for index in range(6)}) == 18


@pytest.mark.parametrize(
    ("people", "images", "seed", "first"), [(0, 1, 0, 0), (1, 0, 0, 0), (1, 1, -1, 0), (1, 1, 0, -1)]
)
def test_numbers_that_make_no_set_are_refused(people: int, images: int, seed: int, first: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        ProceduralFaces(people, images, seed, first=first)


def test_the_eyes_are_where_the_canonical_landmarks_are() -> None:
    """Without noise or pose the pupils are the darkest spots near the canonical eyes."""
    found = []
    for number in range(12):
        person = Person.random(np.random.default_rng([1, number]))
        view = View.random(np.random.default_rng(number))
        pose = {"yaw": 0.0, "pitch": 0.0, "roll": 0.0, "jitter": np.zeros((5, 2))}
        camera = {"contrast": 0.0, "noise": 0.0, "blur": 0.0, "shrink": 112, "exposure": 1.0}
        still = replace(view, **pose, **camera, gaze=np.zeros(2), open_eyes=1.0)  # type: ignore[arg-type]
        grey = cv2.cvtColor(draw(person, still), cv2.COLOR_RGB2GRAY)
        for x, y in np.rint(CANONICAL_LANDMARKS[:2]).astype(int):
            window = cv2.GaussianBlur(grey, (3, 3), 0)[y - 6 : y + 7, x - 6 : x + 7]
            dy, dx = np.unravel_index(window.argmin(), window.shape)
            found.append(np.hypot(dy - 6, dx - 6))
    assert np.median(found) < 3.5


def _pixels(faces: FaceSet) -> Matrix:
    """(N, 768) 16-pixel images, each with mean 0 and length 1."""
    small = [cv2.resize(faces[i][0], (16, 16), interpolation=cv2.INTER_AREA) for i in range(len(faces))]
    rows = np.stack([image.ravel() for image in small])
    return _unit(rows.astype(np.float32) - rows.mean(1, keepdims=True, dtype=np.float32))


def _unit(rows: Matrix) -> Matrix:
    unit: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _mated_above_non_mated(rows: Matrix, labels: NDArray[np.int64], fmr: float = 0.05) -> float:
    """The share of mated pairs that score above what ``fmr`` of the non-mated ones reach."""
    i, j = np.triu_indices(len(rows), 1)
    scores, mated = (rows @ rows.T)[i, j], labels[i] == labels[j]
    return float((scores[mated] > np.quantile(scores[~mated], 1 - fmr)).mean())


@pytest.mark.long
def test_unseen_people_can_be_learned_but_not_read_off_the_pixels() -> None:
    """Discriminant directions (Fisher, 1936) of other people tell new people apart far better than raw pixels do."""
    train, test = ProceduralFaces(70, 8, seed=1), ProceduralFaces(40, 6, seed=1, first=10**6)
    X, T = _pixels(train), _pixels(test)
    raw = _mated_above_non_mated(T, test.labels)
    centres = np.stack([X[train.labels == label].mean(0) for label in range(len(train.people))])
    within = np.cov((X - centres[train.labels]).T) + 1e-4 * np.eye(X.shape[1])
    whiten = np.linalg.inv(np.linalg.cholesky(within)).T
    _, _, directions = np.linalg.svd((centres - centres.mean(0)) @ whiten, full_matrices=False)
    learned = _mated_above_non_mated(
        _unit(((T - X.mean(0)) @ whiten @ directions[:40].T).astype(np.float32)), test.labels
    )
    assert raw < 0.4
    assert learned > 1.5 * raw


def test_taken_crops_close_the_gaps_that_dropped_people_leave() -> None:
    faces = ProceduralFaces(4, 3)
    taken = all_crops(faces, open_pixels(faces, None)).take([9, 1, 0])
    assert taken.people == ["drawn-0", "drawn-3"]
    assert taken.labels.tolist() == [1, 0, 0]
    np.testing.assert_array_equal(taken.images([0])[0], faces[9][0])
