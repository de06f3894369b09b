"""The package that a model's file becomes: its folder appears whole, or not at all where adding fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from app.errors import Unusable
from app.files import PUBLIC, new_folder, replacing, sha256_of
from app.inference import golden
from app.inference.manifest import FileSource, Licence, Manifest, Provenance
from app.inference.package import Package, load_package, write_manifest
from app.inference.session import open_embedder


@dataclass(frozen=True, slots=True)
class NewPackage:
    """A file to add under a name; ``cache`` is the folder of prepared models."""

    file: Path
    name: str
    licence: Licence
    models_dir: Path
    cache: Path

    def check_free(self) -> None:
        """Raise Unusable ``package_exists`` if there is a folder of that name."""
        check_free(self.models_dir / self.name)

    def manifest(self, origin: str = "", figures: Mapping[str, JsonValue] | None = None, **facts: Any) -> Manifest:
        """Return the manifest with these ``facts``; ``origin`` says what they rest on."""
        text = f"Added from {self.file.name} by `likeness models add`{origin}."
        return Manifest(
            name=self.name,
            version="1",
            source=FileSource(),
            sha256=sha256_of(self.file),
            licence=self.licence,
            provenance=Provenance(text=text, figures=dict(figures or {})),
            **facts,
        )

    def make(self, manifest: Manifest, check: Callable[[Package], Manifest]) -> Package:
        """Return the package in its folder, which appears once ``check`` returned the manifest to write.

        ``check`` gets a draft of the package, with a copy of the file.
        """
        return _make(self.models_dir / self.name, self.file.read_bytes(), manifest, check)


def check_free(folder: Path) -> None:
    """Raise Unusable ``package_exists`` if there is such a folder."""
    if folder.exists():
        raise Unusable(f"{folder} exists already: remove it first.", code="package_exists", folder=str(folder))


def add_made(content: bytes, manifest: Manifest, models_dir: Path, cache_dir: Path) -> Package:
    """Add an embedder that was made here: its file's ``content`` and its manifest. What fails leaves nothing behind.

    Its golden vectors are compared, or recorded where it has none. Raises Unusable: package_exists, and the codes of
    `open_embedder`.
    """

    def check(draft: Package) -> Manifest:
        session = open_embedder(draft, cache_dir, "cpu")  # prepares it, and compares golden vectors
        return golden.with_golden(manifest, session.run)

    check_free(models_dir / manifest.name)
    return _make(models_dir / manifest.name, content, manifest, check)


def _make(folder: Path, content: bytes, manifest: Manifest, check: Callable[[Package], Manifest]) -> Package:
    with new_folder(folder) as draft:
        with replacing(draft / FileSource().path, PUBLIC) as file:
            file.write(content)
        write_manifest(draft, check(Package(draft, manifest)))
    return load_package(folder)
