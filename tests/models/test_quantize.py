"""An int8 package of an embedder: close to its source, and never taken for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from app.errors import InvalidInput, Unusable
from app.inference import session
from app.inference.session import Session
from app.models.opening import open_embedder
from app.models.quantize import LARGEST_WEIGHT, LEAST_CROPS, quantize_package
from app.package import golden
from app.package.folders import Package, find_packages, load_package
from app.package.manifest import RunAsIs
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.commands import run
from tests.support.embedder_files import crops, network
from tests.support.service import encoded


@pytest.fixture
def source(tmp_path: Path) -> Package:
    return packages.package(tmp_path / "models" / "tiny", network())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Package]:
    """A package and its int8 package, alone in a folder of packages."""
    folder = tmp_path_factory.mktemp("quantized")
    source = packages.package(folder / "models" / "tiny", network())
    return source, quantize_package(source, crops(32), folder / "models", folder, ranges_from="blocks of colour")


def test_it_answers_nearly_what_its_source_answers(both: tuple[Package, Package], tmp_path: Path) -> None:
    unseen = crops(80)[40:]
    vectors = [open_embedder(package, tmp_path, "cpu").run(unseen) for package in both]
    assert (vectors[0] * vectors[1]).sum(axis=1).min() > 0.98
    assert not np.array_equal(vectors[0], vectors[1])
    kinds = {node.op_type for node in onnx.load(both[1].folder / "model.onnx").graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds


def test_it_is_a_package_of_its_own_without_operating_points(both: tuple[Package, Package], tmp_path: Path) -> None:
    source, made = both
    assert set(find_packages(source.folder.parent)) == {"tiny@1", "tiny-int8@1-w7"}
    manifest = made.manifest
    assert manifest == load_package(source.folder.parent / "tiny-int8").manifest
    assert manifest.calibrations == ()
    assert manifest.licence == source.manifest.licence
    assert isinstance(manifest.prepare, RunAsIs)
    assert manifest.golden == golden.record(open_embedder(made, tmp_path, "cpu").run)
    assert "blocks of colour" in manifest.provenance.text
    assert float(str(manifest.provenance.figures["cosine_to_source_lowest"])) > 0.98


def largest_pair(weights: NDArray[np.int8]) -> int:
    """The largest sum of two products with uint8 activations, whichever two weights a kernel takes together."""
    return 255 * int(np.sort(np.abs(weights.astype(np.int64)), axis=None)[-2:].sum())


def test_no_pair_of_products_leaves_16_bits(both: tuple[Package, Package]) -> None:
    """Whatever processor this runs on: x86 without VNNI adds uint8 x int8 products in pairs in saturating int16."""
    model = onnx.load(both[1].folder / "model.onnx")
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    unpacked = [node for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in constants]
    weights = {node.input[0]: node for node in unpacked if constants[node.input[0]].dtype == np.int8}
    assert len(weights) >= 2
    for name, node in weights.items():
        assert largest_pair(constants[name]) <= np.iinfo(np.int16).max
        assert np.abs(constants[name]).max() > LARGEST_WEIGHT // 2, "and all 7 bits are used"
        assert not constants[node.input[2]].any(), "a kernel multiplies what is stored, not what it stands for"
    assert largest_pair(np.full(2, LARGEST_WEIGHT, np.int8)) <= np.iinfo(np.int16).max
    assert largest_pair(np.full(2, LARGEST_WEIGHT + 1, np.int8)) > np.iinfo(np.int16).max
    kinds = {constants[node.input[2]].dtype for node in model.graph.node if node.op_type == "QuantizeLinear"}
    assert kinds == {np.dtype(np.uint8)}, "activations"


@pytest.mark.parametrize(
    ("weight", "flags"),
    [(LARGEST_WEIGHT, "avx512_vnni"), (LARGEST_WEIGHT, "avx_vnni"), (LARGEST_WEIGHT, "avx2"), (127, "avx2"), (127, "")],
)
def test_sums_are_exact(weight: int, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 7-bit weights always, those of 8-bit weights where the processor is not known to have VNNI."""
    monkeypatch.setattr(session, "cpuinfo", lambda _field: flags)
    for each in (weight, -weight):
        made = Session(product(each).SerializeToString(), "cpu")
        (sums,) = made.run(np.full((3, 64), 255, np.uint8))
        assert np.array_equal(sums, np.full((3, 32), 64 * 255 * each))


