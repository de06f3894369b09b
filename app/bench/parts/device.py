"""What one device does: images a second of each embedding package by batch size, and search where FAISS has a GPU.

On a GPU this is what `likeness bench --device cuda device` is for. It runs on the CPU too, on one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import faiss
import numpy as np
from onnx import ModelProto

from app.bench import arithmetic, galleries, searching
from app.bench.arithmetic import Precision
from app.bench.embedding import many
from app.bench.figures import Curve, Figure, compared
from app.bench.run import Run
from app.runtime.package import Package, Rewrite, find_packages, locate
from app.runtime.prepare import rewrite
from app.runtime.session import Session, resolve_device

PART = "device"
LIMIT = "a product of matrices"
GPU_DIMENSION = 512
GPU_QUERIES = 1, 64, 1024
ADDED = 100_000


def measure(run: Run) -> None:
    for package in find_packages(run.stages.models).values():
        if package.manifest.task == "embed":
            for precision in get_args(Precision):
                _embed(run, package, precision)
    if run.device == "cuda":
        _search(run)
    else:
        run.note("FAISS on a GPU: not asked for (--device cuda)")


def _embed(run: Run, package: Package, precision: Precision) -> None:
    run.say(f"{package.id} in {precision}")
    model = graph_of(run, package)
    chosen = model if precision == "fp32" else arithmetic.in_half(model)
    session = Session(chosen.SerializeToString(), resolve_device_of(run), 1)
    crops = {size: many(run.stages.crops, size) for size in run.effort.batches}
    product, product_flops = arithmetic.product_of_matrices(resolve_device_of(run), precision)

    def embed(size: int) -> Callable[[], int]:
        def once() -> int:
            session.run(crops[size])
            return size

        return once

    speeds = run.contest({LIMIT: product} | {f"batches of {size}": embed(size) for size in crops})
    each = arithmetic.flops(model)
    at_most = speeds.times(LIMIT, product_flops / each)
    plain = Session(model.SerializeToString(), "cpu", 1)
    cosine = arithmetic.worst_cosine(plain.run(crops[min(crops)])[0], session.run(crops[min(crops)])[0])
    for size in crops:
        work = f"embed, {package.id}, {precision}, batches of {size}, {session.device}"
        told = {"flops_an_image": each, "cosine_to_fp32": cosine}
        run.add(compared(PART, work, at_most, f"batches of {size}", LIMIT, unit="faces/s", details=told))
    y = [speeds.of(f"batches of {size}").median for size in crops]
    run.draw(Curve("batches", f"{package.manifest.name}, {precision}", list(crops), y, "faces in a batch", "faces/s"))


def resolve_device_of(run: Run) -> Any:
    """``cpu`` or ``cuda``. Raises Unusable ``device_unavailable``."""
    return resolve_device("cuda" if run.device == "cuda" else "cpu")


def graph_of(run: Run, package: Package) -> ModelProto:
    """The package's graph as it is prepared for a GPU: nothing in it is the CPU's alone."""
    model = ModelProto.FromString(locate(package, run.stages.cache).read_bytes())
    plan = package.manifest.prepare
    return rewrite(model, plan, "cuda") if isinstance(plan, Rewrite) else model


def _search(run: Run) -> None:
    """Flat in the GPU's memory, in fp32 and fp16."""
    if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
        run.note("FAISS on a GPU: this FAISS has none (pip install 'likeness[gpu]')")
        return
    library: Any = faiss
    resources = library.StandardGpuResources()
    for half in (False, True):
        config = library.GpuIndexFlatConfig()
        config.useFloat16 = half
        index = library.GpuIndexFlatIP(resources, GPU_DIMENSION, config)
        for start in range(0, run.effort.faces, ADDED):
            count = min(ADDED, run.effort.faces - start)
            index.add(galleries.people(count, GPU_DIMENSION, seed=start))
        queries = {count: galleries.people(count, GPU_DIMENSION, seed=-1 % 2**32) for count in GPU_QUERIES}
        speeds = run.contest({f"{count} at once": _asked(index, some) for count, some in queries.items()})
        bytes_a_pass = index.ntotal * GPU_DIMENSION * (2 if half else 4)
        for count in queries:
            median = speeds.of(f"{count} at once").median
            details = {"gigabytes_a_second": bytes_a_pass * median / count / 1e9}
            kind = "fp16" if half else "fp32"
            work = f"search, {index.ntotal:,} × {GPU_DIMENSION}, {kind} on a GPU, {count} at once"
            run.add(Figure(PART, work, median, "queries/s", details=details))


def _asked(index: Any, queries: np.ndarray[Any, np.dtype[np.float32]]) -> Callable[[], int]:
    def run() -> int:
        index.search(queries, searching.LIMIT)
        return len(queries)

    return run
