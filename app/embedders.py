"""The embedder packages of one server, each opened when it is needed: galleries may use different ones at once."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from app.errors import InvalidInput, LikenessError, Overloaded, Unusable
from app.face.embed import Embedder
from app.runtime.package import Package, Thresholds, select

TASK = "embed"
RETRY_S = 5.0
"""How long a package that could not be opened is left alone: its file may be large, and is hashed at each attempt."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    """A package that runs, and where it decides."""

    package: Package
    embedder: Embedder
    thresholds: Thresholds

    @property
    def id(self) -> str:
        return self.package.id


@dataclass(slots=True)
class _Slot:
    """A package that is open, is being opened, or could not be."""

    opening: Lock = field(default_factory=Lock)
    model: Model | None = None
    users: int = 0
    failure: LikenessError | None = None
    failed_at: float = 0.0


class Embedders:
    """Safe to share between threads.

    ``find`` reads the packages that are installed now, ``open_one`` makes one run. The ``default`` stays open; of the
    others, those used last stay until there are ``kept`` in all. One that is in use is never closed, so that for a
    moment there may be more of them. One that could not be opened is not tried again for ``retry_s``.
    """

    def __init__(
        self,
        default: Package,
        find: Callable[[], Mapping[str, Package]],
        open_one: Callable[[Package], Embedder],
        *,
        kept: int,
        retry_s: float = RETRY_S,
    ) -> None:
        self.default = default
        self._find = find
        self._open_one = open_one
        self._kept, self._retry_s = kept, retry_s
        self._packages: Mapping[str, Package] = {default.id: default}
        self._lock = Lock()
        self._slots: OrderedDict[str, _Slot] = OrderedDict()  # the one used longest ago first
        self._closed = False
        self._past: Counter[int] = Counter()  # batches of those that were closed

    def packages(self) -> Mapping[str, Package]:
        """All that are installed, of every task, looked for anew: one may have been added."""
        try:
            self._packages = self._find()
        except Unusable as error:
            _log.warning("The folder of model packages is not in order; those found before go on: %s", error)
        return self._packages

    def choose(self, name: str | None) -> Package:
        """The embedder called `name` or `name@version`; the default where None.

        Raises InvalidInput ``package_unknown``, ``package_ambiguous``.
        """
        if name in {None, self.default.id}:
            return self.default
        found = {key: package for key, package in self.packages().items() if package.manifest.task == TASK}
        try:
            return select(found, str(name))
        except Unusable as error:
            raise InvalidInput(error.message, code=error.code, **error.details) from None

    def thresholds(self, package_id: str) -> Thresholds:
        """Without opening the package. Raises Unusable ``package_unavailable``."""
        return Thresholds(self._installed(package_id).manifest)

    @contextmanager
    def use(self, package_id: str) -> Iterator[Model]:
        """The package, open for as long as the block runs; opened where it is not.

        Raises Unusable ``package_unavailable``: not installed, file missing or damaged (``details.reason``); Overloaded
        (``shutting_down``).
        """
        slot = self._take(package_id)
        try:
            try:
                model = self._opened(slot, package_id)
            except Unusable as error:
                if error.code == "package_unavailable":
                    raise
                message = f"The model package {package_id} can't be used: {error.message}"
                raise Unusable(message, code="package_unavailable", package=package_id, reason=error.code) from error
            yield model
        finally:
            self._give_back(slot)

    def open_default(self) -> Model:
        """Raises Unusable as opening it does, with the cause's own code."""
        slot = self._take(self.default.id)
        try:
            return self._opened(slot, self.default.id)
        finally:
            self._give_back(slot)

    def devices(self) -> dict[str, str]:
        """Where each package that is open runs, by its id."""
        return {model.id: model.embedder.device for model in self._running()}

    @property
    def waiting(self) -> int:
        """How many crops wait now, for all of them."""
        return sum(model.embedder.waiting for model in self._running())

    @property
    def batch_sizes(self) -> dict[int, int]:
        """How many batches of each size there were, those of packages closed since included."""
        with self._lock:
            sizes = Counter(self._past)
            models = [slot.model for slot in self._slots.values() if slot.model is not None]
        for model in models:
            sizes.update(model.embedder.batch_sizes)
        return dict(sizes)

    def close(self) -> None:
        """Finishes what waits, and opens nothing more."""
        with self._lock:
            self._closed = True
            slots = list(self._slots.values())
        for slot in slots:
            with slot.opening:
                if slot.model is not None:
                    slot.model.embedder.close()

    # Inside

    def _running(self) -> list[Model]:
        with self._lock:
            return [slot.model for slot in self._slots.values() if slot.model is not None]

    def _installed(self, package_id: str) -> Package:
        if package_id == self.default.id:
            return self.default
        package = self._packages.get(package_id) or self.packages().get(package_id)
        if package is None or package.manifest.task != TASK:
            message = f"The model package {package_id} is not installed: put its folder back among the others."
            raise Unusable(message, code="package_unavailable", package=package_id, reason="package_unknown")
        return package

    def _take(self, package_id: str) -> _Slot:
        with self._lock:
            if self._closed:
                raise Overloaded("The service is shutting down.", code="shutting_down")
            slot = self._slots.setdefault(package_id, _Slot())
            self._slots.move_to_end(package_id)
            slot.users += 1
            return slot

    def _opened(self, slot: _Slot, package_id: str) -> Model:
        model = slot.model
        if model is not None:
            return model
        with slot.opening:  # the others that want it wait here; those that want another package don't
            if slot.model is not None:
                return slot.model
            if slot.failure is not None and time.monotonic() - slot.failed_at < self._retry_s:
                raise slot.failure.with_traceback(None)
            try:
                package = self._installed(package_id)
                opened = Model(package, self._open_one(package), Thresholds(package.manifest))
            except Unusable as error:
                slot.failure, slot.failed_at = error, time.monotonic()
                # its manifest is read anew at the next attempt: it may have been corrected
                self._packages = {name: one for name, one in self._packages.items() if name != package_id}
                raise
            slot.failure = None
            slot.model = opened
            return opened

    def _give_back(self, slot: _Slot) -> None:
        with self._lock:
            slot.users -= 1
            unwanted = [] if self._closed else self._unwanted()
        for model in unwanted:
            model.embedder.close()

    def _unwanted(self) -> list[Model]:
        """Takes those out that are to be closed. Called with the lock held."""
        models = {name: slot.model for name, slot in self._slots.items() if slot.model is not None}
        idle = [name for name in models if not self._slots[name].users and name != self.default.id]
        closing = idle[: max(0, len(models) - self._kept)]
        for name in closing:
            del self._slots[name]
            self._past.update(models[name].embedder.batch_sizes)  # nobody uses it: they don't grow any more
        return [models[name] for name in closing]
