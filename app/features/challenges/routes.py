"""The REST operations on challenges: steps that a person follows in front of a camera before an operation on the first
frame."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from app.access.audit import AuditEntry, fit_id
from app.access.grants import Grant, Scope
from app.api import schemas
from app.api.body import MANY_IMAGES, Sent
from app.api.components import Components
from app.api.feature import Feature, Part
from app.api.operation import GALLERY_PATH
from app.api.route import Router
from app.api.routes.recognition import (
    ENROLL_CODES,
    VERIFY_SUBJECT_CODES,
    enroll_answer,
    identify_answer,
    subject_verify_answer,
)
from app.api.schemas.base import Example, Id, Params, Wire
from app.choices import Step
from app.db.engine import again_if_overtaken
from app.errors import InvalidInput, Overloaded
from app.features.challenges.judge import ChallengeJudge
from app.features.challenges.tokens import Bound, Challenges
from app.features.one_time import SeenSignatures
from app.gallery.records import Gallery
from app.gallery.store import Store
from app.gallery.text import clean_id
from app.recognition.operations import Operations

router = Router("challenges")

CHALLENGES = f"{GALLERY_PATH}/challenges"

ChallengedOperation: TypeAlias = Literal["verify", "identify", "enroll"]
Steps: TypeAlias = Annotated[
    list[Step],
    Field(
        description="In this order: look `ahead`; turn the head to the person's own `left` or `right`, by some 30 "
        "degrees; come `nearer`, looking ahead, until the face is a quarter larger."
    ),
]
TOKEN = "AQx1c3...Zg=="  # noqa: S105 (an example, cut short)


class ChallengeCreate(Params):
    example: ClassVar[Example] = {"operation": "verify", "subject": "collins"}
    operation: ChallengedOperation = Field(description="What is done with the first frame if the challenge succeeds.")
    subject: Id | None = Field(default=None, description="Whom to verify or enroll; none for `identify`.")

    @model_validator(mode="after")
    def _subject_fits(self) -> Self:
        if (self.subject is None) != (self.operation == "identify"):
            raise ValueError("give a subject to verify or enroll, and none to identify")
        return self


class Challenge(Wire):
    challenge: str = Field(description="The token to answer with, once, with the same key and in the same gallery.")
    steps: Steps
    expires_at: datetime


class ChallengeParams(Params):
    example: ClassVar[Example] = {"challenge": TOKEN}
    challenge: str = Field(default="", max_length=4096, description="The token of the challenge.")


class ChallengeAnswer(Wire):
    """The answer of the operation that the challenge was made for, about the first frame; the other fields are null."""

    operation: ChallengedOperation
    verify: schemas.SubjectVerifyAnswer | None = None
    identify: schemas.IdentifyAnswer | None = None
    enroll: schemas.EnrollAnswer | None = None


@router.operation("POST", CHALLENGES, scope=Scope.RECOGNIZE, status=201)
def create_challenge(
    challenges: Challenges,
    grant: Grant,
    gallery: Gallery,
    asked: ChallengeCreate,
) -> Challenge:
    """Ask a person to follow steps.

    The server picks the order of the steps. Show them one after the other, take a frame of each, and send all frames
    with `answer` within two minutes. This rejects most photos that are held up to the camera. It does not reject a film
    of the right steps, replayed or generated, or photos of all the poses. To enroll, the key also needs the scope
    `enroll`.
    """
    subject = None if asked.subject is None else clean_id(asked.subject, "subject")
    bound = Bound(grant.key_id, gallery.id, asked.operation, subject)
    _authorize(grant, bound)
    made = challenges.make(bound)
    return Challenge.of(made, challenge=made.token)


@router.operation(
    "POST",
    f"{CHALLENGES}/answer",
    scope=Scope.RECOGNIZE,
    changes=True,
    images=MANY_IMAGES,
    codes=("wrong_challenge", "challenge_failed", *VERIFY_SUBJECT_CODES, *ENROLL_CODES),
)
def answer_challenge(
    challenges: Challenges,
    judge: ChallengeJudge,
    operations: Operations,
    store: Store,
    grant: Grant,
    entry: AuditEntry,
    gallery: Gallery,
    sent: Sent[ChallengeParams],
) -> ChallengeAnswer:
    """Answer a challenge with a frame for each step; then verify, identify or enroll the first frame.

    Each frame must show its step, and all frames the same person; `challenge_failed` names the first step that fails.
    The operation decides at the server's error rates, and judges liveness if the gallery requires it. No frame is kept.
    A challenge can't be answered again, even if it failed.
    """
    frames, token = sent.images, sent.params.challenge
    bound, steps = challenges.read(token, grant.key_id, gallery.id)
    entry.subject = fit_id(bound.subject)
    _authorize(grant, bound)
    if len(frames) != len(steps):
        raise InvalidInput(f"Send {len(steps)} images, one for each step.", expected=len(steps))
    challenges.spend(token)
    try:
        judge.check(gallery, steps, frames)
    except Overloaded:
        challenges.release(token)
        raise
    # If the gallery changed meanwhile, repeat only this: the client can't, since the challenge is used up.
    return again_if_overtaken(lambda: _carry_out(operations, store.gallery(gallery.id), grant, bound, frames[0]))


def _authorize(grant: Grant, bound: Bound) -> None:
    """Raise InvalidInput ``missing_scope`` if the key may not call the challenge's operation."""
    if bound.operation == "enroll":
        grant.require(Scope.ENROLL)


def _carry_out(operations: Operations, gallery: Gallery, grant: Grant, bound: Bound, image: bytes) -> ChallengeAnswer:
    """Call the challenge's operation with its defaults."""
    exact = Scope.TEMPLATES in grant.allowed
    if bound.operation == "identify":
        identification = operations.identify(gallery, [image], exact=exact)
        answer = identify_answer(identification, schemas.IdentifyParams())
        return ChallengeAnswer(operation="identify", identify=answer)
    subject = str(bound.subject)
    if bound.operation == "verify":
        verified = operations.verify_subject(gallery, subject, [image], exact=exact)
        return ChallengeAnswer(operation="verify", verify=subject_verify_answer(verified, None, explain=False))
    enrolled = operations.enroll(gallery, subject, [image])
    return ChallengeAnswer(operation="enroll", enroll=enroll_answer(enrolled, explain=False))


def _start(core: Components) -> Part:
    tokens = Challenges(core.sealer, SeenSignatures(core.store.database))
    judge = ChallengeJudge(core.reader, core.embedders, core.galleries, core.operations.defaults.fmr)
    return Part({"challenges": tokens, "judge": judge})


FEATURE = Feature([router], _start)
