"""Challenges: steps that a person follows in front of a camera, before an operation on the first frame."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query, Request

from app.access.audit_store import fit_id
from app.access.challenges import Bound
from app.access.grants import Grant
from app.api import answers, endpoints, schemas
from app.api.auth import authorize
from app.api.dependencies import GalleryId, GrantDep, Service, ServiceDep, entry_of
from app.api.operation import MANY_IMAGES, MatchedOperation
from app.api.router import Router
from app.errors import InvalidInput, Overloaded
from app.gallery.text import clean_id

router = Router("challenges")


@router.handles(endpoints.CREATE_CHALLENGE)
async def create_challenge(
    request: Request, service: ServiceDep, grant: GrantDep, gallery: GalleryId
) -> schemas.Challenge:
    """Ask a person to follow steps.

    The server picks their order. Show them one after the other, take a frame of each, and send all frames with `answer`
    within two minutes. This stops a photo that is held up. It does not stop a film of the right steps, replayed or
    generated, nor photos of all the poses. To enroll, the key needs the scope `enroll`, too.
    """
    asked = await service.read_json(request, schemas.ChallengeCreate)
    subject = None if asked.subject is None else clean_id(asked.subject, "subject")
    bound = Bound(grant.key_id, gallery, asked.operation, subject)
    _authorize(grant, bound)
    await service.run(lambda: service.galleries.store.gallery(gallery))
    made = service.challenges.make(bound)
    return schemas.Challenge(
        challenge=made.token, steps=list(made.steps), expires_at=datetime.fromisoformat(made.expires_at)
    )


@router.handles(endpoints.ANSWER_CHALLENGE)
async def answer_challenge(
    request: Request,
    service: ServiceDep,
    grant: GrantDep,
    gallery: GalleryId,
    query: Annotated[schemas.ChallengeParams, Query()],
) -> schemas.ChallengeAnswer:
    """Answer a challenge with a frame for each step, then verify, identify or enroll the first one.

    Each frame must show its step, and all of them the same person; `challenge_failed` names the first that fails. The
    operation decides at the server's error rates, and judges liveness as the gallery asks. No frame is kept. The
    challenge is used up whether it is met or not.
    """
    images, params = await service.read(request, MANY_IMAGES, query)
    bound, steps = service.challenges.read(params.challenge, grant.key_id, gallery)
    entry_of(request).subject = fit_id(bound.subject)
    _authorize(grant, bound)
    frames = images["images"]
    if len(frames) != len(steps):
        raise InvalidInput(f"Send {len(steps)} images, one for each step.", expected=len(steps))

    def answer() -> schemas.ChallengeAnswer:
        service.challenges.spend(params.challenge)
        try:
            service.challenge_judge.check(gallery, steps, frames)
        except Overloaded:
            service.challenges.release(params.challenge)
            raise
        return _carry_out(service, grant, bound, frames[0])

    return await service.run(answer)


def _authorize(grant: Grant, bound: Bound) -> None:
    """Raise InvalidInput ``missing_scope`` if the key may not carry the challenge's operation out."""
    if bound.operation == "enroll":
        authorize(grant, MatchedOperation(endpoints.ENROLL_FACES, bound.gallery))


def _carry_out(service: Service, grant: Grant, bound: Bound, image: bytes) -> schemas.ChallengeAnswer:
    """Call the challenge's operation with its defaults."""
    operations, exact = service.operations, grant.sees_exact_scores
    if bound.operation == "identify":
        found = operations.identify(bound.gallery, image, exact=exact)
        return schemas.ChallengeAnswer(operation="identify", identify=answers.identify(found, schemas.IdentifyParams()))
    subject = str(bound.subject)
    if bound.operation == "verify":
        verified = operations.verify_subject(bound.gallery, subject, image, exact=exact)
        return schemas.ChallengeAnswer(operation="verify", verify=answers.verify_subject(verified, None, explain=False))
    enrolled = operations.enroll(bound.gallery, subject, [image])
    return schemas.ChallengeAnswer(operation="enroll", enroll=answers.enroll(enrolled, explain=False))
