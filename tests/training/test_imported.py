"""Embedders imported from ONNX into PyTorch compute what ONNX Runtime computes, and train and export like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from app.errors import Unusable
from app.models.opening import open_embedder
from app.models.reference import source_input
from app.package.folders import load_package
from app.package.manifest import Cutout, SourceInput
from tests.support.crops import some_crops
from tests.support.ready import fill_cache
from training.backbones.imported import ImportedModel, import_graph, import_package
from training.backbones.operators import BUILDERS

RNG = np.random.default_rng(0)
PARITY = 0.99999


def graph_of(
    nodes: list[onnx.NodeProto], constants: dict[str, NDArray[np.generic]], shape: list[int | str], opset: int = 18
) -> ModelProto:
    """A model that reads `x` float32 of this shape and answers `y`."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def same(model: ModelProto, x: NDArray[np.float32]) -> None:
    """ONNX Runtime and the imported module answer the same within float32's rounding."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})[0]
    axes: list[str | int | None] = [None] * expected.ndim
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, axes))
    with torch.no_grad():
        found = import_graph(model).eval()(torch.from_numpy(x)).numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", ["sface", "sface-slim"])
def test_a_package_is_the_same_in_pytorch(name: str, tmp_path: Path) -> None:
    package = load_package(Path("models") / name)
    crops = some_crops(4)
    fill_cache(tmp_path)
    module = import_package(package, tmp_path)
    with torch.no_grad():
        found = torch.nn.functional.normalize(module(torch.from_numpy(crops)).double()).numpy()
    expected = open_embedder(package, tmp_path, device="cpu", threads=1).run(crops).astype(np.float64)
    assert (found * expected).sum(axis=1).min() >= PARITY


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_crops_are_resampled_as_in_the_service(layout: str) -> None:
    cutout = Cutout(side=128, scale=1.2, left=-4.0, top=-5.5)
    form = SourceInput.model_validate({"layout": layout, "dtype": "float32", "colour": "bgr", "cutout": cutout})
    crops = some_crops(2)
    expected = np.concatenate([source_input(crop, form) for crop in crops])
    found = ImportedModel(torch.nn.Identity(), form)(torch.from_numpy(crops)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.long
def test_imported_weights_learn_and_pixel_constants_do_not(tmp_path: Path) -> None:
    module = import_package(load_package(Path("models/sface")), tmp_path)
    module(torch.from_numpy(some_crops(2))).square().sum().backward()
    learned = dict(module.named_parameters())
    assert len(learned) > 100
    assert all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in learned.values())
    assert not any(name.startswith("backbone.scalar_op") for name in learned)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("Relu", {}),
        ("LeakyRelu", {"alpha": 0.2}),
        ("Elu", {"alpha": 0.7}),
        ("Sigmoid", {}),
        ("HardSigmoid", {"alpha": 0.3}),
        ("HardSwish", {}),
        ("Tanh", {}),
        ("Softplus", {}),
        ("Mish", {}),
        ("Erf", {}),
        ("Softmax", {"axis": 1}),
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
        ("LpNormalization", {"axis": 1, "p": 2}),
        ("Flatten", {"axis": 1}),
        ("Flatten", {"axis": 2}),
        ("Transpose", {"perm": [0, 2, 3, 1]}),
        ("Transpose", {}),
        ("Abs", {}),
        ("Exp", {}),
        ("Neg", {}),
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("MaxPool", {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}),
        ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("ReduceMean", {"keepdims": 1}),
    ],
)
def test_an_operator_of_one_input(kind: str, attributes: dict[str, Any]) -> None:
    node = helper.make_node(kind, ["x"], ["y"], **attributes)
    same(graph_of([node], {}, ["N", 4, 7, 7], opset=20), normal(3, 4, 7, 7))


@pytest.mark.parametrize(
    ("kind", "constants", "attributes"),
    [
        ("Conv", [normal(6, 4, 3, 3), normal(6)], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("Conv", [normal(4, 1, 3, 3)], {"group": 4, "pads": [0, 1, 2, 1]}),
        ("Conv", [normal(4, 4, 2, 2)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("Conv", [normal(4, 4, 3, 3)], {"dilations": [2, 2]}),
        ("BatchNormalization", [normal(4), normal(4), normal(4), np.abs(normal(4)) + 0.1], {"epsilon": 1e-3}),
        ("PRelu", [normal(4, 1, 1)], {}),
        ("PRelu", [normal(1)], {}),
        ("PRelu", [normal(4, 7, 7)], {}),
        ("LayerNormalization", [normal(7), normal(7)], {"axis": -1}),
        ("MatMul", [normal(7, 5)], {}),
        ("MatMul", [normal(4, 7, 3)], {}),
        ("Add", [normal(4, 1, 1)], {}),
        ("Sub", [normal(1)], {}),
        ("Mul", [normal(7)], {}),
        ("Div", [normal(4, 1, 1) + 3], {}),
        ("Max", [normal(1), normal(7)], {}),
        ("Min", [normal(1)], {}),
        ("Clip", [np.array(-0.5, np.float32), np.array(0.5, np.float32)], {}),
        ("ReduceSum", [np.array([2, 3])], {"keepdims": 1}),
        ("ReduceMax", [np.array([1])], {"keepdims": 0}),
        ("ReduceL2", [np.array([1])], {"keepdims": 1}),
        ("Reshape", [np.array([0, 2, -1])], {}),
        ("Unsqueeze", [np.array([0, -1])], {}),
        ("Slice", [np.array([1, 0]), np.array([4, 7]), np.array([1, 3]), np.array([1, 2])], {}),
        ("Slice", [np.array([-1]), np.array([-9]), np.array([1]), np.array([-1])], {}),
        ("Gather", [np.array([2, 0, -1])], {"axis": 1}),
        ("Gather", [np.array(1)], {"axis": 2}),
        ("Gather", [np.array([[0, 1], [2, 3]])], {"axis": 3}),
        ("Expand", [np.array([1, 4, 7, 7])], {}),
        ("Pad", [np.array([0, 0, 1, 2, 0, 0, 3, 0])], {"mode": "reflect"}),
        ("Pad", [np.array([0, 1, 0, 0, 0, 0, 0, 2])], {}),
        ("Pow", [np.array(2.0, np.float32)], {}),
    ],
)
def test_an_operator_with_constants(
    kind: str, constants: list[NDArray[np.generic]], attributes: dict[str, Any]
) -> None:
    names = {f"c{place}": value for place, value in enumerate(constants)}
    node = helper.make_node(kind, ["x", *names], ["y"], **attributes)
    same(graph_of([node], names, ["N", 4, 7, 7]), normal(2, 4, 7, 7))


def test_gemm_with_factors_and_a_plain_weight() -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], alpha=0.5, beta=2.0)
    same(graph_of([node], {"w": normal(5, 3), "b": normal(3)}, ["N", 5]), normal(4, 5))


def test_attention_by_its_parts() -> None:
    """Queries, keys and values from one product, split, scaled, softmax, and back: what a transformer exports."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["qkv"]),
        helper.make_node("Reshape", ["qkv", "heads"], ["parted"]),
        helper.make_node("Transpose", ["parted"], ["turned"], perm=[2, 0, 3, 1, 4]),
        helper.make_node("Split", ["turned"], ["q1", "k1", "v1"], axis=0, num_outputs=3),
        *[helper.make_node("Squeeze", [f"{part}1", "first"], [part]) for part in "qkv"],
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "v"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "joined"], ["y"]),
    ]
    constants: dict[str, NDArray[np.generic]] = {
        "w": normal(8, 24),
        "heads": np.array([0, 5, 3, 2, 4]),
        "first": np.array([0]),
        "scale": np.array(0.5, np.float32),
        "joined": np.array([0, 5, 8]),
    }
    same(graph_of(nodes, constants, ["N", 5, 8]), normal(3, 5, 8))


