"""The steps over a request's photos that operations share: detect, choose a face, judge whether it is live, embed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from app.errors import AmbiguousFace, InvalidInput, NoFace
from app.face.quality import QualityLevel
from app.inference.embedders import Model
from app.liveness.gate import OFF, Gate
from app.pipeline import AMBIGUOUS_SHARE, Pipeline, choose_face, embed_faces, pick_face
from app.recognition.decisions import check_quality
from app.recognition.results import Chosen
from app.types import Photo


class Photos:
    """Detect, judge and embed faces. ``observe`` receives the milliseconds that each stage took."""

    def __init__(self, pipeline: Pipeline, observe: Callable[[Mapping[str, float]], None]) -> None:
        self._pipeline = pipeline
        self._observe = observe

    def detect(self, image: bytes, gate: Gate = OFF) -> Photo:
        """Return the photo's faces, cut out for the gate's packages."""
        return self._observed(self._pipeline.detect(image, gate.cuts))

    def embed(self, image: bytes, used: Model) -> Photo:
        """Return the photo's faces with their templates."""
        return self._observed(self._pipeline.embed(image, used.embedder))

    def embed_live(self, image: bytes, used: Model, gate: Gate) -> tuple[Photo, list[int]]:
        """Judge all faces and embed those that the gate accepts; return the photo and these faces' indices."""
        photo = self._pipeline.detect(image, gate.cuts)
        (photo,) = gate.judged([photo], [range(len(photo.faces))])
        places = gate.accepted(photo)
        (photo,) = embed_faces([photo], used.embedder, [places])
        return self._observed(photo), places

    def judge(self, chosen: Collection[Chosen], gate: Gate) -> list[Chosen]:
        """Judge the chosen faces, and no others, together."""
        which = [[one.choice.index] if one.face.cuts else [] for one in chosen]
        photos = gate.judged([one.photo for one in chosen], which)
        for photo in photos:
            self._observe({name: spent for name, spent in photo.stages.items() if name == "liveness"})
        return [replace(one, photo=photo) for one, photo in zip(chosen, photos, strict=True)]

    def check_live(self, chosen: Mapping[str, Chosen], gate: Gate) -> list[Chosen]:
        """Judge the faces, given by their photos' names. Raises NotLive for the first that is refused."""
        judged = self.judge(chosen.values(), gate)
        for name, one in zip(chosen, judged, strict=True):
            gate.check(one.face, name)
        return judged

    def embed_chosen(self, chosen: Collection[Chosen], used: Model) -> list[Chosen]:
        """Embed the chosen faces, and no others, in one batch."""
        photos = embed_faces([one.photo for one in chosen], used.embedder, [[one.choice.index] for one in chosen])
        for photo in photos:
            self._observe({"embed": photo.stages["embed"]})
        return [replace(one, photo=photo) for one, photo in zip(chosen, photos, strict=True)]

    def choose(self, image: bytes, name: str, gate: Gate, index: int | None = None) -> Chosen:
        """Return the face at ``index``, by default the most prominent one. The errors name the photo by ``name``."""
        try:
            photo = self.detect(image, gate)
            if index is not None:
                return Chosen(photo, pick_face(photo, index))
        except InvalidInput as error:
            raise type(error)(error.message, code=error.code, **{**error.details, "image": name}) from error
        if not photo.faces:
            raise NoFace(f"{name}: no face was found", image=name)
        return Chosen(photo, choose_face(photo))

    def choose_enrollable(self, image: bytes, level: QualityLevel, gate: Gate, index: int | None = None) -> Chosen:
        """Return the face that this photo enrolls, at ``index`` or the most prominent one.

        Raises what `Pipeline.detect` raises, NoFace, AmbiguousFace, LowQuality.
        """
        photo = self.detect(image, gate)
        if not photo.faces:
            raise NoFace("no face was found")
        chosen = Chosen(photo, choose_face(photo) if index is None else pick_face(photo, index))
        share = chosen.choice.runner_up
        if share >= AMBIGUOUS_SHARE:
            raise AmbiguousFace(f"{len(photo.faces)} faces, and the second is {share:.0%} as prominent as the first")
        check_quality(chosen.face, level)
        return chosen

    def _observed(self, photo: Photo) -> Photo:
        self._observe(photo.stages)
        return photo
