"""The detector: which faces it finds, where, and from how many threads at once."""

from __future__ import annotations

import itertools
import random
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.errors import Unusable
from app.face import detect
from app.face.detect import Detector, merge, suppress
from app.face.formats import Limits
from app.face.image import decode
from app.types import Box, Detection, Pixels
from tests.conftest import PROJECT
from tests.support import ready
from tests.support.images import resized

FACE = Box(178.0, 62.5, 90.4, 113.9)
"""The astronaut's, in her photo of 512 × 512, as YuNet alone sees it at that size."""
LANDMARKS = np.array([[200.1, 101.8], [247.2, 102.6], [220.3, 124.7], [198.9, 143.2], [239.8, 143.9]])


@pytest.fixture(scope="module")
def detector(yunet: Path) -> Detector:
    return Detector(yunet)


@pytest.fixture(scope="module")
def coffee() -> Pixels:
    """(400, 600, 3): a cup, and no face."""
    data = pytest.importorskip("skimage.data", reason="the dev extra brings scikit-image's photos")
    photo: Pixels = data.coffee()
    return photo


def on_background(background: Pixels, size: tuple[int, int], pixels: Pixels, x: int, y: int) -> Pixels:
    """The picture pasted at x, y; what reaches over the edge is lost."""
    width, height = size
    canvas = np.asarray(cv2.resize(background, size, interpolation=cv2.INTER_CUBIC), np.uint8)
    fitting = pixels[: height - y, : width - x]
    canvas[y : y + fitting.shape[0], x : x + fitting.shape[1]] = fitting
    return canvas


def moved(box: Box, scale: float, x: float, y: float) -> Box:
    return Box(box.x * scale + x, box.y * scale + y, box.width * scale, box.height * scale)


def overlap(a: Box, b: Box) -> float:
    """Intersection over union."""
    width = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
    height = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
    shared = max(0.0, width) * max(0.0, height)
    return shared / (a.area + b.area - shared)


def assert_only_face(found: list[Detection], box: Box, landmarks: NDArray[np.float64], *, least: float = 0.6) -> None:
    assert len(found) == 1
    assert overlap(found[0].box, box) > least
    errors = np.linalg.norm(found[0].landmarks - landmarks, axis=1)
    assert errors.mean() < 0.1 * box.width


class TestSizes:
    def test_a_portrait_holds_one_face(self, detector: Detector, astronaut: Pixels) -> None:
        found = detector.detect(astronaut)
        assert_only_face(found, FACE, LANDMARKS, least=0.9)
        assert found[0].score > 0.9
        assert found[0].landmarks.shape == (5, 2)
        assert found[0].landmarks.dtype == np.float32

    @pytest.mark.parametrize("width", [20, 24, 32, 48, 90, 200, 400, 700])
    def test_one_of_this_width_is_found_in_a_large_photo(
        self, detector: Detector, astronaut: Pixels, coffee: Pixels, width: int
    ) -> None:
        scale, x, y = width / FACE.width, 301, 17
        canvas = on_background(coffee, (1800, 1350), resized(astronaut[:, 90:400], scale), x, y)
        found = detector.detect(canvas)
        assert_only_face(
            found, moved(FACE, scale, x - 90 * scale, y), LANDMARKS * scale + (x - 90 * scale, y), least=0.5
        )

    @pytest.mark.parametrize("width", [60, 150, 500, 2000])
    @pytest.mark.parametrize(
        "cut", [(0, 0, 1, 1), (-0.1, 0.25, 1.1, 1.1), (-0.1, -0.2, 1.1, 0.85), (0.25, -0.1, 1.2, 1.1)]
    )
    def test_one_that_fills_the_frame_or_is_cut_by_it_is_found(
        self, detector: Detector, astronaut: Pixels, width: int, cut: tuple[float, float, float, float]
    ) -> None:
        """Cut at the box, at the forehead, at the chin and at one side."""
        left, right = (round(FACE.x + share * FACE.width) for share in (cut[0], cut[2]))
        top, bottom = (round(FACE.y + share * FACE.height) for share in (cut[1], cut[3]))
        scale = width / FACE.width
        found = detector.detect(resized(astronaut[top:bottom, left:right], scale))
        box = moved(FACE, scale, -left * scale, -top * scale)
        assert_only_face(found, box, (LANDMARKS - (left, top)) * scale, least=0.5)

    def test_faces_of_very_different_size_are_found_together(
        self, detector: Detector, astronaut: Pixels, coffee: Pixels
    ) -> None:
        canvas = on_background(coffee, (2000, 1500), resized(astronaut, 2.7), 700, 60)
        widths = (24, 40, 90)
        for width, y in zip(widths, (50, 300, 800), strict=True):
            small = resized(astronaut, width / FACE.width)
            canvas[y : y + small.shape[0], 20 : 20 + small.shape[1]] = small
        found = sorted(detection.box.width for detection in detector.detect(canvas))
        assert found == pytest.approx([*widths, 2.7 * FACE.width], rel=0.15)

    def test_what_is_smaller_than_asked_for_is_left_out(
        self, detector: Detector, astronaut: Pixels, coffee: Pixels
    ) -> None:
        canvas = on_background(coffee, (900, 700), resized(astronaut, 0.5), 100, 100)
        assert len(detector.detect(canvas, min_face=40)) == 1
        assert detector.detect(canvas, min_face=70) == []

    def test_half_the_pixels_show_the_same_faces(self, detector: Detector, astronaut: Pixels, coffee: Pixels) -> None:
        canvas = on_background(coffee, (1600, 1200), resized(astronaut, 30 / FACE.width), 500, 600)
        (whole,) = detector.detect(canvas)
        (half,) = detector.detect(resized(canvas, 0.5), min_face=10)
        assert overlap(moved(half.box, 2, 0.5, 0.5), whole.box) > 0.7

    def test_a_photo_without_a_face_has_none(self, detector: Detector, coffee: Pixels) -> None:
        assert detector.detect(coffee) == []

    @pytest.mark.parametrize("shape", [(16, 16), (16, 3000), (3000, 16), (33, 47), (1, 1), (2500, 1700)])
    def test_any_shape_is_looked_at(self, detector: Detector, shape: tuple[int, int]) -> None:
        assert detector.detect(np.full((*shape, 3), 127, np.uint8)) == []

    def test_scores_fall_along_the_answer(self, detector: Detector, astronaut: Pixels) -> None:
        blurred = np.asarray(cv2.GaussianBlur(astronaut, (0, 0), 4), np.uint8)
        faces = np.concatenate([blurred, astronaut], axis=1)
        scores = [detection.score for detection in detector.detect(faces)]
        assert len(scores) == 2
        assert scores[0] > scores[1] + 0.02


