"""ONNX operators (opset 18 or later) as PyTorch, one small builder each: what `training.backbones.imported` builds a
network from."""
