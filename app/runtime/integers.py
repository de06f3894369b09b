"""Products of small integers by ONNX Runtime: the processor's 8-bit instructions (VNNI, AMX), which neither numpy nor
FAISS reaches for more than one query at a time."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.runtime.session import Session

Codes: TypeAlias = NDArray[np.uint8]
"""(N, D): each number plus ZERO."""
ZERO = 128
LARGEST = 63
"""Of the right factor. Processors before VNNI add two products in 16 bits, which 255 * 127 * 2 would not fit into."""


class IntegerProduct:
    """One thread a call, any number of callers. Raises Unusable ``model_not_loadable``."""

    def __init__(self) -> None:
        self._session = Session(_graph(), "cpu")

    def __call__(self, codes: Codes, columns: NDArray[np.int8]) -> NDArray[np.int32]:
        """(N, Q) exact products of `codes`, (N, D), less ZERO each, and `columns`, (D, Q) within ±LARGEST."""
        return self._session.run(codes, columns)[0].astype(np.int32, copy=False)


def _graph() -> bytes:
    from onnx import TensorProto, helper  # noqa: PLC0415 - takes longer than all else here, and few indexes need it

    node = helper.make_node("MatMulInteger", ["codes", "columns", "zero"], ["products"])
    inputs = [
        helper.make_tensor_value_info("codes", TensorProto.UINT8, ["n", "d"]),
        helper.make_tensor_value_info("columns", TensorProto.INT8, ["d", "q"]),
    ]
    outputs = [helper.make_tensor_value_info("products", TensorProto.INT32, ["n", "q"])]
    zero = helper.make_tensor("zero", TensorProto.UINT8, [], [ZERO])
    model = helper.make_model(
        helper.make_graph([node], "integer product", inputs, outputs, [zero]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    model.ir_version = 8  # the opset's own; older ONNX Runtimes refuse newer ones
    serialized: bytes = model.SerializeToString()
    return serialized