def product(weight: int) -> ModelProto:
    """(N, 64) uint8 times (64, 32) int8, all of one value -> (N, 32) int32."""
    return packages.model_of(
        [helper.make_node("MatMulInteger", ["in", "weights"], ["out"])],
        [helper.make_tensor_value_info("in", TensorProto.UINT8, ["N", 64])],
        [helper.make_tensor_value_info("out", TensorProto.INT32, ["N", 32])],
        {"weights": np.full((64, 32), weight, np.int8)},
    )


def test_slopes_near_one_do_not_spoil_the_ranges(tmp_path: Path) -> None:
    """With the factor 1 / (1 - slope) in the neighbouring weights, one channel would fill the whole range."""
    source = packages.package(tmp_path / "models" / "tiny", network(slope=0.9))
    made = quantize_package(source, crops(32), tmp_path / "models", tmp_path, ranges_from="blocks of colour")
    assert float(str(made.manifest.provenance.figures["cosine_to_source_lowest"])) > 0.98


def test_what_cannot_be_made_is_refused_and_leaves_nothing(source: Package, tmp_path: Path) -> None:
    models = tmp_path / "models"
    with pytest.raises(InvalidInput, match="too few"):
        quantize_package(source, crops(LEAST_CROPS - 1), models, tmp_path, ranges_from="-")
    flat = packages.install(models, "flat")
    with pytest.raises(Unusable, match="no convolution"):
        quantize_package(flat, crops(32), models, tmp_path, ranges_from="-")
    with pytest.raises(ValueError, match="surrogates"):  # as in the name of a folder that is not UTF-8
        quantize_package(source, crops(32), models, tmp_path, ranges_from="photos/\udcff")
    assert {path.name for path in models.iterdir()} == {"tiny", "flat-1"}
    quantize_package(source, crops(32), models, tmp_path, ranges_from="-")
    with pytest.raises(Unusable, match="there already"):
        quantize_package(source, crops(32), models, tmp_path, ranges_from="-")


def test_the_command_finds_faces_in_photos(source: Package, tmp_path: Path) -> None:
    models = source.folder.parent
    shutil.copytree(PROJECT / "models" / "yunet", models / "yunet")
    done = run(tmp_path / "data", "models", "quantize", "tiny", models_dir=models)
    assert done.returncode == 0
    assert "tiny-int8@1-w7" in done.stdout
    assert (
        "faces of the packaged photos"
        in load_package(tmp_path / "data" / "packages" / "tiny-int8").manifest.provenance.text
    )


def test_the_command_takes_aligned_crops_as_they_are(source: Package, tmp_path: Path) -> None:
    models, folder = source.folder.parent, tmp_path / "crops"
    shutil.copytree(PROJECT / "models" / "yunet", models / "yunet")
    folder.mkdir()
    for number, crop in enumerate(crops(LEAST_CROPS)):
        (folder / f"{number}.png").write_bytes(encoded(crop))
    words = ("models", "quantize", "tiny", "--photos", folder, "--aligned")
    assert run(tmp_path / "data", *words, models_dir=models).returncode == 0
    assert (
        "16 faces of photos given"
        in load_package(tmp_path / "data" / "packages" / "tiny-int8").manifest.provenance.text
    )
    shutil.rmtree(tmp_path / "data" / "packages" / "tiny-int8")
    (folder / "0.png").write_bytes(encoded(crops(1)[0][:100]))
    refused = run(tmp_path / "data", *words, models_dir=models)
    assert (refused.returncode != 0, "112×100" in refused.stderr) == (True, True)