def test_a_shape_that_is_computed_from_the_batch() -> None:
    """What exporters write for `x.view(x.size(0), -1)`."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants: dict[str, NDArray[np.generic]] = {
        "zero": np.array(0),
        "axis": np.array([0]),
        "rest": np.array([-1]),
    }
    same(graph_of(nodes, constants, ["N", 4, 3]), normal(5, 4, 3))


def test_block_quantised_weights_are_unpacked() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1, block_size=4),
        helper.make_node("Gemm", ["x", "w"], ["y"], transB=1),
    ]
    constants: dict[str, NDArray[np.generic]] = {
        "q": RNG.integers(-127, 128, (3, 8)).astype(np.int8),
        "s": np.abs(normal(3, 2)),
        "z": RNG.integers(-5, 5, (3, 2)).astype(np.int8),
    }
    same(graph_of(nodes, constants, ["N", 8], opset=21), normal(2, 8))


def test_an_unknown_operator_is_named() -> None:
    node = helper.make_node("Det", ["x"], ["y"], name="odd")
    with pytest.raises(Unusable, match=r"'odd' \(Det\)") as caught:
        import_graph(graph_of([node], {}, ["N", 3, 3]))
    assert caught.value.code == "operator_unsupported"
    assert "Det" not in BUILDERS