PLACES = ((0.5, 0.5), (0.5, 0.31), (0.27, 0.5), (0.9, 0.5))
"""Of a face's centre, as shares of the photo's width and height: pieces meet on its middle lines."""


@pytest.fixture(scope="module")
def portraits() -> list[tuple[Pixels, Detection]]:
    """Photos in the public domain, with the only face in each."""
    found = []
    for name in ("collins.jpg", "hopper.jpg"):
        pixels = decode((PROJECT / "docs" / "samples" / name).read_bytes(), Limits()).pixels
        (face,) = Detector(ready.ready("yunet")).detect(pixels)
        found.append((pixels, face))
    return found


class TestLargePhotos:
    """Photos of 16 megapixels and more, as they are searched: JPEGs decoded at half their size, for faces of 10 pixels.

    Pieces that overlapped by 128 pixels lost faces of 190 to 280 pixels in the middle.
    """

    @pytest.mark.parametrize("width", [190, *(pytest.param(width, marks=pytest.mark.long) for width in (225, 260))])
    def test_faces_where_pieces_meet_are_found(
        self, detector: Detector, coffee: Pixels, portraits: list[tuple[Pixels, Detection]], width: int
    ) -> None:
        self.found(detector, coffee, portraits[0], size=(3000, 2000), width=width / 2, place=PLACES[0])

    @pytest.mark.long
    @pytest.mark.parametrize("size", [(2304, 1728), (3000, 2000), (4032, 3024)])
    @pytest.mark.parametrize("width", [36, 156, 228, 300, 600])
    def test_faces_of_every_size_and_place_are_found(
        self,
        detector: Detector,
        coffee: Pixels,
        portraits: list[tuple[Pixels, Detection]],
        size: tuple[int, int],
        width: int,
    ) -> None:
        for portrait, place in itertools.product(portraits, PLACES):
            self.found(detector, coffee, portrait, size=size, width=width / 2, place=place)

    def found(
        self,
        detector: Detector,
        background: Pixels,
        portrait: tuple[Pixels, Detection],
        *,
        size: tuple[int, int],
        width: float,
        place: tuple[float, float],
    ) -> None:
        """Paste the portrait's head so that its face is ``width`` wide and centred at the place; assert it is found."""
        pixels, face = portrait
        scale = width / face.box.width
        left, top = (max(0, round(start)) for start in (face.box.x - width_of(face), face.box.y - width_of(face) / 2))
        right, bottom = round(face.box.x + 2 * width_of(face)), round(face.box.y + 2 * face.box.height)
        head = resized(pixels[top:bottom, left:right], scale)
        centre = face.box.x + face.box.width / 2 - left, face.box.y + face.box.height / 2 - top
        x, y = (max(0, round(share * side - at * scale)) for share, side, at in zip(place, size, centre, strict=True))
        canvas = on_background(background, size, head, x, y)
        box = moved(face.box, scale, x - left * scale, y - top * scale)
        (found,) = detector.detect(canvas, min_face=10)
        assert overlap(found.box, box) > 0.5
        errors = np.linalg.norm(found.landmarks - (face.landmarks - (left, top)) * scale - (x, y), axis=1)
        assert errors.mean() < 0.1 * width + 1
        assert found.score > 0.8


