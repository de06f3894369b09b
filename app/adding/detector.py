"""Add a face detector: an ONNX file of YuNet's form becomes a model package.

Only YuNet's outputs are decoded (`app.face.yunet`), so every other detector is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from app.adding.graph_facts import read_file
from app.adding.new_package import NewPackage
from app.errors import Unusable
from app.inference.manifest import Manifest, RewriteYuNet, Tensor
from app.inference.package import Package

INPUT = Tensor(shape=("N", "H", "W", 3), dtype="uint8", meaning="photos, RGB, 0-255, sides of whole 32 pixels")
OUTPUT = Tensor(
    shape=("N", "K", 15),
    dtype="float32",
    meaning="an anchor's box (centre, logarithms of the sides), five landmarks (x, y), both in strides, score 0-1",
)


def add_detector(new: NewPackage, finds: Callable[[Package], tuple[int, int]]) -> Package:
    """Add a YuNet's file. What fails leaves nothing behind.

    ``finds`` opens the package, and returns in how many of how many photos of faces it finds one. Raises Unusable:
    package_exists, model_unsuitable (no ONNX file), model_separates_nothing (it misses all), and what ``finds`` raises.
    """
    new.check_free()
    read_file(new.file)
    title = f"{new.name}, a YuNet"
    manifest = new.manifest(task="detect", title=title, prepare=RewriteYuNet(), input=INPUT, output=OUTPUT)

    def check(draft: Package) -> Manifest:
        found, photos = finds(draft)  # prepares it, and compares it with the file
        if not found:
            message = f"{new.file.name} finds no face in any of {photos} photos of faces."
            raise Unusable(message, code="model_separates_nothing", photos=photos)
        return manifest

    return new.make(manifest, check)
