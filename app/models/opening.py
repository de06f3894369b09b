"""Open a package's model: locate its file, prepare it if it isn't yet, load it on a device."""

from __future__ import annotations

from pathlib import Path

from app.choices import Device, Used
from app.face.detect import MIN_FACE, Detector
from app.inference.session import FIXED_BATCH, EmbedderSession, OnGpu, Session, resolve_device
from app.models.prepare import Target, prepared
from app.package.folders import Package


def open_embedder(package: Package, cache_dir: Path, device: Device = "auto", threads: int = 1) -> EmbedderSession:
    """Locate an embedder's package, prepare it if it isn't yet, load it, and check its contract and golden vectors.

    Raises Unusable with the codes of `locate`, `prepared`, `Session` and `EmbedderSession`.
    """
    return EmbedderSession(package, open_prepared(package, cache_dir, device, threads))


def open_prepared(
    package: Package,
    cache_dir: Path,
    device: Device = "auto",
    threads: int = 1,
    gpu: OnGpu = OnGpu(),  # noqa: B008
) -> Session:
    """Locate a package of any task, prepare it if it isn't yet, and load it. Its contract is not checked.

    Raises Unusable with the codes of `locate`, `prepared` and `Session`.
    """

    def opened(wanted: Device, used: Used) -> Session:
        side = package.manifest.input.shape[1]
        shape = (FIXED_BATCH.get(used, 1), side, side, 3) if isinstance(side, int) else None
        embeds = package.manifest.task == "embed"
        half = used == "cuda" and gpu.math == "fp16" and embeds
        model = prepared(package, cache_dir, "cuda-fp16" if half else target_of(used))
        return Session(model, wanted, threads, shape=shape, gpu=gpu, bf16=embeds)

    used = resolve_device(device)
    session = opened(device, used)
    # with `auto`, another device is used if the CUDA build's libraries are missing
    return session if session.device == used else opened(session.device, session.device)


def open_detector(
    package: Package,
    cache_dir: Path,
    device: Device = "cpu",
    *,
    threads: int = 1,
    min_face: int = MIN_FACE,
    gpu: OnGpu = OnGpu(),  # noqa: B008 - never changed
) -> Detector:
    """Locate the detector's package, prepare it if it isn't yet, and load it.

    Raises Unusable with the codes of `prepared` and `Detector`.
    """
    model = prepared(package, cache_dir, target_of(resolve_device(device)))
    return Detector(model, device=device, threads=threads, min_face=min_face, gpu=gpu)


def target_of(device: Used) -> Target:
    """Return the target whose prepared graph a device runs: with the steps for CPUs, or without them."""
    return "cpu" if device == "cpu" else "cuda"
