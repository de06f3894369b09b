"""What a feature at the edge adds to the service. `app.main.FEATURES` lists them; nothing else knows of them.

A feature is one folder. Without its entry in that list, and without the folder, the rest works as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.api.components import Components
from app.api.route import Router
from app.api.wire import WireFormat
from app.jobs.runner import Work
from app.recognition.gate import OpenGates
from app.search.registry import OpenIndex


@dataclass(frozen=True, slots=True)
class Task:
    """A call every ``seconds``, unless the server's clock cannot be trusted."""

    seconds: float
    name: str
    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Part:
    """Holds what of a feature runs: what its handlers take, by name; the work of its jobs by kind, and its tasks."""

    components: Mapping[str, object] = field(default_factory=dict)
    works: Mapping[str, Work] = field(default_factory=dict)
    tasks: Sequence[Task] = ()


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature: its operations, and what they need."""

    routers: Sequence[Router] = ()
    start: Callable[[Components], Part] | None = None
    """Called once the core is built."""
    setting: str | None = None
    """The setting that is `on` where the feature is wanted; None for one that always is."""
    wire: WireFormat | None = None
    """The wire format that its operations speak, if it isn't this service's own."""
    open_index: OpenIndex | None = None
    """Opens another place for the galleries' vectors than this process's memory."""
    open_gates: OpenGates | None = None
    """Opens the gates that judge liveness."""
