"""OpenVINO's files are read as OpenVINO itself computes them; what is not known is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from app.errors import Unusable
from app.models.measured import measured_models
from app.models.openvino_ir import read_ir
from app.models.reference import plain_session, run_plain
from app.package.golden import golden_crops
from app.package.manifest import Rewrite

FOLDER = Path(__file__).parent
XML, WEIGHTS = (FOLDER / "tiny_ir.xml").read_bytes(), (FOLDER / "tiny_ir.bin").read_bytes()
"""A net of every known operation with random weights in float16, written by OpenVINO 2026.4.1."""
PIXELS = (np.arange(3 * 16 * 16).reshape(1, 3, 16, 16) * 7919 % 256).astype(np.float32)
ANSWER = (
    0.14374, 0.479377, -1.834815, -0.421067, 0.000434, 5e-06, 0.000246, 0.037062,
    -0.507232, 2.342, 7.8e-05, 6.342355, 0.345278, -2e-06, -0.242523, 0.110957,
)  # fmt: skip
"""Of OpenVINO 2026.4.1's CPU plugin in float32 to these pixels."""


def test_every_operation_is_what_openvino_computes() -> None:
    model = read_ir(XML, WEIGHTS, "tiny")
    onnx.checker.check_model(model, full_check=True)
    session = plain_session(model)
    [vector] = session.run(None, {session.get_inputs()[0].name: PIXELS})[0]
    np.testing.assert_allclose(vector, ANSWER, atol=2e-6)


def test_the_same_files_make_the_same_bytes() -> None:
    assert read_ir(XML, WEIGHTS, "tiny").SerializeToString() == read_ir(XML, WEIGHTS, "tiny").SerializeToString()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b'type="Sigmoid"', b'type="HSwish"', "HSwish"),
        (b'auto_pad="explicit"', b'auto_pad="same_upper"', "auto_pad=same_upper"),
        (b'rounding_type="floor"', b'rounding_type="ceil"', "rounding_type=ceil"),
        (b'element_type="f16"', b'element_type="i8"', "i8"),
        (b"</net>", b"", "no element found"),
    ],
)
def test_what_is_not_known_is_refused(old: bytes, new: bytes, problem: str) -> None:
    assert old in XML
    with pytest.raises(Unusable) as caught:
        read_ir(XML.replace(old, new), WEIGHTS, "tiny")
    assert caught.value.code == "model_unsuitable"
    assert problem in caught.value.message


def test_weights_that_were_cut_are_refused() -> None:
    with pytest.raises(Unusable, match="behind the end of the weights"):
        read_ir(XML, WEIGHTS[:-2], "tiny")


def test_intels_embedder_makes_the_templates_that_openvino_makes(shared_data: Path) -> None:
    """The manifest's golden vectors are OpenVINO 2026.4.1's own."""
    manifest = measured_models()["intel-face"].manifest
    path = shared_data / "models" / "face-reidentification-retail-0095.xml"
    assert isinstance(manifest.prepare, Rewrite)
    assert manifest.golden is not None
    model = read_ir(path.read_bytes(), path.with_suffix(".bin").read_bytes(), "intel-face")
    vectors = run_plain(model, manifest.prepare.input, golden_crops())
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, manifest.golden.templates, atol=2e-6)
