"""int8 packages make the same templates with and without VNNI: a process on an emulated processor shows it.

QEMU emulates one without VNNI and AVX-512 (`apt-get install qemu-user`); without QEMU these tests are skipped.
`make test-portable` runs these and others with what else can be held to such a processor.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime.quantization
import pytest

from app.models.opening import open_embedder
from app.models.quantize import quantize_package
from app.package import golden
from app.package.folders import Package
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.embedder_files import crops, network

EMULATOR = shutil.which("qemu-x86_64")
OPENED = """
import json, sys
from pathlib import Path
from app.errors import Unusable
from app.inference import session
from app.package import golden
from app.package.folders import load_package
from app.models.opening import open_embedder
flags = {"as VNNI": "avx_vnni", "as AVX2": "avx2"}
session.cpuinfo = lambda field: flags[sys.argv[2]]  # the emulator shows the machine's own
try:
    opened = open_embedder(load_package(Path(sys.argv[1])), Path(sys.argv[1]), "cpu")
    print(json.dumps(opened.run(golden.golden_crops()).tolist()))
except Unusable as error:
    print(json.dumps([error.code, error.details["cosine"]]))
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels that saturate are x86's"),
    pytest.mark.skipif(EMULATOR is None, reason="needs qemu-x86_64 (apt-get install qemu-user)"),
]


def opened_without_vnni(package: Package, taken_for: str = "as AVX2") -> Any:
    """What an emulated Haswell makes of the golden crops, or the error's code and cosine."""
    assert EMULATOR is not None
    command = [EMULATOR, "-cpu", "Haswell", sys.executable, "-c", OPENED, str(package.folder), taken_for]
    plain = os.environ | {"NPY_DISABLE_CPU_FEATURES": "X86_V3"}  # QEMU 7.2 breaks NumPy's AVX2 sorting
    done = subprocess.run(command, cwd=PROJECT, env=plain, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def source(tmp_path: Path) -> Package:
    return packages.package(tmp_path / "models" / "tiny", network())


def quantised(source: Package) -> Package:
    folder = source.folder.parent
    return quantize_package(source, crops(32), folder, folder.parent, ranges_from="blocks of colour")


@pytest.fixture
def wide(source: Package, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A package whose weights have 8 bits, its golden vectors recorded where sums are exact."""
    plain = onnxruntime.quantization.quantize_static
    monkeypatch.setattr(
        onnxruntime.quantization,
        "quantize_static",
        lambda *given, **options: plain(*given, **options | {"reduce_range": False}),
    )
    return quantised(source)


def test_an_int8_package_makes_the_same_templates_without_vnni(source: Package, tmp_path: Path) -> None:
    made = quantised(source)
    here = open_embedder(made, tmp_path, "cpu").run(golden.golden_crops())
    without = np.array(opened_without_vnni(made, "as VNNI"), np.float32)
    assert (here * without).sum(axis=1).min() > 0.999999


def test_weights_of_8_bits_saturate_there_and_are_noticed(wide: Package) -> None:
    code, cosine = opened_without_vnni(wide, "as VNNI")
    assert (code, cosine < golden.LEAST_COSINE) == ("package_templates_differ", True)


def test_weights_of_8_bits_are_computed_exactly_where_the_processor_is_known_to_saturate(
    wide: Package, tmp_path: Path
) -> None:
    here = open_embedder(wide, tmp_path, "cpu").run(golden.golden_crops())
    without = np.array(opened_without_vnni(wide, "as AVX2"), np.float32)
    assert (here * without).sum(axis=1).min() > 0.999999
