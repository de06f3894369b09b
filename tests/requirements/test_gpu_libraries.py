"""What `likeness-server[gpu]` installs has every shared library that it needs, but for the driver's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnxruntime
import pytest

from app.inference.libraries import OPENED_LATE, OWNERS, Missing, find_missing, needed, owner_of
from tests.conftest import PROJECT

FOLDER = PROJECT / "requirements"
RECORD: dict[str, dict[str, list[str] | None]] = json.loads((FOLDER / "gpu-libraries.json").read_text())
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z)|ld-linux-x86-64)\.so\.\d+")
"""Of the base image: glibc, GCC's runtime, zlib."""
DRIVER = {"libcuda.so.1"}
TENSORRT = {"libnvinfer.so.10", "libnvonnxparser.so.10"}
"""Needed by ONNX Runtime's TensorRT provider alone, which is not loaded unless it is asked for."""


def held() -> dict[str, str]:
    """The package of each library in the set."""
    return {Path(path).name: package.partition("==")[0] for package, found in RECORD.items() for path in found}


def test_the_record_is_of_the_versions_that_are_installed() -> None:
    pins = set(re.findall(r"^([\w.-]+==[\w.]+)", (FOLDER / "gpu.txt").read_text(), re.MULTILINE))
    named = {pin for pin in pins if re.match(r"faiss|onnxruntime|nvidia|lib\w+-cu|cuda|rapids", pin)}
    assert set(RECORD) == named, "run requirements/libraries.py"


def test_every_library_that_is_needed_is_in_the_set_or_the_drivers() -> None:
    wanted = {name for found in RECORD.values() for needs in found.values() for name in needs or ()}
    wanted |= {name for names in OPENED_LATE.values() for name in names}
    lacking = {name for name in wanted - held().keys() if not SYSTEM.fullmatch(name)}
    assert lacking == DRIVER | TENSORRT


def test_there_is_one_generation_of_cuda() -> None:
    assert not [package for package in RECORD if re.search(r"cu12|cu11", package)]
    runtimes = [name for name in held() if name.startswith("libcudart.")]
    assert runtimes == ["libcudart.so.13"]


def test_owners_are_the_packages_that_bring_a_library() -> None:
    found = {start: {owner for name, owner in held().items() if name.startswith(start)} for start in OWNERS}
    for start, owner in OWNERS.items():
        assert found[start] == ({owner} if owner.startswith("nvidia-") else set())


@pytest.fixture
def library() -> bytes:
    """A real one: ONNX Runtime's own."""
    (path,) = (Path(onnxruntime.__file__).parent / "capi").glob("onnxruntime_pybind11_state*.so")
    return path.read_bytes()


def test_missing_libraries_are_named_with_what_brings_them(tmp_path: Path, library: bytes) -> None:
    assert {"libc.so.6", "libm.so.6"} <= set(needed(library))
    path = tmp_path / "libonnxruntime_providers_cuda.so"
    assert find_missing(path) == []
    path.write_bytes(library.replace(b"\0libm.so.6\0", b"\0libq.so.6\0"))
    found = find_missing(path)
    assert found[0] == Missing("libq.so.6", None)
    if any(one.name == "libcudnn.so.9" for one in found):  # not on a machine with CUDA
        assert "libcudnn.so.9 (nvidia-cudnn-cu13)" in map(str, found)
    assert owner_of("libcuda.so.1") == "NVIDIA's driver"
