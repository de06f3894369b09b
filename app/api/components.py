"""What runs in the server, as one value that `main` builds and handlers take parts of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.datastructures import State

from app.access.audit import AuditLog
from app.access.challenges import Challenges
from app.access.keys import Keys
from app.access.seen_signatures import SeenSignatures
from app.access.sign_in_codes import SignInCodes
from app.api import schemas
from app.api.auth import Guard
from app.api.body import BodyLimits
from app.calibration.job import Calibrator
from app.concurrency.admission import Admission
from app.concurrency.worker_pool import WorkerPool
from app.db.clock import ClockGuard
from app.db.signing import Signer
from app.errors import LikenessError
from app.face.liveness import LivenessPackages
from app.gallery.erasure import Erasures
from app.gallery.service import Galleries
from app.inference.embedders import Embedders
from app.jobs.files import JobFiles
from app.jobs.runner import Runner
from app.jobs.store import JobStore
from app.recognition.challenge import ChallengeJudge
from app.recognition.corrections import Corrections
from app.recognition.operations import Operations


@dataclass(frozen=True, slots=True)
class Components:
    """The running server's parts, built by `main`; a handler takes the few that it uses (`app.api.dependencies`)."""

    operations: Operations
    embedders: Embedders
    liveness: LivenessPackages
    galleries: Galleries
    calibrator: Calibrator
    admission: Admission
    workers: WorkerPool
    limits: BodyLimits
    guard: Guard
    keys: Keys
    codes: SignInCodes
    challenges: Challenges
    challenge_judge: ChallengeJudge
    audit: AuditLog
    signatures: SeenSignatures
    signer: Signer
    erasures: Erasures
    corrections: Corrections
    jobs: JobStore
    runner: Runner
    files: JobFiles
    clock: ClockGuard
    models: Callable[[], Sequence[schemas.Model]]
    """Returns the installed model packages."""
    skipped_models: Callable[[], Sequence[schemas.SkippedModel]]
    """The folders of the models folder whose package can't be used now."""
    parts: dict[type, object] = field(default_factory=dict)
    """The features' components, by type (`app.api.feature`)."""


def components_of(state: State) -> Components:
    """Return what runs in the application. Raises LikenessError (``not_ready``) before the start and after the end."""
    found: Components | None = getattr(state, "components", None)
    if found is None:
        raise LikenessError("The server is starting or stopping.", code="not_ready")
    return found
