"""The checklists of upgrades, version by version: what this data folder needs, and what has to be done by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from app.config import PREFIX, Settings
from app.db import usage
from app.db.opening import connected
from app.db.schema import API_KEYS, FACES, GALLERIES
from app.features.doctor.inspection import LOOK_BUSY_MS, inspect
from app.features.doctor.results import CheckResult
from app.package.folders import OWN_FOLDER, find_packages
from app.version import VERSION

SHOWN = 5
"""Maximum number of galleries or keys that a result names."""
REMOVED: Mapping[str, str] = {
    "LIKENESS_METRICS": "Unset it: /metrics always needs a key with the scope metrics or admin.",
    "LIKENESS_MAX_BODIES_BYTES": "Unset it: memory for bodies follows from LIKENESS_MEMORY_BYTES and the machine's.",
}
"""Settings that were removed, and what to do about each. The server does not start while one is set."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Galleries and keys in the database, read from any version of its schema."""

    galleries: Sequence[tuple[str, str, int]] = ()
    """Id, `store` and number of faces of each gallery that has faces."""
    keys: Mapping[str, frozenset[str]] | None = None
    """The scopes of each key that was not revoked, by the key's id; None without a database."""
    revision: str | None = None
    newest: str | None = None
    problem: str = ""
    """Why the database can't be read."""


UpgradeStep = Callable[[Settings, Kept], Iterator[CheckResult]]


def walk(since: str, settings: Settings) -> Iterator[CheckResult]:
    """Yield the results for each version after ``since``, in the order in which to do things; ``check`` is the version.

    Raises ValueError if ``since`` is not a version, or newer than this program.
    """
    begun = parse(since)
    if begun > parse(VERSION):
        raise ValueError(f"This is version {VERSION}: {since} is newer.")
    kept = read_kept(settings)
    for version, steps in CHECKLISTS.items():
        for step in steps if parse(version) > begun else ():
            yield from (replace(finding, check=version) for finding in step(settings, kept))


