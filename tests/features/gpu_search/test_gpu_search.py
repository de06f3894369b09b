"""Search on a GPU, on machines without one: the same indexes on the CPU stand in for the GPU's."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from typing import get_args

import faiss
import numpy as np
import onnxruntime as ort
import pytest

from app.choices import GpuSearch, IndexKind
from app.features.gpu_search import feature, product
from app.features.gpu_search.feature import GpuCopy, GpuRows, find_gpu
from app.features.gpu_search.product import PART_ROWS, PROBES, SEGMENT, ProductIndex
from app.inference.session import CPU, CUDA
from app.search import index as module
from app.search.index import ExactScan, Index, Rows
from app.search.quantised import rounding
from tests.support.cpu_gpu import CpuGpu
from tests.support.index_faces import Face, block, random_units

DIMENSION = 32


@pytest.fixture(params=get_args(GpuSearch))
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuGpu]:
    monkeypatch.setattr(module, "QUICK_NUMBERS", 0)
    made = CpuGpu(search=request.param)
    yield made
    made.close()


def both(gpu: CpuGpu, kind: IndexKind, faces: list[Face]) -> tuple[Index, Index]:
    indexes = Index(DIMENSION), Index(DIMENSION, kind=kind, gpu=gpu)
    for one in indexes:
        one.add(block(faces, DIMENSION))
    return indexes


def people(count: int, first: int = 1, seed: int = 0) -> list[Face]:
    vectors = random_units(count, DIMENSION, seed=seed)
    return [(key, key // 3, 50.0, vector) for key, vector in enumerate(vectors, first)]


@pytest.mark.parametrize("kind", get_args(IndexKind))
def test_a_gpu_changes_no_answer_while_faces_come_and_go(
    gpu: CpuGpu, kind: IndexKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature, "EXTEND_FROM", 100)
    monkeypatch.setattr(module, "COMPACT_FROM", 40)
    monkeypatch.setattr(module, "COMPACT_SHARE", 0)
    faces = people(1_000)
    indexes = both(gpu, kind, faces)
    generator = np.random.default_rng(7)
    there = {key: subject for key, subject, _, _ in faces}
    for turn in range(16):
        new = people(int(generator.integers(0, 70)), first=10_000 * (turn + 1), seed=turn + 1)
        gone = generator.choice(sorted(there), int(generator.integers(0, 12)), replace=False).tolist()
        moved = [int(key) for key in generator.choice(sorted(set(there) - set(gone)), 3, replace=False)]
        for one in indexes:
            for key in gone:
                assert one.remove(key, there[key])
            one.add(block(new, DIMENSION))
            one.move(np.array(moved), np.array([7, 8, 9]))
            one.maintain()
        there = {key: subject for key, subject in there.items() if key not in gone}
        there |= {key: subject for key, subject, _, _ in new} | dict(zip(moved, (7, 8, 9), strict=True))
        probes = random_units(3, DIMENSION, seed=1_000 + turn)
        assert indexes[1].search(probes, 5) == indexes[0].search(probes, 5)
    assert indexes[1].search(probes, 400) == indexes[0].search(probes, 400)
    assert 1 < gpu.made < 8, "made anew only with new rows"
    assert len(gpu.added) > gpu.made, "and extended"


def test_what_changes_during_a_pass_on_a_gpu_makes_no_answer_wrong(gpu: CpuGpu) -> None:
    faces = people(500)
    plain, index = both(gpu, "int8", faces)
    probe = faces[17][3][None]
    for turn, face in enumerate((faces[17], faces[200], faces[499])):
        copy: Face = (5_000 + turn, 900 + turn, 50.0, faces[17][3])

        def change(face: Face = face, copy: Face = copy) -> None:
            gpu.meanwhile = lambda: None
            for one in (plain, index):
                assert one.remove(*face[:2])
                one.add(block([copy], DIMENSION))

        gpu.meanwhile = change
        found = index.search(probe, 3)[0]
        assert face[0] not in {match.face for match in found}
        assert index.search(probe, 3) == plain.search(probe, 3)
        assert index.search(probe, 1)[0][0].face == 5_000


def test_a_full_gpu_costs_a_pass_and_not_the_gpu(
    gpu: CpuGpu, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, index = both(gpu, "fp32", people(400))
    probes = random_units(4, DIMENSION, seed=3)
    assert index.search(probes, 3) == plain.search(probes, 3)
    gpu.room = 0
    index.convert("int8")
    assert index.search(probes, 3) == plain.search(probes, 3)
    assert "out of memory" in caplog.text
    made = gpu.made
    assert gpu.used == 0, "what was begun is freed at once"
    assert index.search(probes, 3) == plain.search(probes, 3)
    assert gpu.made == made, "not tried again for a while"
    gpu.room = 1_000
    monkeypatch.setattr(index._on_gpu, "_again_at", 0.0)
    assert index.search(probes, 3) == plain.search(probes, 3)
    assert (gpu.made, gpu.used) == (made + 1, 400)


def test_removals_upload_nothing_and_leave_the_gpu_together_in_the_background(
    gpu: CpuGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    faces = people(500)
    plain, index = both(gpu, "fp32", faces)
    probe = faces[0][3][None]
    for key in range(1, 201):
        for one in (plain, index):
            assert one.remove(key, key // 3)
        if key % 20 == 0:
            assert index.search(probe, 5) == plain.search(probe, 5)
    index.maintain()
    assert gpu.added == [500], "searches pass over what was removed"
    monkeypatch.setattr(feature, "KEEPS_REMOVED_S", 0.0)
    index.maintain()
    index.maintain()
    assert (gpu.made, len(gpu.added)) == (2, 2)
    assert index.search(probe, 5) == plain.search(probe, 5)


def test_indexes_that_are_gone_leave_the_gpu_on_its_own_thread(gpu: CpuGpu) -> None:
    """Whichever thread drops the last reference, also in a cycle that the garbage collector finds."""
    indexes = [both(gpu, "fp32", people(100))[1] for _ in range(4)]
    for one in indexes:
        one.search(random_units(1, DIMENSION), 1)
    assert gpu.used == 400
    cycle: list[object] = [indexes.pop()]
    cycle.append(cycle)
    del cycle, one
    gc.collect()
    dropping = threading.Thread(target=indexes.pop)
    dropping.start()
    dropping.join()
    gpu.tidy()
    assert (gpu.used, gpu.misused) == (200, [])


def test_a_gpu_needs_no_second_copy_on_the_cpu(gpu: CpuGpu) -> None:
    plain, index = both(gpu, "int8", people(500))
    assert (index.kind, index.size) == ("int8", plain.size)
    index.convert("fp32")
    assert index.kind == "fp32"


@pytest.mark.parametrize("half", [False, True])
def test_scores_of_rows_on_a_gpu_are_as_wrong_as_it_says_at_most(gpu: CpuGpu, half: bool) -> None:
    vectors, probes = random_units(3_000, DIMENSION), random_units(20, DIMENSION, seed=5)
    lane, rows = gpu.lane(), Rows(DIMENSION, "fp32")
    copy = GpuRows(lane, rows, DIMENSION, half=half)
    for start in (0, 1_000):
        faces = people(3_000)[start : 1_000 if not start else None]
        rows.append(block(faces, DIMENSION))
        lane.run(lambda: copy.extend(rows.view()))
    near = lane.run(lambda: copy.nearest(probes, 40))
    exact = np.take_along_axis(probes.astype(np.float64) @ vectors.astype(np.float64).T, near.rows, 1)
    assert (np.abs(near.scores - exact) <= near.errors[:, None]).all()
    assert near.errors.max() < (3e-3 if half else 1e-4)
    expected = ExactScan(vectors, rounding(DIMENSION)).nearest(0, 3_000, probes, 40)
    assert (np.abs(near.floors - expected.floors) <= near.errors).all()


@pytest.mark.parametrize("search", get_args(GpuSearch))
def test_this_installation_knows_whether_it_has_a_gpu(caplog: pytest.LogCaptureFixture, search: GpuSearch) -> None:
    with caplog.at_level(logging.INFO):
        found = find_gpu(search)
    expected = bool(faiss.get_num_gpus()) if search == "faiss" else CUDA in ort.get_available_providers()
    assert (found is not None) == expected
    assert ("searched on the CPU" in caplog.text) == (found is None)
    if found is None:
        pytest.skip(f"no GPU that {search} can use")
    vectors = random_units(3_000, 128)
    index, plain = Index(128, gpu=found), Index(128)
    for one in (index, plain):
        one.add(block([(key, key, 50.0, vector) for key, vector in enumerate(np.tile(vectors, (12, 1)), 1)], 128))
    for kind in get_args(IndexKind):
        index.convert(kind)
        assert index.search(vectors[:64], 5) == plain.search(vectors[:64], 5)
    assert isinstance(index._on_gpu, GpuCopy)
    assert index._on_gpu._rows is not None, "it was used"
    found.close()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dimension", [128, pytest.param(512, marks=pytest.mark.long)])
def test_a_product_finds_the_rows_that_an_exact_scan_finds(dimension: int, half: bool) -> None:
    """Over 100,000 rows, added in uneven blocks, and for more probes than one run takes."""
    vectors = random_units(100_000, dimension)
    probes = random_units(PROBES + 3, dimension, seed=1)
    index = ProductIndex(dimension, half=half, provider=CPU)
    for start in range(0, len(vectors), 30_001):
        index.add(vectors[start : start + 30_001])
    scores, rows = index.search(probes, 32)
    exact = ExactScan(vectors, rounding(dimension)).nearest(0, len(vectors), probes, 64)
    error = 3e-3 if half else 1e-5
    for place, (found, expected) in enumerate(zip(rows, exact.rows, strict=True)):
        sure = expected[exact.scores[place] > exact.scores[place][31] + error]
        assert set(sure) <= set(found) <= set(expected)
    assert np.abs(scores - exact.scores[:, :32]).max() < error
    assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("count", [1, SEGMENT - 1, SEGMENT, SEGMENT + 1, PART_ROWS - 1, PART_ROWS, PART_ROWS + 5])
def test_a_product_holds_any_number_of_rows(count: int) -> None:
    """Also where all scores are negative, which nothing that fills a segment up may outdo."""
    vectors = -np.abs(np.random.default_rng(count).standard_normal((count, 4))).astype(np.float32)
    probes = np.ones((1, 4), np.float32)
    index = ProductIndex(4, half=False, provider=CPU)
    index.add(vectors)
    width = min(count, 40)
    scores, rows = index.search(probes, width)
    expected = np.sort(vectors.sum(axis=1))[::-1][:width]
    assert np.allclose(scores[0], expected, atol=1e-5)
    assert np.allclose(vectors[rows[0]].sum(axis=1), expected, atol=1e-5)
    assert index.ntotal == count


def test_long_vectors_come_in_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime counts the numbers of a part in 32 bits on CUDA."""
    assert ProductIndex(128, half=True, provider=CPU).part_rows == PART_ROWS
    for dimension in (512, 1024, 4096):
        assert PART_ROWS * 128 <= ProductIndex(dimension, half=True, provider=CPU).part_rows * dimension < 2**31
    monkeypatch.setattr(product, "PART_NUMBERS", 8 * SEGMENT)
    vectors = random_units(2 * SEGMENT + 7, 8)
    index = ProductIndex(8, half=False, provider=CPU)
    for part in np.array_split(vectors, 5):
        index.add(part)
    assert index.part_rows == SEGMENT
    _, rows = index.search(vectors[[0, SEGMENT, 2 * SEGMENT + 6]], 1)
    assert rows.ravel().tolist() == [0, SEGMENT, 2 * SEGMENT + 6]


def test_a_product_that_fails_says_so_as_faiss_does() -> None:
    index = ProductIndex(4, half=False, provider=CPU)
    index.add(random_units(3, 4))
    with pytest.raises(RuntimeError, match="probes"):
        index.search(random_units(1, 5), 1)
