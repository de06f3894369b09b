"""Moving a gallery to another model package."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field

from app.api.schemas.base import MAX_ID_LENGTH, MODEL, Example, Params, Wire
from app.api.schemas.galleries import ACCEPT_NON_COMMERCIAL, FORCE
from app.api.schemas.server import Job


class ReembedStart(Params):
    example: ClassVar[Example] = {"embedder": "mine"}
    embedder: str = Field(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="The model package to move to, as `name` or `name@version`.",
    )
    without_crop: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="What to do with faces without a stored crop. `refuse`: do not start. `drop`: leave them out; a "
        "rollback restores them until `finish` deletes them.",
    )
    keep_days: float = Field(
        default=7,
        ge=0,
        le=3650,
        allow_inf_nan=False,
        description="Days after the switch during which a rollback is possible; then the server finishes by itself.",
    )
    force: bool = Field(default=False, description=FORCE)
    accept_non_commercial: bool = Field(default=False, description=ACCEPT_NON_COMMERCIAL)


class Reembedding(Wire):
    """A gallery's move from one model package to another."""

    example: ClassVar[Example] = {"job": Job.example | {"kind": "reembed"}}
    gallery: str
    source: str = Field(examples=[MODEL], description="The package before the move.")
    target: str = Field(examples=["mine@1"], description="The package after the move.")
    state: Literal["embedding", "ready", "switched", "ending"] = Field(
        description="`embedding`: faces get templates of the target, the source answers. `ready`: all faces have both "
        "(also after a rollback), the source answers. `switched`: the target answers. `ending`: templates that are no "
        "longer needed are being deleted."
    )
    without_crop: Literal["refuse", "drop"]
    missing: int = Field(ge=0, description="Faces without a template of the target, since they have no stored crop.")
    keep_days: float
    started_at: datetime
    switched_at: datetime | None
    keep_until: datetime | None = Field(description="Until when a rollback is possible.")
    job: Job | None = Field(description="The current job, or the last one.")
