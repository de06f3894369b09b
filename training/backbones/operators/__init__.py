"""ONNX operators (opset 18 or later) as PyTorch, one small builder each: what `training.backbones.imported` builds a
network from."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F

from training.backbones.operators import layers, shapes, values
from training.backbones.operators.node import Builder
from training.backbones.operators.values import folded, of_inputs, with_attributes

BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "Conv": layers.convolution,
        "BatchNormalization": layers.batch_normalisation,
        "PRelu": layers.prelu,
        "Gemm": layers.gemm,
        "MatMul": layers.matrix_product,
        "LayerNormalization": layers.layer_normalisation,
        "Relu": of_inputs(torch.relu),
        "LeakyRelu": with_attributes(values.leaky_relu, alpha=0.01),
        "Elu": with_attributes(F.elu, alpha=1.0),
        "Sigmoid": of_inputs(torch.sigmoid),
        "HardSigmoid": with_attributes(values.hard_sigmoid, alpha=0.2, beta=0.5),
        "HardSwish": of_inputs(F.hardswish),
        "Tanh": of_inputs(torch.tanh),
        "Softplus": of_inputs(F.softplus),
        "Mish": of_inputs(F.mish),
        "Gelu": with_attributes(F.gelu, approximate="none"),
        "Erf": of_inputs(torch.erf),
        "Softmax": with_attributes(values.softmax, axis=-1),
        "Clip": values.clip,
        "MaxPool": values.pool,
        "AveragePool": values.pool,
        "GlobalAveragePool": of_inputs(values.global_average),
        "GlobalMaxPool": of_inputs(values.global_maximum),
        **dict.fromkeys(values.REDUCTIONS, values.reduction),
        "LpNormalization": with_attributes(values.lp_normalisation, axis=-1, p=2),
        "Add": of_inputs(operator.add),
        "Sub": of_inputs(operator.sub),
        "Mul": of_inputs(operator.mul),
        "Div": of_inputs(operator.truediv),
        "Pow": of_inputs(torch.pow),
        "Sqrt": of_inputs(torch.sqrt),
        "Reciprocal": of_inputs(torch.reciprocal),
        "Exp": of_inputs(torch.exp),
        "Log": of_inputs(torch.log),
        "Abs": of_inputs(torch.abs),
        "Neg": of_inputs(torch.neg),
        "Min": folded(torch.minimum),
        "Max": folded(torch.maximum),
        "Sum": folded(operator.add),
        "Flatten": with_attributes(shapes.flatten, axis=1),
        "Reshape": shapes.reshape,
        "Shape": with_attributes(shapes.shape_of, start=0, end=None),
        "Transpose": shapes.transpose,
        "Squeeze": shapes.squeeze,
        "Unsqueeze": shapes.unsqueeze,
        "Concat": shapes.concatenation,
        "Split": shapes.split,
        "Slice": shapes.slicing,
        "Gather": shapes.gather,
        "Cast": shapes.cast,
        "Expand": shapes.expand,
        "Pad": shapes.padding,
        "Identity": shapes.identity,
        "Dropout": shapes.identity,
    }
)
"""Every operator that can be imported. DequantizeLinear of weights, and whatever else has only constant inputs, is
computed before."""
