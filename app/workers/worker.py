"""A worker: reads one photo after the other, in a process that can't do anything else."""

from __future__ import annotations

import gc
import json
import os
import pickle
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from app.errors import InvalidInput, LikenessError, Overloaded
from app.face.align import Cut
from app.face.formats import TooCostly
from app.machine import limit_memory
from app.pipeline import Pipeline
from app.types import Photo
from app.workers import limits, sandbox, wire


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """A worker's limits: ``memory`` in bytes besides what it starts with, ``seconds`` of processor time per photo,
    ``niceness`` added to its parent's, and the ``most_pixels`` that it decodes."""

    memory: int
    seconds: int
    niceness: int
    most_pixels: float


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """A worker's answer: the faces, or the error."""

    outcome: str
    """`photo`; `refused`: an error for the sender of the photo; `costly`: it has more pixels than this worker decodes;
    `no_memory`; `failed`: an unexpected error."""
    photo: Photo | None = None
    kind: str = ""
    """Name of the error's class in `app.errors`."""
    code: str = ""
    message: str = ""
    details: dict[str, str] = field(default_factory=dict)
    """The error's details by name, each as JSON."""

    def error(self) -> LikenessError:
        """Return the error that rejects the photo."""
        return ERRORS.get(self.kind, InvalidInput)(
            self.message, code=self.code, **{name: json.loads(text) for name, text in self.details.items()}
        )


ERRORS = {kind.__name__: kind for kind in InvalidInput.__subclasses__()}


def refused(error: LikenessError) -> WorkerAnswer:
    """Return the error as an answer, from which `WorkerAnswer.error` makes it again."""
    details = {name: json.dumps(value) for name, value in error.details.items()}
    return WorkerAnswer("refused", kind=type(error).__name__, code=error.code, message=error.message, details=details)


def serve_photos(peer: socket.socket, pipeline: Pipeline, worker_limits: WorkerLimits, parent: int) -> None:
    """Answer each message (the cuts, then a photo) with the photo's faces until the server closes the socket; then, and
    after a failure, end this process."""
    limits.end_with_parent(parent)
    with suppress(OSError):  # forbidden
        os.nice(worker_limits.niceness)
    limit_memory(worker_limits.memory)
    pipeline.limits = replace(pipeline.limits, most_pixels=worker_limits.most_pixels)
    held = sandbox.enter()
    gc.enable()
    wire.send(peer, *wire.encode(held))
    outcome = ""
    while outcome not in ("no_memory", "failed"):  # then it is replaced, since its memory or a library may be damaged
        try:
            head, data = wire.receive(peer)
        except (wire.Broken, OSError):
            break
        limits.limit_processor(worker_limits.seconds)
        answer = _answer(pipeline, pickle.loads(head), data)  # noqa: S301 - from the server
        del data
        try:
            wire.send(peer, *wire.encode(answer))
        except OSError:
            break
        outcome = answer.outcome
        del answer
    os._exit(0)


def _answer(pipeline: Pipeline, cuts: Sequence[Cut], data: bytearray) -> WorkerAnswer:
    try:
        return WorkerAnswer("photo", pipeline.detect(bytes(data), cuts))
    except TooCostly:
        return WorkerAnswer("costly")
    except (MemoryError, Overloaded):  # what readers raise when memory runs out
        return WorkerAnswer("no_memory")
    except InvalidInput as error:
        return refused(error)
    except Exception as error:  # noqa: BLE001 - the worker's edge: the server must be answered
        text = f"{type(error).__name__}: {error}"
        return WorkerAnswer("no_memory" if "alloc" in text.lower() else "failed", message=text)