def removed(environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """Yield a result for each removed setting that is set."""
    for name in REMOVED.keys() & environ.keys():
        yield CheckResult("failed", f"{name} is no setting any more, and a start refuses it", REMOVED[name], "settings")


def parse(version: str) -> tuple[int, ...]:
    """Return the three numbers of a version. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}", version):
        raise ValueError(f"{version!r} is no version, such as 0.1.0.")
    return tuple(map(int, version.split(".")))


def read_kept(settings: Settings) -> Kept:
    """Return what the database contains, without changing it. Without a database, all fields are empty."""
    database = inspect(settings.data_dir, settings.database)
    if not database.exists or database.problem or database.revision is None:
        return Kept(problem=database.problem)
    counted = sa.select(GALLERIES.c.id, GALLERIES.c.store, sa.func.count().label("faces"))
    counted = counted.join_from(GALLERIES, FACES, FACES.c.gallery_key == GALLERIES.c.key)
    counted = counted.group_by(GALLERIES.c.id, GALLERIES.c.store).order_by(GALLERIES.c.id)
    valid = sa.select(API_KEYS.c.id, API_KEYS.c.scopes).where(API_KEYS.c.revoked_at.is_(None)).order_by(API_KEYS.c.id)
    with (
        usage.lock_to_read(settings.data_dir, settings.database),
        connected(settings.database, LOOK_BUSY_MS) as connection,
    ):
        galleries = [(row.id, row.store, row.faces) for row in connection.execute(counted)]
        keys = {row.id: frozenset(row.scopes.split()) for row in connection.execute(valid)}
    return Kept(galleries, keys, database.revision, database.newest)


def _database(_: Settings, kept: Kept) -> Iterator[CheckResult]:
    if kept.problem:
        yield CheckResult(
            "failed", f"the database can't be read ({kept.problem})", "See what `likeness doctor` says of it."
        )
    elif kept.revision is None:
        yield CheckResult("ok", "no database yet: nothing to migrate")
    elif kept.revision == kept.newest:
        yield CheckResult("ok", f"the database is migrated (schema {kept.revision})")
    else:
        message = f"the database has schema {kept.revision}, and the first start migrates it: there is no way back"
        remedy = "Back up with the version that wrote it (0.1.0 restores its own backups), with every server stopped."
        yield CheckResult("warning", message, remedy)


def _models(settings: Settings, _: Kept) -> Iterator[CheckResult]:
    installed = find_packages(settings.models_dir, settings.data_dir)
    needs = inspect(settings.data_dir, settings.database).needs
    gone = [need for need in needs if need.package.startswith("mobilefacenet-64@") and need.package not in installed]
    for need in gone:
        remedy = (
            f"Copy models/mobilefacenet-64 of 0.1.0 into {settings.data_dir / OWN_FOLDER}, "
            f"or move the galleries: likeness reembed start {need.example} sface --wait"
        )
        yield CheckResult(
            "failed", f"{need.package} no longer comes with the program: {need.galleries} galleries", remedy
        )
    if not gone:
        yield CheckResult("ok", "no gallery needs a model that is no longer shipped")


def _faces(_: Settings, kept: Kept) -> Iterator[CheckResult]:
    with_crops = [gallery for gallery, store, _ in kept.galleries if store != "none"]
    without = [gallery for gallery, store, _ in kept.galleries if store == "none"]
    if with_crops:
        message = f"faces enrolled before 0.2.0 may have made-up landmarks: {_some(with_crops)}"
        commands = "; ".join(f"likeness faces check {gallery}" for gallery in with_crops[:SHOWN])
        yield CheckResult(
            "warning", message, f"Once the server runs: {commands}; delete and enroll anew what they list."
        )
    if without:
        message = f"these galleries keep no crops, so that their faces can't be checked: {_some(without)}"
        yield CheckResult(
            "warning", message, "Enroll people anew whose photos may have been turned by 30 degrees or more."
        )
    if not kept.galleries:
        yield CheckResult("ok", "nobody is enrolled")


def _keys(_: Settings, kept: Kept) -> Iterator[CheckResult]:
    if kept.keys is None:
        return
    clients = [key for key, scopes in kept.keys.items() if "enroll" in scopes and not scopes & {"delete", "admin"}]
    if clients:
        message = f"keys that enroll and may not delete: {_some(clients)}"
        remedy = (
            "If one is Double Take's or another CompreFace client's, make it anew: "
            "likeness keys create --scope read --scope recognize --scope enroll --scope delete --gallery GALLERY"
        )
        yield CheckResult("warning", message, remedy)
    if not any("metrics" in scopes for scopes in kept.keys.values()):
        remedy = "If Prometheus reads it: likeness keys create --id monitoring --scope metrics"
        yield CheckResult("warning", "/metrics needs a key now, and none has the scope metrics", remedy)


def _files(settings: Settings, _: Kept) -> Iterator[CheckResult]:
    tuned = settings.data_dir / "tuned.json"
    if tuned.exists():
        yield CheckResult(
            "warning", f"{tuned} is no longer read", f"Delete it; {PREFIX}THREADS and others are settings."
        )


def _by_hand(*lines: tuple[str, str]) -> UpgradeStep:
    """Return a step whose results say what changed and what to do by hand, since the program can't check it."""

    def step(_: Settings, __: Kept) -> Iterator[CheckResult]:
        for found, remedy in lines:
            yield CheckResult("todo", found, remedy)

    return step


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:SHOWN]) + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")


CHECKLISTS: Mapping[str, tuple[UpgradeStep, ...]] = {
    "0.2.0": (
        _database,
        _models,
        _faces,
        _keys,
        _files,
        _by_hand(
            (
                "thresholds that `models measure` wrote into models/*/manifest.json went with the old version",
                "Measure again: likeness models measure NAME --photos PHOTOS --name ours --use",
            ),
            (
                "without a rate asked for, identify decides at LIKENESS_FMR at most, and low quality is uncertain",
                "Programs that want what was: ask with fpir=0.01 and quality=none.",
            ),
            (
                "a subject of several photos has the score of them together, and templates may be null",
                "Programs that compare scores or embeddings themselves: look at these.",
            ),
            (
                "app.client is a distribution of its own",
                "Programs in Python: pip install likeness-client, and import likeness_client.",
            ),
        ),
    ),
}
"""The steps of each version, in order, beginning with the second release."""
