"""The embedder packages of one server: from aligned crops to templates, in batches joined across concurrent requests.

They are opened on demand: galleries may use different ones at the same time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.choices import Used
from app.concurrency.batcher import Batcher
from app.concurrency.overload import Why
from app.errors import DatabaseUnavailable, InvalidInput, PackageUnavailable, Unusable
from app.inference.attempts import RETRY_S, Attempts
from app.inference.session import FIXED_BATCH, EmbedderSession
from app.machine import cores
from app.package.folders import MANIFEST_NAME, Package, check_choice, load_package, select
from app.package.thresholds import Thresholds
from app.types import Pixels, Template, Vector

F = TypeVar("F", np.float32, np.float64)

EMBED = "embed"
BOUND_S = 5.0
"""Seconds between checks that a package made the stored templates of its id: another server may remove it, add another
model under its id, and make a gallery with that."""
CPU_MAX_BATCH = 8
"""Maximum crops in a CPU's batch. Chosen under load, when whole photos compete for the caches: with 8 a server of two
cores identifies 5 to 9 % more than with 4 (docs/explanation/performance.md). Alone on a core the prepared SFace gains
little: 9.3, 8.2, 7.9, 7.8 ms per face at 1, 2, 4, 8 crops on AVX-512."""
ENOUGH = 2
"""Number of waiting crops from which on a CPU starts another batch beside a running one, even if all cores are busy,
since crops that wait for two batches wait longest. Simulated with two cores at 50, 80 and 95 % load: the slowest
hundredth takes 1.17, 1.04 and 0.71 of a first-come queue's time; if a full batch is required, 1.26, 1.38 and 0.80
(docs/decisions/speed.md)."""
GPU_WAIT_S = 0.002
"""Seconds that a GPU's batch waits for more crops: far below a photo's time. Not measured yet."""
QUEUE_LIMIT = 256
"""Maximum crops that may wait: a few seconds of work for two cores."""
Stamp: TypeAlias = tuple[int, int, int] | None
"""Modification time, inode and size of a file; None if it is gone."""
_log = logging.getLogger(__name__)


class CurrentManifests:
    """Keeps manifests up to date: reads one again if its file has changed. Safe to share between threads."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[list[Stamp], Package]] = {}

    def read(self, package: Package) -> Package:
        """Return the package with its present manifest; with the last one, and a warning, if the present one can't be
        read or describes another model."""
        stamps: list[Stamp] = []
        for file in package.files:
            try:
                state = file.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((state.st_mtime_ns, state.st_ino, state.st_size))
        known = self._known.get(package.id)
        if known is None or known[0] != stamps:
            known = self._known[package.id] = stamps, _read_again(package) or (known[1] if known else package)
        return known[1]


def _read_again(package: Package) -> Package | None:
    try:
        current = load_package(package.folder, package.data_dir)
    except Unusable as error:
        _log.warning("A manifest can't be read; its operating points stay as they are: %s", error)
        return None
    if (current.id, current.manifest.recipe_digest) != (package.id, package.manifest.recipe_digest):
        _log.warning("%s now describes another model, which is used from the next start", package.folder)
        return None
    return current


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """An open package: its embedder, and its manifest's present operating points."""

    id: str
    embedder: Embedder
    thresholds: Thresholds


@dataclass(slots=True)
class _Slot:
    """The state of one package: open, being opened, or failed."""

    opening: Lock = field(default_factory=Lock)
    package: Package | None = None
    embedder: Embedder | None = None
    users: int = 0
    forgotten: bool = False
    """Whether its last user must close it, since it gets no new users."""
    attempts: Attempts = field(default_factory=Attempts)


