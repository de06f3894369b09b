"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = (
    "numpy",
    "onnxruntime",
    "onnxruntime-gpu",
    "opencv-python-headless",
    "faiss-cpu",
    "faiss-gpu",
    "pillow",
    "uvicorn",
)


def describe() -> dict[str, object]:
    """Processor, cores that may be used, memory, operating system and the libraries that do the work."""
    return {
        "processor": _processor(),
        "vector_instructions": _vector_instructions(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "libraries": {name: found for name in LIBRARIES if (found := _version(name))},
    }


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpuinfo(field: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _vector_instructions() -> list[str]:
    wanted = {"avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16"}
    return sorted(wanted & set(_cpuinfo("flags").split()))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
