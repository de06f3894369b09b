"""Rewritten graphs answer what their sources answer, take any batch, and are made once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from PIL import Image

from app.errors import Unusable
from app.inference.embedders import unit
from app.inference.session import EmbedderSession, Session
from app.models import cpu_graph
from app.models.opening import open_embedder
from app.models.packages import locate, sha256_of, write_manifest
from app.models.prepare import Target, check_prepared, prepared, rewrite
from app.models.reference import resampling, run_plain
from app.package.folders import Package, find_packages, load_package, select
from app.package.golden import check_crops
from app.package.manifest import Cutout, Rewrite, RunAsIs, SourceInput
from app.types import Pixels
from tests.conftest import PROJECT
from tests.support import packages

Array = NDArray[np.float32]

# --- Random networks: the rewritten graph against the graph as it was ------------------------------------------------


@dataclass
class Net:
    """A chain of layers being built, (N, channels, side, side) floats in; ``random`` fixes its weights."""

    random: np.random.Generator
    channels: int = 3
    side: int = 9
    opset: int = 18
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    last: str = "in"

    def add(self, kind: str, *values: NDArray[np.generic], **attributes: int | float | list[int]) -> None:
        number = len(self.nodes)
        names = [f"c{number}_{place}" for place in range(len(values))]
        self.constants += [numpy_helper.from_array(value, name) for value, name in zip(values, names, strict=True)]
        node = helper.make_node(kind, [self.last, *names], [f"t{number}"], f"n{number}", None, None, None, **attributes)
        self.nodes.append(node)
        self.last = f"t{number}"

    def floats(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Array:
        return self.random.uniform(low, high, shape).astype(np.float32)

    def conv(self, out: int, kernel: int, pad: int, *, depthwise: bool, bias: bool) -> None:
        out = self.channels if depthwise else out
        weight = self.floats(out, 1 if depthwise else self.channels, kernel, kernel)
        group = self.channels if depthwise else 1
        self.add("Conv", weight, *[self.floats(out)] * bias, group=group, pads=[pad] * 4, kernel_shape=[kernel] * 2)
        self.channels, self.side = out, self.side + 2 * pad - kernel + 1

    def batch_norm(self) -> None:
        c = self.channels
        self.add(
            "BatchNormalization", self.floats(c), self.floats(c), self.floats(c), self.floats(c, low=0.1), epsilon=1e-3
        )

    def prelu(self, *, low: float, high: float, shared: bool) -> None:
        self.add("PRelu", self.floats(*((1,) if shared else (self.channels, 1, 1)), low=low, high=high))

    def residual(self) -> None:
        before = self.last
        self.conv(self.channels, 3, 1, depthwise=False, bias=False)
        self.nodes.append(helper.make_node("Add", [self.last, before], [f"{self.last}_sum"]))
        self.last += "_sum"

    def gemm(self, out: int, *, transposed: bool) -> None:
        self.add("Flatten", axis=1)
        inputs = self.channels * self.side**2
        weight = self.floats(*((out, inputs) if transposed else (inputs, out)))
        self.add("Gemm", weight, self.floats(out), transB=int(transposed))
        self.channels = out

    def model(self, *, dims: list[int | str] | None = None) -> ModelProto:
        """The network with its constants listed as inputs too, as old exporters do."""
        inputs = [helper.make_tensor_value_info("in", TensorProto.FLOAT, dims or [1, 3, 9, 9])]
        inputs += [helper.make_tensor_value_info(c.name, c.data_type, list(c.dims)) for c in self.constants]
        inputs.append(helper.make_tensor_value_info("left_over", TensorProto.FLOAT, [4]))
        outputs = [helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)]
        made = helper.make_graph(self.nodes, "net", inputs, outputs, self.constants)
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=6)
        shape = next(each for each in onnx.shape_inference.infer_shapes(model).graph.output)
        model.graph.output[0].CopyFrom(shape)
        return model


Layer = Callable[[Net], None]

convs = st.builds(
    lambda out, kernel, pad, depthwise, bias: lambda net: net.conv(out, kernel, pad, depthwise=depthwise, bias=bias),
    st.sampled_from([2, 5, 40]),
    st.sampled_from([1, 3]),
    st.just(1),
    st.booleans(),
    st.booleans(),
) | st.just(lambda net: net.conv(4, 1, 0, depthwise=False, bias=True))
prelus = st.builds(
    lambda bounds, shared: lambda net: net.prelu(low=bounds[0], high=bounds[1], shared=shared),
    st.sampled_from([(-0.5, 0.9), (0.5, 1.5), (1.0, 1.0), (0.0, 0.0)]),
    st.booleans(),
)
constant_ops = st.builds(
    lambda kind, per_channel: (
        lambda net: net.add(kind, net.floats(*((net.channels, 1, 1) if per_channel else (1,)), low=0.5, high=2.0))
    ),
    st.sampled_from(["Mul", "Add", "Sub", "Div"]),
    st.booleans(),
)
others = st.sampled_from(
    [
        Net.batch_norm,
        Net.residual,
        lambda net: net.add("Dropout"),
        lambda net: net.add("Identity"),
        lambda net: net.add("Relu"),
    ]
)
layers: st.SearchStrategy[Layer] = convs | prelus | constant_ops | others


def open_session(model: ModelProto, *, optimised: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: ModelProto, images: Array) -> Array:
    """The slow oracle: ONNX Runtime without any optimisation of its own."""
    session = open_session(model, optimised=False)
    feed = {"in": images} | {
        each.name: np.zeros(each.shape, np.float32) for each in session.get_inputs() if each.name != "in"
    }
    result: Array = session.run(None, feed)[0]
    return result


def images(seed: int, count: int) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 3, 9, 9)).astype(np.float32)


def assert_alike(rewritten: ModelProto, source: ModelProto, batch: Array) -> None:
    """The rewritten graph on the whole batch is the source on one image after the other."""
    expected = np.concatenate([run(source, image[None]) for image in batch])
    found = run(rewritten, batch)
    assert np.abs(found - expected).max() <= 1e-4 * max(1.0, float(np.abs(expected).max()))


@st.composite
def networks(draw: st.DrawFn) -> Net:
    net = Net(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), opset=draw(st.sampled_from([12, 18, 21])))
    for layer in draw(st.lists(layers, min_size=1, max_size=7)):
        layer(net)
    transposed = draw(st.sampled_from([None, True, False]))
    if transposed is not None:
        net.gemm(6, transposed=transposed)
    if draw(st.booleans()):
        net.batch_norm()
    return net


@settings(max_examples=60)
@given(networks(), st.sampled_from(["cpu", "cuda"]))
def test_any_chain_of_layers_keeps_its_meaning(net: Net, target: Target) -> None:
    source = net.model()
    rewritten = rewrite(source, Rewrite(), target)
    onnx.checker.check_model(rewritten, full_check=True)
    assert [each.name for each in rewritten.graph.input] == ["in"]
    assert_alike(rewritten, source, images(3, 3))


def kinds(model: ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


AFTER_GEMM = "BatchNormalization"
"""The one that may stay: a few hundred numbers a face, which ONNX Runtime does not fuse into the Gemm before it."""


def typical() -> Net:
    """What face networks consist of: convolutions with BatchNorm and PReLU, a fully connected layer between norms."""
    net = Net(np.random.default_rng(7))
    for depthwise in (False, True, False):
        net.conv(4, 3, 1, depthwise=depthwise, bias=False)
        net.batch_norm()
        net.prelu(low=-0.5, high=0.9, shared=False)
    net.batch_norm()
    net.gemm(6, transposed=True)
    net.batch_norm()
    return net


def test_batch_norms_and_prelus_of_a_face_network_vanish() -> None:
    source = typical().model()
    rewritten = rewrite(source, Rewrite(), "cpu")
    assert [node.op_type for node in rewritten.graph.node].count("BatchNormalization") == 1
    assert kinds(rewritten) == {"Conv", "Relu", "Add", "Flatten", "Gemm", AFTER_GEMM}
    assert_alike(rewritten, source, images(1, 2))


def test_a_gpu_keeps_its_prelus() -> None:
    assert kinds(rewrite(typical().model(), Rewrite(), "cuda")) == {"Conv", "PRelu", "Flatten", "Gemm", AFTER_GEMM}


def test_a_constant_that_adds_channels_is_no_scale() -> None:
    net = Net(np.random.default_rng(0))
    net.conv(1, 1, 0, depthwise=False, bias=True)
    net.add("Mul", net.floats(4, 1, 1))
    net.channels = 4
    net.conv(2, 1, 0, depthwise=False, bias=True)
    source = net.model()
    assert_alike(rewrite(source, Rewrite(), "cpu"), source, images(3, 2))


def test_layers_run_per_image_answer_the_same() -> None:
    source = typical().model()
    whole = rewrite(source, Rewrite(), "cpu")
    split = ModelProto.FromString(whole.SerializeToString())
    cpu_graph.run_trunk_per_image(split, large=1)
    onnx.checker.check_model(split, full_check=True)
    assert kinds(split) == {"Scan", "Gemm", AFTER_GEMM}
    assert_alike(split, source, images(4, 5))


def test_layers_stay_together_where_something_goes_around_the_last() -> None:
    model = rewrite(typical().model(), Rewrite(), "cpu")
    early = model.graph.node[0].output[0]
    model.graph.node.append(helper.make_node("Identity", [early], ["second"]))
    model.graph.output.append(helper.make_tensor_value_info("second", TensorProto.FLOAT, None))
    before = model.SerializeToString()
    cpu_graph.run_trunk_per_image(model, large=1)
    assert model.SerializeToString() == before


def test_a_reshape_to_a_batch_of_one_is_freed() -> None:
    net = Net(np.random.default_rng(0))
    net.conv(4, 3, 1, depthwise=False, bias=True)
    net.add("Reshape", np.array([1, -1], np.int64))
    source = net.model()
    assert_alike(rewrite(source, Rewrite(), "cpu"), source, images(5, 3))


def test_constants_are_computed_beforehand() -> None:
    net = Net(np.random.default_rng(0))
    weight = net.random.integers(-9, 9, (4, 3)).astype(np.int8)
    net.constants += [
        numpy_helper.from_array(weight, "quantised"),
        numpy_helper.from_array(np.array([0.1, 0.2, 0.3, 0.4], np.float32), "scales"),
        numpy_helper.from_array(np.array([4, 3, 1, 1], np.int64), "shape"),
    ]
    net.nodes = [
        helper.make_node("DequantizeLinear", ["quantised", "scales"], ["floats"], axis=0),
        helper.make_node("Reshape", ["floats", "shape"], ["weight"]),
        helper.make_node("Conv", ["in", "weight"], ["out"]),
    ]
    net.last = "out"
    source = net.model()
    rewritten = rewrite(source, Rewrite(), "cpu")
    assert kinds(rewritten) == {"Conv"}
    assert_alike(rewritten, source, images(6, 2))


# --- The contract from any source input ------------------------------------------------------------------------------


def source_graph(form: SourceInput, batch: int = 1) -> ModelProto:
    """A network that wants what ``form`` says and answers vectors of any length."""
    side = form.cutout.side if form.cutout else 112
    shape = [batch, 3, side, side] if form.layout == "nchw" else [batch, side, side, 3]
    kind = TensorProto.FLOAT if form.dtype == "float32" else TensorProto.UINT8
    net = Net(np.random.default_rng(11), last="in")
    if form.dtype == "uint8":
        net.add("Cast", to=int(TensorProto.FLOAT))
    if form.layout == "nhwc":
        net.add("Transpose", perm=[0, 3, 1, 2])
    net.add("Conv", net.floats(4, 3, 5, 5), strides=[7, 7], pads=[2, 2, 2, 2], kernel_shape=[5, 5])
    net.channels, net.side = 4, 16
    net.prelu(low=0.1, high=0.4, shared=False)
    net.gemm(8, transposed=True)
    outputs = [helper.make_tensor_value_info(net.last, TensorProto.FLOAT, [batch, 8])]
    inputs = [helper.make_tensor_value_info("in", kind, shape)]
    made = helper.make_graph(net.nodes, "source", inputs, outputs, net.constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("colour", ["rgb", "bgr"])
@pytest.mark.parametrize(
    ("dtype", "mean", "std"),
    [
        ("uint8", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ("float32", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ("float32", (127.5, 127.5, 127.5), (128.0, 128.0, 128.0)),
        ("float32", (104.0, 117.0, 123.0), (57.0, 58.0, 59.0)),
    ],
)
def test_the_contract_is_made_of_any_source_input(
    layout: str, colour: str, dtype: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    form = SourceInput.model_validate({"layout": layout, "colour": colour, "dtype": dtype, "mean": mean, "std": std})
    source, plan = source_graph(form), Rewrite(input=form, unit_output=False)
    crops = check_crops()
    rewritten = rewrite(source, plan, "cpu")
    # written out once more, apart from the code under test
    given_: NDArray[np.generic] = crops[..., ::-1] if colour == "bgr" else crops
    if dtype == "float32":
        given_ = (given_.astype(np.float32) - np.array(mean, np.float32)) / np.array(std, np.float32)
    given_ = given_.transpose(0, 3, 1, 2) if layout == "nchw" else given_
    raw = np.concatenate([ort_run(source, image[None]) for image in given_]).astype(np.float64)
    expected = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    found = ort_run(rewritten, crops)
    assert (expected * found).sum(axis=1).min() >= 0.999999
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert np.abs(unit(run_plain(source, plan.input, crops).astype(np.float64)) - expected).max() < 1e-6


CUTOUT = Cutout(side=109, scale=1.2, left=-5.4, top=-3.2)
CUBIC = cv2.INTER_CUBIC


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_crops_are_resampled_to_the_cutout_that_a_graph_was_trained_with(layout: str) -> None:
    form = SourceInput.model_validate(
        {"layout": layout, "dtype": "float32", "colour": "bgr", "mean": (1.0, 2.0, 3.0), "cutout": CUTOUT}
    )
    source, crops = source_graph(form), check_crops()
    matrix = np.array([[1.2, 0, -5.4], [0, 1.2, -3.2]])
    bgr = crops[..., ::-1].astype(np.float32)
    cut: Array = np.stack([cv2.warpAffine(crop, matrix, (109, 109), flags=CUBIC) for crop in bgr]).astype(np.float32)
    cut -= np.array([1, 2, 3], np.float32)
    cut = cut.transpose(0, 3, 1, 2) if layout == "nchw" else cut
    raw = np.concatenate([ort_run(source, image[None]) for image in cut])
    found = ort_run(rewrite(source, Rewrite(input=form, unit_output=False), "cpu"), crops)
    assert (unit(raw.astype(np.float64)) * found).sum(axis=1).min() >= 0.9999, "OpenCV rounds places to 1/32 pixel"


def test_a_whole_crop_in_another_size_is_as_opencv_resizes_it() -> None:
    scale = 160 / 112
    rows, columns = resampling(Cutout(side=160, scale=scale, left=(scale - 1) / 2, top=(scale - 1) / 2))
    crop = check_crops()[-1][..., 0].astype(np.float64)
    expected = cv2.resize(crop, (160, 160), interpolation=CUBIC)
    assert np.abs(rows @ crop @ columns.T - expected).max() < 0.01, "of 255; OpenCV has the weights in float32"


def ort_run(model: ModelProto, value: NDArray[np.generic]) -> Array:
    session = open_session(model)
    result: Array = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(value)})[0]
    return result


def test_the_zero_vector_stays_zero() -> None:
    source = source_graph(SourceInput(dtype="float32", layout="nchw"))
    for constant in source.graph.initializer:
        if constant.dims == [8]:  # the last layer's bias
            constant.CopyFrom(numpy_helper.from_array(np.zeros(8, np.float32), constant.name))
    plan = Rewrite(input=SourceInput(dtype="float32", layout="nchw"), unit_output=False)
    assert not ort_run(rewrite(source, plan, "cpu"), np.zeros((1, 112, 112, 3), np.uint8)).any()


# --- Exported from torch ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_network_exported_by_torch_is_made_fast_and_answers_the_same() -> None:
    torch = pytest.importorskip("torch", reason="the train extra brings torch")
    pytest.importorskip("onnxscript", reason="the train extra brings onnxscript")

    class Face(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is imported where it is there
        def __init__(self) -> None:
            super().__init__()
            nn = torch.nn
            self.body = nn.Sequential(
                nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.PReLU(8),
                nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.PReLU(8),
                nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8 * 49, 16), nn.BatchNorm1d(16),
            )  # fmt: skip

        def forward(self, crops):  # type: ignore[no-untyped-def]  # the same
            values = (crops.permute(0, 3, 1, 2).float() - 127.5) / 127.5
            return torch.nn.functional.normalize(self.body(values))

    torch.manual_seed(0)
    network = Face()
    with torch.no_grad():
        for value in network.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.1, 0.6)
    network.eval()
    crops = check_crops()
    batch = torch.export.Dim("N")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        exported = torch.onnx.export(
            network, (torch.from_numpy(crops),), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
        )
    source = exported.model_proto
    rewritten = rewrite(source, Rewrite(), "cpu")
    with torch.no_grad():
        expected = network(torch.from_numpy(crops)).numpy()
    assert not {"BatchNormalization", "PRelu"} & kinds(rewritten)
    assert np.abs(ort_run(rewritten, crops) - expected).max() < 1e-5
    assert check_prepared(source, rewritten, Rewrite(), crops) >= 0.999999


# --- SFace -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sface() -> Package:
    return select(find_packages(PROJECT / "models"), "sface")


@pytest.fixture(scope="module")
def sface_source(sface: Package, tmp_path_factory: pytest.TempPathFactory) -> ModelProto:
    model: ModelProto = ModelProto.FromString(locate(sface, tmp_path_factory.mktemp("cache")).read_bytes())
    return model


@pytest.fixture(scope="module")
def face_crops(astronaut: Pixels) -> Pixels:
    """(5, 112, 112, 3) uint8: one real face, framed and lit in five ways."""
    photo = Image.fromarray(astronaut)
    boxes = [(160, 40, 290, 170), (170, 60, 280, 170), (150, 30, 300, 180)]
    crops = [np.asarray(photo.crop(box).resize((112, 112), Image.Resampling.BOX)) for box in boxes]
    return np.stack([*crops, crops[0][:, ::-1], crops[1] // 2])


@pytest.fixture(scope="module")
def sface_oracle(sface_source: ModelProto) -> Callable[[Pixels], NDArray[np.float64]]:
    """The file as it came, fed by hand: float RGB planes one by one, and nothing for the inputs that lead nowhere."""
    session = open_session(sface_source)
    nothing = {each.name: np.zeros(each.shape, np.float32) for each in session.get_inputs() if each.name != "data"}

    def embed(crops: Pixels) -> NDArray[np.float64]:
        planes = crops.transpose(0, 3, 1, 2).astype(np.float32)
        raw = np.concatenate([session.run(None, {"data": each[None]} | nothing)[0] for each in planes])
        lengths = np.linalg.norm(raw.astype(np.float64), axis=1, keepdims=True)
        return np.asarray(raw / lengths, np.float64)

    return embed


@pytest.mark.parametrize("target", ["cpu", pytest.param("cuda", marks=pytest.mark.long)])
def test_prepared_sface_keeps_its_vectors_on_a_real_face(
    sface: Package,
    sface_source: ModelProto,
    sface_oracle: Callable[[Pixels], NDArray[np.float64]],
    face_crops: Pixels,
    target: Target,
) -> None:
    plan = sface.manifest.prepare
    assert isinstance(plan, Rewrite)
    rewritten = rewrite(sface_source, plan, target)
    found = ort_run(rewritten, face_crops).astype(np.float64)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    cosines = (found * sface_oracle(face_crops)).sum(axis=1)
    assert cosines.min() >= 0.9999999
    assert check_prepared(sface_source, rewritten, plan, face_crops) == pytest.approx(cosines.min(), abs=1e-9)


@pytest.mark.long
def test_sface_in_half_keeps_its_golden_vectors_and_nearly_its_templates(
    sface: Package, sface_oracle: Callable[[Pixels], NDArray[np.float64]], face_crops: Pixels, tmp_path: Path
) -> None:
    model = prepared(sface, tmp_path, "cuda-fp16")
    found = EmbedderSession(sface, Session(model, "cpu")).run(face_crops).astype(np.float64)
    assert (found * sface_oracle(face_crops)).sum(axis=1).min() > 0.9999
    assert prepared(sface, tmp_path, "cuda-fp16") == model
    assert model.stat().st_size < 0.6 * prepared(sface, tmp_path, "cuda").stat().st_size


def test_a_model_that_is_run_as_it_is_can_be_halved_too(tmp_path: Path) -> None:
    package = packages.package(tmp_path / "package")
    halved, usual = (prepared(package, tmp_path / "cache", target) for target in ("cuda-fp16", "cuda"))
    crops = check_crops()
    one, other = (EmbedderSession(package, Session(model, "cpu")).run(crops) for model in (halved, usual))
    assert halved != usual
    assert (one * other).sum(axis=1).min() > 0.999


# --- Made once, checked, kept ----------------------------------------------------------------------------------------

PLAN = Rewrite(input=SourceInput(layout="nchw", dtype="float32"), unit_output=False)


def tiny(folder: Path) -> Package:
    return packages.package(folder, source_graph(PLAN.input), PLAN)


def test_a_prepared_file_is_kept_and_found_without_the_graph_library(tmp_path: Path) -> None:
    first = prepared(tiny(tmp_path / "package"), tmp_path / "cache", "cpu")
    assert list((tmp_path / "cache").iterdir()) == [first]
    script = (
        "import sys; from pathlib import Path; from app.package.folders import load_package;"
        "from app.models.prepare import prepared;"
        f"print(prepared(load_package(Path({str(tmp_path / 'package')!r})), Path({str(tmp_path / 'cache')!r}), 'cpu'));"
        "print('onnx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(first), "False"]


def test_devices_and_plans_have_files_of_their_own(tmp_path: Path) -> None:
    package = tiny(tmp_path / "package")
    other_plan = PLAN.model_copy(update={"input": PLAN.input.model_copy(update={"colour": "bgr"})})
    other = packages.package(tmp_path / "other", source_graph(PLAN.input), other_plan)
    cache = tmp_path / "cache"
    files = {prepared(package, cache, "cpu"), prepared(package, cache, "cuda"), prepared(other, cache, "cpu")}
    assert len(files) == 3


def test_a_damaged_prepared_file_is_made_again(tmp_path: Path) -> None:
    package = tiny(tmp_path / "package")
    first = prepared(package, tmp_path / "cache", "cpu")
    whole = first.read_bytes()
    first.write_bytes(whole[:-10])
    assert prepared(package, tmp_path / "cache", "cpu").read_bytes() == whole


@pytest.mark.parametrize("read", ["sha256_of", "locate"])
def test_a_package_that_is_removed_while_it_is_opened_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """As another server that shares the data folder does, before its file is hashed or before it is read."""
    package = tiny(tmp_path / "package")

    def removed(*arguments: Any) -> Any:
        found = locate(*arguments) if read == "locate" else arguments[0]
        shutil.rmtree(package.folder)
        return found if read == "locate" else sha256_of(found)

    monkeypatch.setattr(f"app.models.{'prepare' if read == 'locate' else 'packages'}.{read}", removed)
    with pytest.raises(Unusable, match=r"was removed while it was opened") as caught:
        prepared(package, tmp_path / "cache", "cpu")
    assert caught.value.code == "package_file_missing"


def test_preparing_at_the_same_time_gives_one_file(tmp_path: Path) -> None:
    package = tiny(tmp_path / "package")
    with ThreadPoolExecutor(3) as pool:
        made = set(pool.map(lambda _: prepared(package, tmp_path / "cache", "cpu"), range(3)))
    assert set((tmp_path / "cache").iterdir()) == made
    assert len(made) == 1


def refused(package: Package, cache: Path) -> str:
    with pytest.raises(Unusable) as caught:
        prepared(package, cache, "cpu")
    return caught.value.code


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    content = b"no model at all"
    write_manifest(tmp_path, packages.manifest(content, prepare=PLAN))
    (tmp_path / "model.onnx").write_bytes(content)
    assert refused(load_package(tmp_path), tmp_path / "cache") == "package_not_preparable"


def test_a_manifest_that_misdescribes_the_input_is_refused(tmp_path: Path) -> None:
    package = packages.package(tmp_path, source_graph(PLAN.input), Rewrite(input=SourceInput(layout="nhwc")))
    assert refused(package, tmp_path / "cache") == "package_not_preparable"


@pytest.mark.parametrize("plan", [RunAsIs(), Rewrite()], ids=["as is", "rewritten"])
@pytest.mark.parametrize("where", ["initializer", "attribute"])
def test_weights_outside_the_file_are_refused(tmp_path: Path, plan: RunAsIs | Rewrite, where: str) -> None:
    """The session would read them from a file beside the model, whose content no hash covers."""
    model = packages.contract_model()
    weights = model.graph.initializer[0]
    (tmp_path / "weights.bin").write_bytes(numpy_helper.to_array(weights).tobytes())
    outside = TensorProto(name=weights.name, dims=weights.dims, data_type=weights.data_type)
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="weights.bin")
    if where == "initializer":
        weights.CopyFrom(outside)
    else:
        model.graph.initializer.remove(weights)
        model.graph.node.insert(0, helper.make_node("Constant", [], [outside.name], value=outside))
    package = packages.package(tmp_path, model, plan)
    with pytest.raises(Unusable, match="no hash covers") as caught:
        open_embedder(package, tmp_path / "cache", "cpu")
    assert caught.value.code == "package_external_weights"


def test_a_model_that_only_speaks_of_locations_is_opened(tmp_path: Path) -> None:
    model = packages.contract_model()
    model.doc_string = "location"
    assert prepared(packages.package(tmp_path, model), tmp_path / "cache", "cpu") == tmp_path / "model.onnx"


def test_a_second_output_is_refused(tmp_path: Path) -> None:
    model = source_graph(PLAN.input)
    model.graph.output.append(model.graph.output[0])
    assert refused(packages.package(tmp_path, model, PLAN), tmp_path / "cache") == "package_not_preparable"


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    assert refused(tiny(tmp_path / "package"), tmp_path / "cache") == "cache_not_writable"


def test_a_machine_without_a_folder_for_temporary_files_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose root is read-only and that has no `/tmp`."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])  # not even root can write there
    with pytest.raises(Unusable, match="TMPDIR") as caught:
        prepared(load_package(PROJECT / "models" / "yunet"), tmp_path, "cpu")
    assert caught.value.code == "package_not_preparable"
    assert "manifest" not in caught.value.message


def test_a_rewriting_that_changes_the_vectors_is_noticed() -> None:
    source = source_graph(PLAN.input)
    changed = rewrite(source, PLAN, "cpu")
    for constant in changed.graph.initializer:
        if constant.dims == [8]:
            constant.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(constant) + 40, constant.name))
    with pytest.raises(Unusable, match="cosine"):
        check_prepared(source, changed, PLAN, check_crops())