class Embedders:
    """A cache of open embedders, least recently used closed first. Safe to share between threads.

    ``find`` returns the installed packages, ``open_one`` opens one. The ``default`` is never closed; ``kept`` limits
    how many stay open in all. A package in use is not closed, so more may be open for a moment. A package that failed
    to open is not tried again for ``retry_s`` seconds. ``bind`` raises PackageUnavailable if another model with a
    package's id made its stored templates.
    """

    def __init__(
        self,
        default: Package,
        find: Callable[[], Mapping[str, Package]],
        open_one: Callable[[Package], Embedder],
        *,
        kept: int,
        bind: Callable[[Package], None] = lambda _package: None,
        retry_s: float = RETRY_S,
    ) -> None:
        self.default = default
        self._find, self._open_one, self._bind = find, open_one, bind
        self._kept, self._retry_s = kept, retry_s
        self._bound: dict[str, tuple[Package, float]] = {}  # and the time of the check
        self._packages: Mapping[str, Package] = {default.id: default}
        self._lock = Lock()
        self._slots: OrderedDict[str, _Slot] = OrderedDict()  # least recently used first
        self._manifests = CurrentManifests()
        self._closed = False
        self._past: Counter[int] = Counter()  # batch sizes of closed packages
        self._warned: set[str] = set()
        self._warn(default)

    def packages(self) -> Mapping[str, Package]:
        """Read the installed packages of every task again and return them by id.

        Packages whose manifest can no longer be read stay as they were.
        """
        try:
            installed = self._find()
        except Unusable as error:
            _log.warning(
                "The folder of model packages cannot be read; the packages found before stay in use: %s", error
            )
            return self._packages
        folders = {package.folder for package in installed.values()}
        damaged = {
            name: package
            for name, package in self._packages.items()
            if name not in installed and package.folder not in folders and (package.folder / MANIFEST_NAME).exists()
        }
        self._packages = {**damaged, **installed}
        for package in installed.values():
            self._warn(package)
        self._forget_replaced()
        return self._packages

    def choose(self, name: str | None) -> Package:
        """Return the embedder called `name` or `name@version`; None means the default.

        Raises InvalidInput ``package_unknown``, ``package_ambiguous``.
        """
        if name in {None, self.default.id}:
            return self.default
        embedders = {key: package for key, package in self.packages().items() if package.manifest.task == EMBED}
        try:
            return select(embedders, str(name))
        except Unusable as error:
            raise InvalidInput(error.message, code=error.code, **error.details) from None

    def choose_for_gallery(
        self, name: str | None, *, force: bool = False, accept_non_commercial: bool = False
    ) -> Package:
        """Return the embedder called `name` for templates that will be stored; None means the default.

        Raises what `choose` and, unless it is the default, `check_choice` raise; PackageUnavailable
        ``package_changed``.
        """
        package = self.choose(name)
        if package is not self.default:
            manifest = self._manifests.read(package).manifest
            check_choice(manifest, force=force, accept_non_commercial=accept_non_commercial)
        return self.checked(package)

    def checked(self, package: Package) -> Package:
        """Return the package if it made the stored templates of its id, else raise PackageUnavailable."""
        self._bind(package)
        self._bound[package.id] = package, time.monotonic()
        return package

    def thresholds(self, package_id: str) -> Thresholds:
        """Return a package's present operating points from its manifest, without opening it.

        Raises PackageUnavailable.
        """
        slot = self._slots.get(package_id)
        package = (slot and slot.package) or self._package(package_id)
        bound, asked_at = self._bound.get(package.id, (None, 0.0))
        if bound is not package or time.monotonic() - asked_at >= BOUND_S:
            self._check_again(package, was_bound=bound is package)
        now = self._manifests.read(package)
        if now.warnings:
            self._warn(now)
        return now.thresholds

    def _check_again(self, package: Package, *, was_bound: bool) -> None:
        """Raise PackageUnavailable if the package didn't make the stored templates of its id; without a database, trust
        the last check."""
        try:
            self.checked(package)
        except DatabaseUnavailable:
            if not was_bound:
                raise
        except PackageUnavailable:
            self.packages()  # the installed package may be the right one now: the next request opens it
            raise

    @contextmanager
    def use(self, package_id: str) -> Iterator[OpenedModel]:
        """Keep the package open while the block runs; open it first if needed.

        Raises Unusable ``package_unavailable`` (``details.reason``: not installed, file missing, changed …) and
        Overloaded ``shutting_down``.
        """
        with self._lock:
            if self._closed:
                raise Why.STOPPING.error()
            slot = self._slots.get(package_id)
            if slot is None:
                slot = self._slots[package_id] = _Slot()
            self._slots.move_to_end(package_id)
            slot.users += 1
        try:
            try:
                embedder = slot.embedder or self._opened(slot, package_id)
            except PackageUnavailable:
                raise
            except Unusable as error:
                message = f"The model package {package_id} can't be used: {error.message}"
                raise PackageUnavailable(message, package=package_id, reason=error.code) from error
            yield OpenedModel(package_id, embedder, self.thresholds(package_id))
        finally:
            with self._lock:
                slot.users -= 1
                closing = self._surplus() if len(self._slots) > self._kept and not self._closed else []
                if slot.forgotten and not slot.users and slot.embedder is not None:
                    closing.append(slot.embedder)
            for idle in closing:
                idle.close()

    def forget(self, package_id: str) -> None:
        """Close a package that was removed or replaced, when it is no longer used; never the default."""
        if package_id == self.default.id:
            return
        self._packages = {name: package for name, package in self._packages.items() if name != package_id}
        with self._lock:
            slot = self._slots.pop(package_id, None)
            if slot is None or self._closed:
                return
            slot.forgotten = True
            idle = None if slot.users else slot.embedder
            if slot.embedder is not None:
                self._past.update(slot.embedder.batch_sizes)
        if idle is not None:
            idle.close()

    def _forget_replaced(self) -> None:
        """Forget open packages that were replaced by another model with the same id."""
        with self._lock:
            slots = list(self._slots.items())
        for package_id, slot in slots:
            installed = self._packages.get(package_id)
            opened = slot.package
            if installed and opened and installed.manifest.recipe_digest != opened.manifest.recipe_digest:
                self.forget(package_id)

    def open_default(self) -> None:
        """Open the default package. Raises Unusable with the cause's own code."""
        with self._lock:
            slot = self._slots.setdefault(self.default.id, _Slot())
        self._opened(slot, self.default.id)

    def devices(self) -> dict[str, Used]:
        return {embedder.package_id: embedder.device for embedder in self._running()}

    @property
    def waiting(self) -> int:
        return sum(embedder.waiting for embedder in self._running())

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Return how many batches of each size there were, closed packages included."""
        with self._lock:
            sizes = Counter(self._past)
            running = [slot.embedder for slot in self._slots.values() if slot.embedder is not None]
        for embedder in running:
            sizes.update(embedder.batch_sizes)
        return dict(sizes)

    def close(self) -> None:
        """Finish the waiting batches and close all packages; later calls raise Overloaded."""
        with self._lock:
            self._closed = True
            slots = list(self._slots.values())
        for slot in slots:
            with slot.opening:
                if slot.embedder is not None:
                    slot.embedder.close()

    def _warn(self, package: Package) -> None:
        """Log once which parts of a manifest were left out."""
        for warning in package.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                _log.warning("%s", warning)

    def _running(self) -> list[Embedder]:
        with self._lock:
            return [slot.embedder for slot in self._slots.values() if slot.embedder is not None]

    def _package(self, package_id: str) -> Package:
        """Return the package as it is installed. Raises PackageUnavailable."""
        if package_id == self.default.id:
            return self.default
        package = self._packages.get(package_id) or self.packages().get(package_id)
        if package is None or package.manifest.task != EMBED:
            message = f"The model package {package_id} is not installed: put its folder back among the others."
            raise PackageUnavailable(message, package=package_id, reason="package_unknown")
        return package

    def _opened(self, slot: _Slot, package_id: str) -> Embedder:
        with slot.opening:  # only callers of the same package wait here
            if slot.embedder is not None:
                return slot.embedder
            slot.attempts.check(self._retry_s)
            package = self._package(package_id)  # a missing package is cheap to look up, and may be added at any moment
            try:
                embedder = self._open_one(package)
            except Unusable as error:
                slot.attempts.failed(error)
                # its manifest is read again at the next attempt, since it may have been corrected
                self._packages = {name: package for name, package in self._packages.items() if name != package_id}
                raise
            slot.package, slot.embedder = package, embedder
            return embedder

    def _surplus(self) -> list[Embedder]:
        """Remove and return the embedders to close. The caller holds the lock."""
        running = {name: slot.embedder for name, slot in self._slots.items() if slot.embedder is not None}
        idle = [name for name in running if not self._slots[name].users and name != self.default.id]
        closing = idle[: max(0, len(running) - self._kept)]
        for name in closing:
            del self._slots[name]
            self._past.update(running[name].batch_sizes)  # final: the package is not in use
        return [running[name] for name in closing]


class Embedder:
    """Embed aligned crops with one package; `embed` may be called from many threads at once.

    By default a CPU gets one worker per core, each running small batches in one thread; a GPU gets one worker with
    large batches. ``flip`` averages each crop's vector with that of its mirror image, at twice the cost.
    """

    def __init__(
        self,
        session: EmbedderSession,
        *,
        flip: bool = False,
        max_batch: int | None = None,
        queue_limit: int = QUEUE_LIMIT,
        workers: int | None = None,
        spare: Callable[[int], bool] = lambda _busy: True,
    ) -> None:
        """``spare(busy)`` says whether another worker may start with a batch that is not full; by default always."""
        gpu = session.device in FIXED_BATCH
        self.package_id, self.dimension, self.device = session.package_id, session.dimension, session.device
        self._session, self._flip = session, flip
        self._batcher = Batcher[Pixels, Vector](
            self._embed_batch,
            max_batch=max_batch or FIXED_BATCH.get(session.device, CPU_MAX_BATCH),
            max_wait_s=GPU_WAIT_S if gpu else 0.0,
            queue_limit=queue_limit,
            workers=workers or (1 if gpu else cores()),
            enough=None if gpu else ENOUGH,
            spare=spare,
            name="embed",
        )

    def embed(self, crops: Sequence[Pixels]) -> tuple[list[Template], int]:
        """Return the templates of (112, 112, 3) uint8 RGB aligned crops in order, and the size of the largest batch
        that one of them was in (0 without crops).

        Raises Overloaded if the queue is full.
        """
        results = self._batcher.run_counted(crops)
        batch = max((size for _vector, size in results), default=0)
        return [Template(vector, self.package_id) for vector, _size in results], batch

    @property
    def waiting(self) -> int:
        return self._batcher.waiting

    @property
    def batch_sizes(self) -> dict[int, int]:
        return self._batcher.batch_sizes

    def close(self) -> None:
        """Finish the waiting crops; later calls raise Overloaded."""
        self._batcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _embed_batch(self, crops: list[Pixels]) -> list[Vector]:
        stacked = np.stack(crops)
        vectors = self._session.run(stacked)
        if self._flip:
            vectors = unit(vectors + self._session.run(np.ascontiguousarray(stacked[:, :, ::-1])))
        return [vector.copy() for vector in vectors]  # a view of one row would keep its whole batch in memory


def unit(vectors: NDArray[F]) -> NDArray[F]:
    """Scale (N, D) rows to length 1; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: NDArray[F] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled
