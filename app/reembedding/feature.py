"""Re-embedding as a feature of the service."""

from __future__ import annotations

from app.api.components import Components
from app.api.feature import Feature, Part, Task
from app.reembedding.job import KIND, Reembedder
from app.reembedding.routes import router
from app.reembedding.steps import Reembeddings

LOOK_S = 60.0
"""Between looks for moves that can no longer be rolled back."""


def _start(core: Components) -> Part:
    reembeddings = Reembeddings(core.galleries.store)
    reembedder = Reembedder(core.galleries, reembeddings, core.corrections, core.embedders, core.jobs)
    return Part(reembedder, {KIND: reembedder.work}, [Task(LOOK_S, "reembeddings", reembedder.look)])


FEATURE = Feature([router], _start)
