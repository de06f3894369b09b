"""The package that a model's file becomes: its folder appears whole, or not at all where adding fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from app.errors import Unusable
from app.files import PUBLIC, new_folder, replacing, sha256_of
from app.inference.manifest import FileSource, Licence, Manifest, Provenance
from app.inference.package import Package, load_package, write_manifest


@dataclass(frozen=True, slots=True)
class NewPackage:
    """A file to add under a name; ``cache`` is the folder of prepared models."""

    file: Path
    name: str
    licence: Licence
    models_dir: Path
    cache: Path

    @property
    def folder(self) -> Path:
        return self.models_dir / self.name

    def check_free(self) -> None:
        """Raise Unusable ``package_exists`` if there is a folder of that name."""
        if self.folder.exists():
            message = f"{self.folder} exists already: remove it first."
            raise Unusable(message, code="package_exists", folder=str(self.folder))

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
        with new_folder(self.folder) as draft:
            with replacing(draft / FileSource().path, PUBLIC) as copy:
                copy.write(self.file.read_bytes())
            write_manifest(draft, check(Package(draft, manifest)))
        return load_package(self.folder)
