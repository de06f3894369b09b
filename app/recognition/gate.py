"""Apply liveness to a request: not at all, as a verdict on each face, or as a requirement for the used faces.

The verdicts are a feature's (`app.features.liveness`). Without it, a request that asks for any is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from app.choices import LivenessMode, Used
from app.concurrency.batcher import Batcher
from app.concurrency.threads import check_deadline
from app.errors import LivenessUnavailable, NotLive
from app.face.align import Cut
from app.inference.session import Session
from app.package.folders import Package
from app.pipeline import timed
from app.types import Face, Liveness, Photo, Verdict

Judge: TypeAlias = Callable[[Sequence[Face]], Sequence[Liveness]]
"""Returns the liveness of each face, by its ``cuts``. Raises Overloaded."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Liveness for one request; off without a judge. ``cuts`` are the cuts that the judge needs of each face."""

    judge: Judge | None = None
    cuts: tuple[Cut, ...] = ()
    requires: bool = False

    def judged(self, photos: Sequence[Photo], which: Sequence[Sequence[int]]) -> list[Photo]:
        """Return the photos with a verdict on the faces whose indices ``which`` lists per photo, judged together.

        Raises Overloaded.
        """
        faces = [photo.faces[place] for photo, places in zip(photos, which, strict=True) for place in places]
        if self.judge is None or not faces:
            return list(photos)
        check_deadline()
        spent: dict[str, float] = {}
        with timed(spent, "liveness"):
            verdicts = iter(self.judge(faces))
        judged = []
        for photo, places in zip(photos, which, strict=True):
            of_photo, stages = list(photo.faces), {**photo.stages, "liveness": spent["liveness"] / len(photos)}
            for place in places:
                of_photo[place] = replace(of_photo[place], liveness=next(verdicts), cuts=())
            judged.append(replace(photo, faces=tuple(of_photo), stages=stages))
        return judged

    def refusal(self, face: Face, **details: str) -> NotLive | None:
        """Return the error, with these details, of a judged face that must be live and is not; else None."""
        liveness = face.liveness
        if not self.requires or liveness is None or liveness.verdict is Verdict.LIVE:
            return None
        verdict = liveness.verdict.value
        return NotLive(
            f"the face is not live: {verdict}, score {liveness.score:.3f}",
            live=verdict,
            live_score=liveness.score,
            reasons=[verdict, *([liveness.reason.value] if liveness.reason else [])],
            **details,
        )

    def check(self, face: Face, **details: str) -> None:
        """Raise NotLive, with these details, if this judged face must be live and is not."""
        if refusal := self.refusal(face, **details):
            raise refusal

    def accepted(self, photo: Photo) -> list[int]:
        """Return the indices of the judged faces that may be used. Raises NotLive if all of them are refused."""
        if not self.requires:
            return list(range(len(photo.faces)))
        refusals = [self.refusal(face) for face in photo.faces]
        errors = [refusal for refusal in refusals if refusal]
        if errors and len(errors) == len(photo.faces):
            raise errors[0]
        return [place for place, refusal in enumerate(refusals) if refusal is None]


OFF = Gate()


class Gates:
    """Makes the gates of requests that ask for liveness. Without the feature, this class refuses them."""

    def __init__(self) -> None:
        self.devices: Mapping[str, Used] = {}
        """The devices of open packages, by package id."""
        self.batchers: Sequence[Batcher[Any, Any]] = ()
        """The queues of these packages."""

    def judging(self, mode: LivenessMode) -> Gate:
        """Return a gate that reports or requires.

        Raises Unusable ``liveness_unavailable`` (nothing can judge), and ``liveness_not_measured`` where liveness is
        required and no operating point was measured for the server's error rates.
        """
        raise LivenessUnavailable(f"This service can't {mode} liveness: it has no models.", reason="none_installed")

    @property
    def batch_sizes(self) -> Mapping[int, int]:
        """Return how many batches of each size there were."""
        return sum((Counter(batcher.batch_sizes) for batcher in self.batchers), Counter())

    def close(self) -> None:
        """Finish waiting work; later gates raise Overloaded."""
        for batcher in self.batchers:
            batcher.close()


OpenGates: TypeAlias = Callable[
    [Callable[[], Mapping[str, Package]], Callable[[Package], Session], Sequence[str], float, float], Gates
]
"""Makes the gates from a function that finds packages, one that opens a package, the names of the packages to use, and
the APCER and BPCER to decide at."""
