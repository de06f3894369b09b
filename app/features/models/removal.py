"""Remove model packages that were added here, unless something still needs them."""

from __future__ import annotations

import shutil
from pathlib import Path

import sqlalchemy as sa

from app.api.components import Components
from app.db.schema import GALLERIES, PACKAGES, REEMBEDDINGS
from app.errors import Conflict, InvalidInput, NotFound, Unusable
from app.features.locked_folder import locked_folder
from app.files import DRAFT
from app.package.folders import OWN_FOLDER, Package, select

PREPARED = "models"
"""Name of the folder in the data folder with downloaded and prepared files."""


class ModelRemover:
    """Removes packages from the data folder. Safe to share between threads; other processes may use the same data
    folder."""

    def __init__(self, core: Components, data_dir: Path, detector: str) -> None:
        """``detector`` is the name of the detector's package, from the settings."""
        self._core = core
        self._added = data_dir / OWN_FOLDER
        self._cache = data_dir / PREPARED
        self._detector = detector

    def remove(self, name: str) -> str:
        """Remove the package called ``name`` or ``name@version``, with its downloaded and prepared files; return its
        id.

        Operating points that were measured here stay, since the same package may be added again. If another process is
        creating a gallery with the package at this moment, the gallery answers ``package_unavailable`` until the
        package is added again.

        Raises NotFound ``package_not_found``; Conflict ``package_in_use``, ``package_shipped``; InvalidInput
        ``package_ambiguous``; Unusable if the folder can't be changed.
        """
        package = self._find(name)
        self._check_free(package)
        try:
            # `app.models.packages.new_folder` holds this lock while it adds a package.
            with locked_folder(self._added):
                gone = package.folder.with_name(f".{package.folder.name}{DRAFT}")
                shutil.rmtree(gone, ignore_errors=True)
                # The package is gone from here on. If the process is killed, adding the next package deletes the rest.
                package.folder.rename(gone)
                try:
                    self._check_free(package)  # again: a gallery may have been made meanwhile
                except Conflict:
                    gone.rename(package.folder)
                    raise
                shutil.rmtree(gone, ignore_errors=True)
        except FileNotFoundError:
            raise _not_found(name) from None  # another process has removed it
        except BlockingIOError:
            raise _in_use(
                package, "a model is being added or removed just now; try again after it", reason="adding"
            ) from None
        except OSError as error:
            message = f"{package.folder} can't be removed: {error.strerror}. Make the data folder writable."
            raise Unusable(message, package=package.id) from None
        for file in self._cache.glob(f"{package.id}-{package.manifest.sha256[:16]}*"):
            file.unlink(missing_ok=True)
        self._core.embedders.forget(package.id)
        return package.id

    def _find(self, name: str) -> Package:
        """Return the package with this name. Raises NotFound ``package_not_found``, InvalidInput ``package_ambiguous``,
        Conflict ``package_shipped``."""
        try:
            package = select(self._core.embedders.packages(), name)
        except Unusable as error:
            if error.code == "package_unknown":
                raise _not_found(name) from None
            raise InvalidInput(error.message, code=error.code, **error.details) from None
        if not package.added:
            message = f"{package.id} was not added here: it lies in the models folder, which only its operator changes."
            raise Conflict(message, code="package_shipped", package=package.id)
        return package

    def _check_free(self, package: Package) -> None:
        """Raise Conflict ``package_in_use`` if galleries or the server need the package."""
        if package.id == self._core.embedders.default.id or self._detector in {package.id, package.manifest.name}:
            setting = "LIKENESS_EMBEDDER" if package.manifest.task == "embed" else "LIKENESS_DETECTOR"
            raise _in_use(package, f"the server runs with it ({setting})", reason="default")
        if package.id in self._core.gates.devices:
            raise _in_use(package, "it judges liveness here", reason="liveness")
        if self._is_another(package):
            return  # the galleries' templates are of another model with the same id, so they can't use this package
        users, moves = self._galleries_of(package)
        if users:
            why = f"galleries have templates of it: {', '.join(users)}"
            raise _in_use(package, why, reason="galleries", galleries=users)
        if moves:
            why = f"galleries move to it or can go back to it: {', '.join(moves)}"
            raise _in_use(package, why, reason="reembedding", galleries=moves)

    def _is_another(self, package: Package) -> bool:
        """Return whether the stored templates with this package's id were made by another model
        (`store.bind_package`)."""
        bound = self._core.store.database.column(sa.select(PACKAGES.c.digest).where(PACKAGES.c.id == package.id))
        return bool(bound) and package.manifest.recipe_digest not in bound

    def _galleries_of(self, package: Package) -> tuple[list[str], list[str]]:
        """Return the ids of the galleries that use the package, and of those that are being re-embedded to or from
        it."""
        using = sa.select(GALLERIES.c.id).where(GALLERIES.c.embedder == package.id)
        moving = sa.select(GALLERIES.c.id).join(REEMBEDDINGS, REEMBEDDINGS.c.gallery_key == GALLERIES.c.key)
        moving = moving.where((REEMBEDDINGS.c.source == package.id) | (REEMBEDDINGS.c.target == package.id))
        database = self._core.store.database
        return sorted(database.column(using)), sorted(database.column(moving))


def _not_found(name: str) -> NotFound:
    return NotFound(f"There is no model package {name!r}.", code="package_not_found", package=name)


def _in_use(package: Package, why: str, **details: object) -> Conflict:
    return Conflict(f"{package.id} can't be removed: {why}.", code="package_in_use", package=package.id, **details)
