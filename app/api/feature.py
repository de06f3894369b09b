"""The parts that a feature adds to the service. `app.main.FEATURES` lists the features; nothing else knows of them.

A feature is one folder. Without its entry in that list, and without the folder, the rest works as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from app.api.components import GalleryChanged, Reached, SessionKey
from app.api.route import Router
from app.api.wire import WireFormat
from app.gallery.store import Store
from app.jobs.runner import Work
from app.recognition.gate import OpenGates
from app.recognition.operations import OwnThresholds
from app.search.index import FindGpu
from app.search.registry import OpenIndex


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """A function to call every ``seconds``, unless the server's clock can't be trusted."""

    seconds: float
    name: str
    call: Callable[[], object]
    at_once: bool = False
    """Whether the first call is at the start."""


@dataclass(frozen=True, slots=True)
class Part:
    """A running feature: the parts that its handlers take, by name; the work of its jobs, by kind; and its tasks."""

    components: Mapping[str, object] = field(default_factory=dict)
    works: Mapping[str, Work] = field(default_factory=dict)
    tasks: Sequence[PeriodicTask] = ()
    gallery_changed: Sequence[GalleryChanged] = ()
    session_keys: Sequence[SessionKey] = ()
    erased_too: Sequence[Reached] = ()
    close: Callable[[], None] = lambda: None
    """Called when the service ends."""
    apart: Sequence[str] = ()
    """Kinds of jobs that may take hours: they run one at a time beside other jobs, which don't wait for them.
    """


@dataclass(frozen=True, slots=True)
class Feature:
    """The declaration of a feature: its operations, and what they need."""

    routers: Sequence[Router] = ()
    start: Callable[..., Part] | None = None
    """Called with the `Components` once the core is built, and with the ``settings`` by name."""
    settings: Sequence[str] = ()
    """The settings that `start` takes."""
    setting: str | None = None
    """Name of the setting that turns the feature on with `on`; None if it is always on."""
    load: Callable[[], Feature] | None = None
    """Imports the whole feature, if this declaration has only the setting, and the `start` for while the feature is
    off, so that servers without it don't import it."""
    wire: WireFormat | None = None
    """The wire format that its operations speak, if it isn't this service's own."""
    webhooks: Sequence[type[BaseModel]] = ()
    """Models, for the document, of the messages that it sends to addresses given by people."""
    page: Path | None = None
    """A folder of additions to the web page: `start.js` is loaded before the page begins, `style.css` after the page's
    own. They are served below `/page/` and the name of the feature's folder."""
    open_index: OpenIndex | None = None
    """Opens a store of the galleries' vectors in place of this process's memory."""
    find_gpu: FindGpu | None = None
    """Finds the GPU on which large galleries are searched."""
    open_gates: OpenGates | None = None
    """Opens the gates that judge liveness."""
    open_thresholds: Callable[[Store], OwnThresholds] | None = None
    """Returns a function that gives the thresholds that decide in a gallery, if galleries may have their own."""
