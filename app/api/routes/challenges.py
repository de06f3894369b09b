"""Challenges: steps that a person follows in front of a camera, before an operation on the first frame."""

from __future__ import annotations

from datetime import datetime

from app.access.audit import AuditEntry, fit_id
from app.access.grants import Grant, Scope
from app.access.one_time import Bound, Challenges
from app.api import answers, schemas
from app.api.auth import require_scope
from app.api.body import MANY_IMAGES, Sent
from app.api.components import GalleryId
from app.api.operation import GALLERY
from app.api.route import Router
from app.api.routes.recognition import ENROLL_CODES, VERIFY_SUBJECT_CODES
from app.errors import InvalidInput, Overloaded
from app.gallery.service import Galleries
from app.gallery.text import clean_id
from app.recognition.challenge import ChallengeJudge
from app.recognition.operations import Operations

router = Router("challenges")

CHALLENGES = f"{GALLERY}/challenges"


@router.operation("POST", CHALLENGES, scope=Scope.RECOGNIZE, status=201)
def create_challenge(
    challenges: Challenges,
    galleries: Galleries,
    grant: Grant,
    gallery: GalleryId,
    asked: schemas.ChallengeCreate,
) -> schemas.Challenge:
    """Ask a person to follow steps.

    The server picks their order. Show them one after the other, take a frame of each, and send all frames with `answer`
    within two minutes. This stops a photo that is held up. It does not stop a film of the right steps, replayed or
    generated, nor photos of all the poses. To enroll, the key needs the scope `enroll`, too.
    """
    subject = None if asked.subject is None else clean_id(asked.subject, "subject")
    bound = Bound(grant.key_id, gallery, asked.operation, subject)
    _authorize(grant, bound)
    galleries.store.gallery(gallery)
    made = challenges.make(bound)
    return schemas.Challenge(
        challenge=made.token, steps=list(made.steps), expires_at=datetime.fromisoformat(made.expires_at)
    )


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
    grant: Grant,
    entry: AuditEntry,
    gallery: GalleryId,
    sent: Sent[schemas.ChallengeParams],
) -> schemas.ChallengeAnswer:
    """Answer a challenge with a frame for each step, then verify, identify or enroll the first one.

    Each frame must show its step, and all of them the same person; `challenge_failed` names the first that fails. The
    operation decides at the server's error rates, and judges liveness as the gallery asks. No frame is kept. The
    challenge is used up whether it is met or not.
    """
    frames, token = sent.images, sent.params.challenge
    bound, steps = challenges.read(token, grant.key_id, gallery)
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
    return _carry_out(operations, grant, bound, frames[0])


def _authorize(grant: Grant, bound: Bound) -> None:
    """Raise InvalidInput ``missing_scope`` if the key may not carry the challenge's operation out."""
    if bound.operation == "enroll":
        require_scope(grant, Scope.ENROLL)


def _carry_out(operations: Operations, grant: Grant, bound: Bound, image: bytes) -> schemas.ChallengeAnswer:
    """Call the challenge's operation with its defaults."""
    exact = grant.sees_exact_scores
    if bound.operation == "identify":
        identification = operations.identify(bound.gallery, image, exact=exact)
        answer = answers.identify(identification, schemas.IdentifyParams())
        return schemas.ChallengeAnswer(operation="identify", identify=answer)
    subject = str(bound.subject)
    if bound.operation == "verify":
        verified = operations.verify_subject(bound.gallery, subject, image, exact=exact)
        return schemas.ChallengeAnswer(operation="verify", verify=answers.verify_subject(verified, None, explain=False))
    enrolled = operations.enroll(bound.gallery, subject, [image])
    return schemas.ChallengeAnswer(operation="enroll", enroll=answers.enroll(enrolled, explain=False))
