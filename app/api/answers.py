"""Converts results of operations to answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from app import types
from app.api import schemas
from app.gallery import records
from app.inference.package import Package
from app.recognition import corrections, decisions
from app.recognition.photos import Chosen, Enrollment, Identification, SubjectVerified, Verified, reasons_of


def detect(photo: types.Photo, *, explain: bool) -> schemas.DetectAnswer:
    return schemas.DetectAnswer.of(photo, image=photo, explain=explained([photo]) if explain else None)


def embed(photo: types.Photo, model: str, *, explain: bool) -> schemas.EmbedAnswer:
    return schemas.EmbedAnswer.of(
        image=photo,
        faces=[
            schemas.EmbeddedFace.of(face, embedding=face.template.vector.tolist())
            for face in photo.faces
            if face.template is not None
        ],
        model=model,
        explain=explained([photo]) if explain else None,
    )


def _chosen_face(chosen: Chosen) -> schemas.ChosenFace:
    return schemas.ChosenFace.of(chosen.face, image=chosen.photo, faces=len(chosen.photo.faces))


def verify(found: Verified, fmr_asked: float | None, *, explain: bool) -> schemas.VerifyAnswer:
    both = [found.first, found.second]
    return schemas.VerifyAnswer.of(
        found,
        found.point,
        fmr_asked=fmr_asked,
        face1=_chosen_face(found.first),
        face2=_chosen_face(found.second),
        explain=explained([one.photo for one in both], both) if explain else None,
        warnings=_warnings(found.warnings),
    )


def verify_subject(found: SubjectVerified, fmr_asked: float | None, *, explain: bool) -> schemas.SubjectVerifyAnswer:
    chosen, ruled_out = found.chosen, [found.ruled_out] if found.ruled_out else []
    others = [found.nearest_other], [ruled_out]
    why = explained([chosen.photo], [chosen], found.stages, *others, point=found.point) if explain else None
    return schemas.SubjectVerifyAnswer.of(
        found,
        found.candidate,
        found.point,
        fmr_asked=fmr_asked,
        face=_chosen_face(chosen),
        explain=why,
        warnings=_warnings(found.warnings),
    )


def identify(found: Identification, asked: schemas.IdentifyParams) -> schemas.IdentifyAnswer:
    nearest = [face.nearest_other for face in found.faces]
    ruled_out = [face.ruled_out for face in found.faces]
    return schemas.IdentifyAnswer.of(
        found,
        found.point,
        image=found.photo,
        faces=[
            schemas.IdentifiedFace.of(
                face, face.face, threshold=found.point.threshold, threshold_uncertain=found.point.uncertain
            )
            for face in found.faces
        ],
        fmr_asked=asked.fmr,
        fpir_asked=asked.fpir,
        explain=explained([found.photo], (), found.stages, nearest, ruled_out, point=found.point)
        if asked.explain
        else None,
        warnings=_warnings(found.warnings),
    )


def _warnings(found: Sequence[decisions.PopulationWarning] | None) -> list[schemas.PopulationWarning] | None:
    if found is None:
        return None
    return [
        schemas.PopulationWarning.of(
            warning,
            fmr_found=warning.rate and warning.rate.found,
            fmr_found_low=warning.rate and warning.rate.low,
            fmr_found_high=warning.rate and warning.rate.high,
        )
        for warning in found
    ]


def enroll(found: Enrollment, *, explain: bool) -> schemas.EnrollAnswer:
    photos = [one.photo for one in found.chosen]
    return schemas.EnrollAnswer.of(
        found,
        enrolled=[
            schemas.EnrolledFace.of(row, findings, index=index, liveness=face.liveness)
            for index, face, row, findings in found.enrolled
        ],
        rejected=[
            schemas.RejectedImage.of(image, image.error, image.findings, reasons=reasons_of(image.error))
            for image in found.rejected
        ],
        explain=explained(photos, found.chosen, found.stages) if explain else None,
    )


def explained(
    photos: Iterable[types.Photo],
    chosen: Iterable[Chosen] = (),
    stages: Mapping[str, float] | None = None,
    nearest: Iterable[decisions.AnsweredCandidate | None] = (),
    ruled_out: Iterable[Sequence[corrections.RuledOut]] = (),
    *,
    point: decisions.VerifyPoint | decisions.IdentifyPoint | None = None,
) -> schemas.Explain:
    """Return how an answer came about. ``stages``: milliseconds beside those of the photos, which are summed;
    ``point``: what decided about a gallery's faces.
    """
    photos = list(photos)
    total: dict[str, float] = {}
    for part in (*(photo.stages for photo in photos), stages or {}):
        for stage, spent in part.items():
            total[stage] = total.get(stage, 0.0) + spent
    return schemas.Explain.of(
        stages={stage: round(spent, 3) for stage, spent in total.items()},
        batch_size=max((photo.batch_size for photo in photos if photo.batch_size is not None), default=None),
        chosen=[
            schemas.Choice(
                index=one.choice.index,
                why=one.choice.why,
                runner_up_share=one.choice.runner_up if len(one.photo.faces) > 1 else None,
            )
            for one in chosen
        ],
        nearest_other=list(nearest),
        ruled_out=list(ruled_out),
        comparisons=None if point is None else round(point.comparisons, 1),
    )


def stored_face(found: records.StoredFace, gallery: records.Gallery) -> schemas.StoredFace:
    return schemas.StoredFace.of(found, model=found.package, has_crop=gallery.store == "crop")


def model(package: Package, device: str | None = None, providers: Iterable[str] = ()) -> schemas.Model:
    """Return a package; ``device``: where it is running, None if it isn't."""
    manifest = package.manifest
    contract = manifest.liveness
    return schemas.Model.of(
        package,
        manifest,
        loaded=device is not None,
        source=manifest.source.kind,
        licence=schemas.Licence.of(manifest.licence, url=manifest.licence.url or None),
        liveness=contract
        and schemas.LivenessModel.of(
            contract,
            scale=contract.cut.scale,
            side=int(manifest.input.shape[1]),
            calibrations=manifest.liveness_calibrations,
        ),
        device=device,
        providers=list(providers),
        provenance=manifest.provenance.model_dump(mode="json"),
        warnings=list(package.warnings),
    )
