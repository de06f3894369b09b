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


def verify(verified: Verified, fmr_asked: float | None, *, explain: bool) -> schemas.VerifyAnswer:
    both = [verified.first, verified.second]
    return schemas.VerifyAnswer.of(
        verified,
        verified.point,
        fmr_asked=fmr_asked,
        face1=_chosen_face(verified.first),
        face2=_chosen_face(verified.second),
        explain=explained([chosen.photo for chosen in both], both) if explain else None,
        warnings=_warnings(verified.warnings),
    )


def verify_subject(verified: SubjectVerified, fmr_asked: float | None, *, explain: bool) -> schemas.SubjectVerifyAnswer:
    chosen, ruled_out = verified.chosen, [verified.ruled_out] if verified.ruled_out else []
    others = [verified.nearest_other], [ruled_out]
    why = explained([chosen.photo], [chosen], verified.stages, *others, point=verified.point) if explain else None
    return schemas.SubjectVerifyAnswer.of(
        verified,
        verified.candidate,
        verified.point,
        fmr_asked=fmr_asked,
        face=_chosen_face(chosen),
        explain=why,
        warnings=_warnings(verified.warnings),
    )


def identify(identification: Identification, asked: schemas.IdentifyParams) -> schemas.IdentifyAnswer:
    point = identification.point
    nearest = [face.nearest_other for face in identification.faces]
    ruled_out = [face.ruled_out for face in identification.faces]
    return schemas.IdentifyAnswer.of(
        identification,
        point,
        image=identification.photo,
        faces=[
            schemas.IdentifiedFace.of(face, face.face, threshold=point.threshold, threshold_uncertain=point.uncertain)
            for face in identification.faces
        ],
        fmr_asked=asked.fmr,
        fpir_asked=asked.fpir,
        explain=explained([identification.photo], (), identification.stages, nearest, ruled_out, point=point)
        if asked.explain
        else None,
        warnings=_warnings(identification.warnings),
    )


def _warnings(warnings: Sequence[decisions.PopulationWarning] | None) -> list[schemas.PopulationWarning] | None:
    if warnings is None:
        return None
    return [
        schemas.PopulationWarning.of(
            warning,
            fmr_found=warning.rate and warning.rate.found,
            fmr_found_low=warning.rate and warning.rate.low,
            fmr_found_high=warning.rate and warning.rate.high,
        )
        for warning in warnings
    ]


def enroll(enrollment: Enrollment, *, explain: bool) -> schemas.EnrollAnswer:
    photos = [chosen.photo for chosen in enrollment.chosen]
    return schemas.EnrollAnswer.of(
        enrollment,
        enrolled=[
            schemas.EnrolledFace.of(row, findings, index=index, liveness=face.liveness)
            for index, face, row, findings in enrollment.enrolled
        ],
        rejected=[
            schemas.RejectedImage.of(image, image.error, image.findings, reasons=reasons_of(image.error))
            for image in enrollment.rejected
        ],
        explain=explained(photos, enrollment.chosen, enrollment.stages) if explain else None,
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
                index=face.choice.index,
                why=face.choice.why,
                runner_up_share=face.choice.runner_up if len(face.photo.faces) > 1 else None,
            )
            for face in chosen
        ],
        nearest_other=list(nearest),
        ruled_out=list(ruled_out),
        comparisons=None if point is None else round(point.comparisons, 1),
    )


def stored_face(face: records.StoredFace, gallery: records.Gallery) -> schemas.StoredFace:
    return schemas.StoredFace.of(face, model=face.package, has_crop=gallery.store == "crop")


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
