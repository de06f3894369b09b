"""Crops in folders: one folder a person, as every tool can make them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from app.errors import InvalidInput
from training.data.dataset import OnError, StoredFaces

IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})


class FolderFaces(StoredFaces):
    """``root/person/.../image.jpg``: the first folder below ``root`` is the person. Images come in the order of their
    paths; files beside the people's folders, hidden ones, and such that are no images by their ending are left alone.
    """

    def __init__(self, root: Path, on_error: OnError = "raise") -> None:
        if not root.is_dir():
            raise InvalidInput(f"{root} is not a folder.", code="dataset_not_found")
        self.root = root
        self.paths = sorted(
            path.relative_to(root).as_posix()
            for person in root.iterdir()
            if person.is_dir() and not person.name.startswith(".")
            for path in person.rglob("*")
            if path.suffix.lower() in IMAGE_ENDINGS and not path.name.startswith(".")
        )
        super().__init__([path.partition("/")[0] for path in self.paths], on_error)

    def encoded(self, index: int) -> bytes:
        return (self.root / self.paths[index]).read_bytes()

    def describe(self, index: int) -> str:
        return self.paths[index]

    def files(self) -> Iterable[Path]:
        return (self.root / path for path in self.paths)
