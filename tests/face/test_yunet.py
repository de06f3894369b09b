"""YuNet in ONNX Runtime against OpenCV's FaceDetectorYN, which runs the file as it came."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from app.errors import Unusable
from app.face.yunet import SEEN_WIDTH, Canvas, Sights, YuNet, YunetRows
from app.inference import session
from app.inference.session import Session
from app.models.packages import locate
from app.models.yunet_graph import check_yunet, rewrite_yunet
from app.package.folders import load_package
from app.types import Pixels
from tests.conftest import PROJECT
from tests.support.packages import contract_model

SCORE, OVERLAP = 0.03, 0.3
PIXELS = 0.02
"""How far a coordinate may be off: a hundred times less than what a face's landmarks tremble by."""

Oracle = Callable[[Pixels], YunetRows]


@pytest.fixture(scope="module")
def source() -> Path:
    return locate(load_package(PROJECT / "models" / "yunet"), Path())


@pytest.fixture(scope="module")
def opencv(source: Path) -> Oracle:
    detector = cv2.FaceDetectorYN.create(str(source), "", (32, 32), SCORE, OVERLAP)

    def look(pixels: Pixels) -> YunetRows:
        detector.setInputSize((pixels.shape[1], pixels.shape[0]))
        _, found = detector.detect(np.ascontiguousarray(pixels[:, :, ::-1]))
        rows: object = () if found is None else found  # None, of which OpenCV's type stubs know nothing
        return np.array(rows, np.float32).reshape(-1, 15)

    return look


@pytest.fixture(scope="module")
def network(yunet: Path) -> YuNet:
    return YuNet(Session(yunet, "cpu"), score_threshold=SCORE, nms_threshold=OVERLAP)


@pytest.fixture(scope="module")
def batching(yunet: Path) -> Iterator[YuNet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(session.FIXED_BATCH, "cpu", 1)
        canvases = (Canvas(4, 128, 128), Canvas(3, 160, 160))
        by_canvas = {canvas: Session(yunet, "cpu", shape=(*canvas, 3)) for canvas in canvases}
        made = YuNet(Session(yunet, "cpu"), by_canvas, score_threshold=SCORE, nms_threshold=OVERLAP)
        yield made
        made.close()
    assert all(set(fixed.shapes) == {(*canvas, 3)} for canvas, fixed in by_canvas.items())


def assert_same(found: Sights, expected: YunetRows | Sights) -> None:
    assert len(found) == len(expected)
    assert np.array_equal(found[:, SEEN_WIDTH], found[:, 2])
    assert np.allclose(found[:, :14], expected[:, :14], atol=PIXELS)
    assert np.allclose(found[:, 14], expected[:, 14], atol=1e-4)


@pytest.mark.parametrize("size", [(512, 512), (250, 250), (301, 97), (97, 301), (128, 128), (33, 32), (16, 16), (1, 1)])
def test_a_face_at_any_size(network: YuNet, opencv: Oracle, astronaut: Pixels, size: tuple[int, int]) -> None:
    photo = np.asarray(cv2.resize(astronaut, size, interpolation=cv2.INTER_AREA), np.uint8)
    assert_same(network.detect(photo), opencv(photo))


def test_whatever_the_picture_is(network: YuNet, opencv: Oracle) -> None:
    """Noise is full of sights that score just enough, or overlap just too much: rounding decides some of them."""
    random, rows, alike = np.random.default_rng(0), 0, 0
    for number in range(40):
        width, height = (int(side) for side in random.integers(1, 200, 2))
        block = (1, 4, 16)[number % 3]
        coarse = random.integers(0, 256, (-(-height // block), -(-width // block), 3), np.uint8)
        picture = np.ascontiguousarray(coarse.repeat(block, axis=0).repeat(block, axis=1)[:height, :width])
        found, expected = network.detect(picture), opencv(picture)
        off = np.abs(found[:, None, :SEEN_WIDTH] - expected[None, :, :]).max(axis=2)
        alike += int((off < PIXELS).any(axis=0).sum()) + int((off < PIXELS).any(axis=1).sum())
        rows += len(found) + len(expected)
    assert rows > 400
    assert alike >= 0.99 * rows


def test_callers_whose_inputs_are_joined_get_their_own(network: YuNet, batching: YuNet, astronaut: Pixels) -> None:
    photos = [
        np.asarray(cv2.resize(np.roll(astronaut, 40 * turn, axis=1), (side, side)), np.uint8)
        for turn in range(8)
        for side in (128, 160)
    ]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(batching.detect, photos))
    for photo, found in zip(photos, together, strict=True):
        assert_same(found, network.detect(photo))


def test_another_graph_is_no_yunet() -> None:
    with pytest.raises(Unusable) as caught:
        rewrite_yunet(contract_model())
    assert caught.value.code == "package_not_preparable"


def test_a_graph_that_answers_otherwise_is_refused(source: Path) -> None:
    original = ModelProto.FromString(source.read_bytes())
    wrong = rewrite_yunet(original)
    first = next(node for node in wrong.graph.node if node.op_type == "Conv")
    weights = next(tensor for tensor in wrong.graph.initializer if tensor.name == first.input[1])
    turned = numpy_helper.to_array(weights)[:, ::-1]  # red and blue change places
    weights.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(turned), weights.name))
    with pytest.raises(Unusable) as caught:
        check_yunet(original, wrong)
    assert caught.value.code == "package_not_preparable"


KEPT = """
import resource, sys
from pathlib import Path
import numpy as np
from app.inference import session
from app.inference.session import Session

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

session = Session(Path(sys.argv[1]), "cpu", sizes_vary=True)
session.run(np.zeros((1, 256, 256, 3), np.uint8))
before = resident()
session.run(np.zeros((1, 1536, 1536, 3), np.uint8))
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="a process's memory is read from Linux's /proc")
def test_a_large_photo_leaves_no_memory_behind(yunet: Path) -> None:
    """A run of 1536 × 1536 takes 130 MB; kept, they would be lost to every session that ever saw a large photo. In a
    process of its own: what other tests freed and took again would count too."""
    told = subprocess.run(
        [sys.executable, "-c", KEPT, str(yunet)], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert int(told.stdout) < 50e6
