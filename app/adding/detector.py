"""Add a face detector: an ONNX file of YuNet's form becomes a model package.

Only YuNet's outputs are decoded (`app.face.yunet`), so every other detector is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.adding.graph_facts import read_file
from app.adding.package_folder import free_folder, holding
from app.errors import Unusable
from app.files import sha256_of
from app.inference.manifest import FileSource, Licence, Manifest, Provenance, RewriteYuNet, Tensor
from app.inference.package import Package, load_package, write_manifest

INPUT = Tensor(shape=("N", "H", "W", 3), dtype="uint8", meaning="photos, RGB, 0-255, sides of whole 32 pixels")
OUTPUT = Tensor(
    shape=("N", "K", 15),
    dtype="float32",
    meaning="an anchor's box (centre, logarithms of the sides), five landmarks (x, y), both in strides, score 0-1",
)


def add_detector(
    file: Path, name: str, licence: Licence, models_dir: Path, finds: Callable[[Package], tuple[int, int]]
) -> Package:
    """Write the package into ``models_dir``. What fails leaves nothing behind.

    ``finds`` opens the package, and returns in how many of how many photos of faces it finds one. Raises Unusable:
    package_exists, model_unsuitable (no ONNX file), model_separates_nothing (it misses all), and what ``finds`` raises.
    """
    folder = free_folder(models_dir, name)
    read_file(file)
    manifest = Manifest(
        name=name,
        version="1",
        task="detect",
        title=f"{name}, a YuNet",
        source=FileSource(),
        sha256=sha256_of(file),
        prepare=RewriteYuNet(),
        input=INPUT,
        output=OUTPUT,
        licence=licence,
        provenance=Provenance(text=f"Added from {file.name} by `likeness models add`."),
    )
    with holding(file, folder):
        found, photos = finds(Package(folder, manifest))  # prepares it, and compares it with the file
        if not found:
            message = f"{file.name} finds no face in any of {photos} photos of faces."
            raise Unusable(message, code="model_separates_nothing", photos=photos)
        write_manifest(folder, manifest)
        return load_package(folder)
