"""Search on a GPU, on machines without one: FAISS's indexes of the CPU stand in for the GPU's, all else is the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import get_args

import faiss
import numpy as np
import pytest

from app.search import index as module
from app.search.gpu import GpuIndex, find_gpu
from app.search.index import Index
from app.search.quantised import ExactScan
from app.search.types import IndexKind
from tests.support.cpu_gpu import CpuGpu
from tests.support.index_faces import Face, block, random_units

DIMENSION = 32


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuGpu]:
    monkeypatch.setattr(module, "QUICK_NUMBERS", 0)
    made = CpuGpu()
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
    monkeypatch.setattr(module, "GPU_EXTEND_FROM", 100)
    monkeypatch.setattr(module, "GPU_REPLACE_FROM", 40)
    faces = people(1_000)
    indexes = both(gpu, kind, faces)
    generator = np.random.default_rng(7)
    there = {key: subject for key, subject, _, _ in faces}
    for turn in range(16):
        new = people(int(generator.integers(0, 70)), first=10_000 * (turn + 1), seed=turn + 1)
        gone = generator.choice(sorted(there), int(generator.integers(0, 12)), replace=False).tolist()

        def change(gone: list[int] = gone, new: list[Face] = new) -> None:
            gpu.meanwhile = lambda: None
            for one in indexes:
                for key in gone:
                    assert one.remove(key, there[key])
                if new:
                    one.add(block(new, DIMENSION))
            for key in gone:
                del there[key]
            there.update({key: subject for key, subject, _, _ in new})

        if turn % 2:
            gpu.meanwhile = change  # while rows are sent there, or searched
        else:
            change()
        probes = random_units(3, DIMENSION, seed=1_000 + turn)
        found = indexes[1].search(probes, 5)
        gpu.meanwhile()
        if turn % 2 == 0 or not (gone or new):
            assert found == indexes[0].search(probes, 5)
        else:
            assert indexes[1].search(probes, 6) == indexes[0].search(probes, 6)
    assert indexes[1].search(probes, 400) == indexes[0].search(probes, 400)
    assert 2 < len(gpu.made) < 12, "brought up to date now and then, made anew more seldom"


def test_what_changes_during_a_pass_on_a_gpu_is_in_the_answer(gpu: CpuGpu) -> None:
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
        assert index.search(probe, 3) == plain.search(probe, 3)
        assert index.search(probe, 1)[0][0].face == 5_000


def test_a_full_gpu_leaves_the_search_to_the_cpu(gpu: CpuGpu, caplog: pytest.LogCaptureFixture) -> None:
    plain, index = both(gpu, "fp32", people(400))
    probes = random_units(4, DIMENSION, seed=3)
    assert index.search(probes, 3) == plain.search(probes, 3)
    gpu.room = 0
    index.convert("int8")
    assert index.search(probes, 3) == plain.search(probes, 3)
    assert "out of memory" in caplog.text
    made = len(gpu.made)
    assert index.search(probes, 3) == plain.search(probes, 3)
    assert len(gpu.made) == made


def test_what_was_removed_leaves_the_gpu_too(gpu: CpuGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    faces = people(50)
    _, index = both(gpu, "fp32", faces)
    index.search(faces[0][3][None], 1)
    monkeypatch.setattr(module, "GPU_KEEPS_REMOVED_S", 0.0)
    index.drop_stale_copies()
    index.search(faces[0][3][None], 1)
    assert len(gpu.made) == 1, "nothing was removed"
    index.remove(1, 0)
    index.drop_stale_copies()
    assert index._gpu_copy is None
    index.search(faces[0][3][None], 1)
    assert [one.ntotal for one in gpu.made] == [50, 49]


@pytest.mark.parametrize("half", [False, True])
def test_scores_of_a_gpu_index_are_as_wrong_as_it_says_at_most(half: bool) -> None:
    vectors, probes = random_units(3_000, DIMENSION), random_units(20, DIMENSION, seed=5)
    gpu = CpuGpu()
    copy = gpu.run(lambda: GpuIndex(gpu, DIMENSION, half=half))
    copy.extend(vectors[:1_000])
    copy.extend(vectors)
    near = copy.nearest(0, 3_000, probes, 40)
    exact = np.take_along_axis(probes.astype(np.float64) @ vectors.astype(np.float64).T, near.rows, 1)
    errors = copy.errors(probes)
    assert (np.abs(near.scores - exact) <= errors[:, None]).all()
    assert errors.max() < (3e-3 if half else 1e-4)
    expected = ExactScan(vectors).nearest(0, 3_000, probes, 40)
    assert (np.abs(near.floors - expected.floors) <= errors).all()
    gpu.close()


def test_this_faiss_knows_whether_it_has_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        found = find_gpu()
    assert (found is not None) == bool(faiss.get_num_gpus())
    assert ("searched on the CPU" in caplog.text) == (found is None)
    if found is None:
        pytest.skip("no GPU that this FAISS can use")
    vectors = random_units(3_000, 128)
    index, plain = Index(128, gpu=found), Index(128)
    for one in (index, plain):
        one.add(block([(key, key, 50.0, vector) for key, vector in enumerate(np.tile(vectors, (12, 1)), 1)], 128))
    for kind in get_args(IndexKind):
        index.convert(kind)
        assert index.search(vectors[:64], 5) == plain.search(vectors[:64], 5)
    assert index._gpu is found, "it was used"
    found.close()
