"""The models that this database's templates were made with.

A package's id names a version; its digest says which file it was, prepared how. Another file under the same id makes
other templates, so that comparing them would give meaningless scores.
"""

from __future__ import annotations

import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import GALLERIES, PACKAGES, REEMBEDDINGS
from app.errors import PackageUnavailable
from app.inference.package import Package


class PackageBindings:
    """Bind each package id to the model that was first used under it. Safe to share between threads and processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def bind(self, package: Package) -> None:
        """Bind the package's id to its model, unless it is bound; a binding that no gallery needs is replaced.

        Raises PackageUnavailable with the reason ``package_changed`` if galleries have templates of another model.
        """
        digest = package.manifest.recipe_digest
        query = sa.select(PACKAGES.c.digest).where(PACKAGES.c.id == package.id)
        with self._database.read() as connection:
            bound = connection.execute(query).scalar()
        if bound == digest:
            return
        insert = self._database.insert(PACKAGES).values(id=package.id, digest=digest)
        with self._database.write() as connection:
            connection.execute(insert.on_conflict_do_nothing())
            if (bound := connection.execute(query).scalar_one()) == digest:
                return
            needing = connection.execute(_needing(package.id)).first()
            if needing is None:
                connection.execute(sa.update(PACKAGES).where(PACKAGES.c.id == package.id).values(digest=digest))
                return
        raise _changed(package, bound, needing.id)


def _needing(package_id: str) -> sa.Select[tuple[str]]:
    """Return the query for a gallery that needs templates of the package."""
    moving = sa.select(REEMBEDDINGS.c.gallery_key).where(
        (REEMBEDDINGS.c.source == package_id) | (REEMBEDDINGS.c.target == package_id)
    )
    needing = (GALLERIES.c.embedder == package_id) | GALLERIES.c.key.in_(moving)
    return sa.select(GALLERIES.c.id).where(needing).limit(1)


def _changed(package: Package, bound: str, gallery: str) -> PackageUnavailable:
    found = package.manifest.recipe_digest
    message = (
        f"{package.folder} has another model than the one that gallery {gallery!r} has templates of, under the same id "
        f"{package.id}. Put the previous package back; or give this one another version in its manifest and move the "
        f"gallery: likeness reembed start {gallery} NAME@VERSION"
    )
    details = {"package": package.id, "reason": "package_changed", "expected": bound, "found": found}
    return PackageUnavailable(message, gallery=gallery, **details)
