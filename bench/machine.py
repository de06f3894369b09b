"""The machine that the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from app.machine import cores, cpuinfo

LIBRARIES = (
    "numpy",
    "onnxruntime",
    "onnxruntime-gpu",
    "opencv-python-headless",
    "faiss-cpu",
    "faiss-gpu-cuvs",
    "pillow",
    "uvicorn",
)


def describe() -> dict[str, object]:
    """Return processor, usable cores, memory, operating system and the versions of the libraries that do the work."""
    return {
        "processor": processor(),
        "vector_instructions": _vector_instructions(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "libraries": {name: found for name in LIBRARIES if (found := _version(name))},
    }


def _vector_instructions() -> list[str]:
    wanted = {"avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16"}
    return sorted(wanted & set(cpuinfo("flags").split()))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """Return the name of the processor's model."""
    return cpuinfo("model name") or platform.processor() or platform.machine()
