"""The package that a model's file becomes: its folder is made with the file, and gone again if adding fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder with a copy of the file; both are removed if the block fails."""
        with new_folder(self.folder):
            with replacing(self.folder / FileSource().path, PUBLIC) as copy:
                copy.write(self.file.read_bytes())
            yield

    def finish(self, manifest: Manifest) -> Package:
        """Write the manifest and return the package."""
        write_manifest(self.folder, manifest)
        return load_package(self.folder)
