"""Measure the speed of one device, without a server: faces per second of each embedder by batch size, runs per second
of the detector by size of picture, and searches (the part `search`) if FAISS has a GPU. On the CPU it uses one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from app.choices import GpuMath, IndexKind
from app.face.yunet import CANVASES, Canvas
from app.features.gpu_search.feature import Gpu, Lane, find_gpu
from app.inference.session import OnGpu, Session, resolve_device
from app.machine import cores
from app.models.graph import in_half
from app.models.opening import target_of
from app.models.packages import locate
from app.models.prepare import prepared, rewrite
from app.package.folders import Package, find_packages, select
from app.package.manifest import Rewrite
from app.types import Vectors
from bench import galleries
from bench.contenders import searching
from bench.contenders.embedding import many
from bench.figures import Figure, compared
from bench.run import Run
from bench.stages import DETECTOR

PART, SEARCH = "device", "search"
Precision: TypeAlias = Literal["fp32", "fp16"]
GPU_DIMENSION = 512
ALONE = -1
"""The key, on the GPU's lane, of FAISS's plain index, which no index of ours uses."""
GPU_QUERIES = 1, 64, 1024


def measure(run: Run) -> None:
    for package in find_packages(run.stages.models).values():
        if package.manifest.task == "embed":
            for precision in get_args(Precision):
                _embed(run, package, precision)
    for canvas in CANVASES:
        _look(run, canvas)


def _embed(run: Run, package: Package, precision: Precision) -> None:
    run.say(f"{package.id} in {precision}")
    model = graph_of(run, package)
    chosen = model if precision == "fp32" else in_half(model)
    crops = {size: many(run.stages.crops, size) for size in run.effort.batches}
    # a session for each batch size, since on a GPU a session makes a new plan whenever the shape changes
    sessions = {
        size: Session(chosen.SerializeToString(), resolve_device_of(run), 1, shape=crops[size].shape) for size in crops
    }

    def embed(size: int) -> Callable[[], int]:
        def once() -> int:
            sessions[size].run(crops[size])
            return size

        return once

    names = {size: f"batches of {size}" for size in crops}
    speeds = run.contest({name: embed(size) for size, name in names.items()})
    plain = Session(model.SerializeToString(), "cpu", 1)
    session = sessions[min(crops)]
    cosine = worst_cosine(plain.run(crops[min(crops)])[0], session.run(crops[min(crops)])[0])
    for name in names.values():
        work = f"embed, {package.id}, {precision}, {name}, {session.device}"
        least = names[min(crops)]
        run.add(compared(PART, work, speeds, name, least, unit="faces/s", details={"cosine_to_fp32": cosine}))


def _look(run: Run, canvas: Canvas) -> None:
    run.say(f"looks at {canvas.height} × {canvas.width}")
    model = prepared(
        select(find_packages(run.stages.models), DETECTOR), run.stages.cache, target_of(resolve_device_of(run))
    )
    sheet = np.random.default_rng(0).integers(0, 256, (*canvas, 3), np.uint8)
    maths: tuple[GpuMath, ...] = ("fp32", "nhwc") if run.device == "cuda" else ("fp32",)
    ways: dict[str, Callable[[], int]] = {}
    for math in maths:
        session = Session(model, resolve_device_of(run), 1, shape=(*canvas, 3), gpu=OnGpu(math=math))

        def look(session: Session = session) -> int:
            session.run(sheet)
            return canvas.items

        ways[math] = look
    speeds = run.contest(ways)
    for math in maths:
        work = f"look, {canvas.items} × {canvas.height} × {canvas.width}, {math}, {resolve_device_of(run)}"
        run.add(compared(PART, work, speeds, math, "fp32", unit="looks/s"))


def worst_cosine(ours: NDArray[np.generic], theirs: NDArray[np.generic]) -> float:
    """Return the lowest cosine between rows of the same number, both (N, D)."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    return float(((a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def resolve_device_of(run: Run) -> Any:
    """Return ``cpu`` or ``cuda``. Raises Unusable ``device_unavailable``."""
    return resolve_device("cuda" if run.device == "cuda" else "cpu")


def graph_of(run: Run, package: Package) -> ModelProto:
    """Return the package's graph as prepared for a GPU, without rewrites meant for the CPU."""
    model = ModelProto.FromString(locate(package, run.stages.cache).read_bytes())
    plan = package.manifest.prepare
    return rewrite(model, plan, "cuda") if isinstance(plan, Rewrite) else model


def search(run: Run) -> None:
    """Measure a gallery's index with its vectors on the GPU against FAISS's flat index on the GPU."""
    faiss_gpu, product_gpu = find_gpu("faiss"), find_gpu("product")
    if faiss_gpu is None or product_gpu is None:
        run.note("search on a GPU: FAISS or ONNX Runtime has none, or sees none (pip install 'likeness-server[gpu]')")
        return
    vectors = galleries.people(run.effort.faces, GPU_DIMENSION)
    kinds: tuple[IndexKind, ...] = ("fp32", "int8")
    for kind in kinds:
        searched_on(run, faiss_gpu, product_gpu, vectors, kind)
    faiss_gpu.close()
    product_gpu.close()


def searched_on(run: Run, faiss_gpu: Gpu, product_gpu: Gpu, vectors: Vectors, kind: IndexKind) -> None:
    """Compare a gallery's index by FAISS and by a product, and FAISS's flat index without ours."""
    index = searching.ours(vectors, cores(), kind, faiss_gpu)
    product = searching.ours(vectors, cores(), kind, product_gpu)
    lane = faiss_gpu.lane()
    flat = partial(lane.index, ALONE, vectors.shape[1], half=kind != "fp32")
    lane.run(lambda: flat().add(vectors))
    for count in GPU_QUERIES:
        queries = galleries.probes(vectors, count)
        alone = _asked(lane, flat, queries)
        by_product = searching.together(product, queries)
        speeds = run.contest({"ours": searching.together(index, queries), "product": by_product, "FAISS alone": alone})
        passes = speeds.of("FAISS alone").median / count
        details = {"gigabytes_a_second": passes * vectors.nbytes / (1 if kind == "fp32" else 2) / 1e9}
        work = f"search, {len(vectors):,} × {vectors.shape[1]}, {kind} on a GPU, {count} at once"
        for name in ("ours", "product"):
            run.add(compared(SEARCH, f"{work}, {name}", speeds, name, "FAISS alone", unit="queries/s", details=details))
    lane.drop(ALONE)
    queries = queries[: searching.QUERIES]
    expected = searching.exact(vectors, queries)[:, 0]
    for name, searched in (("ours", index), ("product", product)):
        same = np.mean(searching.rows_of(searched, queries)[:, 0] == expected)
        run.add(Figure(SEARCH, f"the same first one by {kind} on a GPU as in float64, {name}", 100 * float(same), "%"))


def _asked(lane: Lane, flat: Callable[[], Any], queries: Vectors) -> Callable[[], int]:
    def run() -> int:
        lane.run(lambda: flat().search(queries, searching.LIMIT))
        return len(queries)

    return run
