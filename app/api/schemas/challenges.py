"""Challenges: steps that a person follows in front of a camera."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from app.api.schemas.base import Example, Id, Params, Wire
from app.api.schemas.recognition import IdentifyAnswer, SubjectVerifyAnswer
from app.api.schemas.subjects import EnrollAnswer
from app.choices import Step

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
    operation: ChallengedOperation = Field(description="What is done with the first frame once the challenge is met.")
    subject: Id | None = Field(default=None, description="Whom to verify or enroll; none for `identify`.")

    @model_validator(mode="after")
    def _subject_fits(self) -> Self:
        if (self.subject is None) != (self.operation == "identify"):
            raise ValueError("give a subject to verify or enroll, and none to identify")
        return self


class Challenge(Wire):
    challenge: str = Field(description="The token to answer with: once, with the same key, in the same gallery.")
    steps: Steps
    expires_at: datetime


class ChallengeParams(Params):
    example: ClassVar[Example] = {"challenge": TOKEN}
    challenge: str = Field(default="", max_length=4096, description="The token of the challenge.")


class ChallengeAnswer(Wire):
    """The answer of the operation that the challenge was made for, on the first frame; the others are null."""

    operation: ChallengedOperation
    verify: SubjectVerifyAnswer | None = None
    identify: IdentifyAnswer | None = None
    enroll: EnrollAnswer | None = None