def width_of(face: Detection) -> float:
    return face.box.width


class TestThreads:
    def test_many_threads_in_one_detector_get_what_one_gets(self, detector: Detector, astronaut: Pixels) -> None:
        photos = [resized(astronaut, side / 512) for side in (200, 260, 330, 400, 512)] * 8
        alone = [detector.detect(photo) for photo in photos[:5]]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(detector.detect, photos))
        for index, found in enumerate(together):
            wanted = alone[index % 5]
            assert len(found) == len(wanted) == 1
            assert found[0].box == wanted[0].box
            assert np.array_equal(found[0].landmarks, wanted[0].landmarks)

    def test_making_one_writes_nothing(self, yunet: Path, capfd: pytest.CaptureFixture[str]) -> None:
        Detector(yunet)
        assert capfd.readouterr() == ("", "")

    def test_a_file_that_is_no_model_is_refused_at_once(self, tmp_path: Path) -> None:
        for content in (None, b"", b"no model"):
            path = tmp_path / "model.onnx"
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(Unusable) as caught:
                Detector(path)
            assert caught.value.code == "detector_unreadable"


def sight(*box: float, score: float, seen: float) -> list[float]:
    return [*box, *([0.0] * 10), score, seen]


numbers = st.floats(0, 100)
boxes = st.tuples(numbers, numbers, st.floats(1, 80), st.floats(1, 80), st.floats(0.1, 1), st.floats(5, 600))


class TestMerge:
    @given(st.lists(boxes, max_size=12, unique_by=lambda box: box[4]))
    def test_suppression_keeps_what_the_plain_rule_keeps(self, found: list[tuple[float, ...]]) -> None:
        def rank(box: tuple[float, ...]) -> float:
            return box[4] * min(1.0, box[5] / detect.SURE_WIDTH, detect.LARGEST_WIDTH / box[5])

        kept: list[tuple[float, ...]] = []
        for box in sorted(found, key=rank, reverse=True):
            if all(overlap(Box(*box[:4]), Box(*other[:4])) <= detect.NMS_THRESHOLD for other in kept):
                kept.append(box)
        sights = np.array([sight(*box[:4], score=box[4], seen=box[5]) for box in found]).reshape(-1, 16)
        assert [tuple(row[[0, 1, 2, 3, 14, 15]]) for row in suppress(sights)] == kept

    def test_the_better_scaled_sight_wins(self) -> None:
        sights = np.array([sight(10, 10, 80, 80, score=0.93, seen=700), sight(0, 0, 90, 90, score=0.90, seen=90)])
        assert merge(sights).tolist() == [sights[1].tolist()]

    def test_a_part_of_a_face_is_no_face(self) -> None:
        whole, eye, beside = (
            sight(0, 0, 100, 120, score=0.8, seen=100),
            sight(20, 30, 20, 20, score=0.9, seen=60),
            sight(90, 0, 40, 50, score=0.7, seen=50),
        )
        assert merge(np.array([whole, eye, beside])).tolist() == [whole, beside]

    def test_half_of_a_sure_face_is_no_face_but_a_neighbour_is(self) -> None:
        whole, half, beside, child = (
            sight(0, 0, 100, 120, score=0.94, seen=100),
            sight(60, 20, 56, 70, score=0.76, seen=56),
            sight(80, 0, 60, 60, score=0.76, seen=60),
            sight(60, 60, 56, 70, score=0.91, seen=56),
        )
        assert merge(np.array([whole, half])).tolist() == [whole]
        assert merge(np.array([whole, beside])).tolist() == [whole, beside]
        assert len(merge(np.array([whole, child]))) == 2, "a sure one is somebody"


class TestOnRealPhotos:
    def test_every_named_person_of_a_sample_of_lfw_view_1_is_found(self, shared_data: Path, detector: Detector) -> None:
        """The person a photo is named after is in its middle. (Of all 4,992 photos none is missed.)"""
        for data in view_1_photos(shared_data, 60):
            found = detector.detect(decode(data, Limits()).pixels)
            assert any(holds(detection.box, 125, 125) and detection.score > 0.8 for detection in found)


def holds(box: Box, x: float, y: float) -> bool:
    return box.x < x < box.x + box.width and box.y < y < box.y + box.height


def view_1_photos(shared_data: Path, count: int) -> list[bytes]:
    lines = (shared_data / "lfw" / "pairsDevTest.txt").read_text(encoding="utf-8").splitlines()[1:]
    names = sorted({(line.split("\t")[0], int(line.split("\t")[1])) for line in lines})
    wanted = random.Random(3).sample(names, count)
    with tarfile.open(shared_data / "lfw" / "lfw-deepfunneled.tar") as tar:
        files = [tar.extractfile(f"lfw-deepfunneled/{name}/{name}_{number:04d}.jpg") for name, number in wanted]
        return [file.read() for file in files if file]
