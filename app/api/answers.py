"""Converts results of operations to answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from app import types
from app.api import schemas
from app.gallery import records
from app.inference.manifest import Manifest
from app.inference.package import Package
from app.recognition import corrections, decisions
from app.recognition.duplicate_check import Resemblance
from app.recognition.photos import Chosen, Enrollment, Identification, Identified, SubjectVerified, Verified, reasons_of


def quality(value: types.Quality) -> schemas.Quality:
    return schemas.Quality(score=value.score, reasons=[reason.value for reason in value.reasons])


def detected(face: types.Face) -> schemas.DetectedFace:
    found = face.detection
    landmarks = [(float(x), float(y)) for x, y in found.landmarks]
    return schemas.DetectedFace.of(found, landmarks=landmarks, quality=quality(face.quality))


def liveness(found: types.Liveness | None) -> schemas.Liveness | None:
    if found is None:
        return None
    return schemas.Liveness(
        live=found.verdict.value,
        live_score=found.score,
        reason=found.reason.value if found.reason else None,
    )


def detect(photo: types.Photo, *, explain: bool) -> schemas.DetectAnswer:
    return schemas.DetectAnswer(
        image=schemas.ImageSize.model_validate(photo),
        faces=[detected(face) for face in photo.faces],
        explain=explained([photo]) if explain else None,
    )


def embed(photo: types.Photo, model: str, *, explain: bool) -> schemas.EmbedAnswer:
    return schemas.EmbedAnswer(
        image=schemas.ImageSize.model_validate(photo),
        faces=[
            schemas.EmbeddedFace(**dict(detected(face)), embedding=face.template.vector.tolist())
            for face in photo.faces
            if face.template is not None
        ],
        model=model,
        explain=explained([photo]) if explain else None,
    )


def chosen_face(chosen: Chosen) -> schemas.ChosenFace:
    return schemas.ChosenFace(
        **dict(detected(chosen.face)),
        image=schemas.ImageSize.model_validate(chosen.photo),
        faces=len(chosen.photo.faces),
        liveness=liveness(chosen.face.liveness),
    )


def verify(found: Verified, fmr_asked: float | None, *, explain: bool) -> schemas.VerifyAnswer:
    both = [found.first, found.second]
    return schemas.VerifyAnswer.of(
        found,
        found.point,
        fmr_asked=fmr_asked,
        face1=chosen_face(found.first),
        face2=chosen_face(found.second),
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
        face=chosen_face(chosen),
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
        faces=[_identified(face, found.point) for face in found.faces],
        fmr_asked=asked.fmr,
        fpir_asked=asked.fpir,
        explain=explained([found.photo], (), found.stages, nearest, ruled_out, point=found.point)
        if asked.explain
        else None,
        warnings=_warnings(found.warnings),
    )


def _warnings(found: Sequence[decisions.PopulationWarning] | None) -> list[schemas.PopulationWarning] | None:
    return None if found is None else [_warning(one) for one in found]


def _warning(found: decisions.PopulationWarning) -> schemas.PopulationWarning:
    rate = found.rate
    return schemas.PopulationWarning.of(
        found,
        fmr_found=rate.found if rate else None,
        fmr_found_low=rate.low if rate else None,
        fmr_found_high=rate.high if rate else None,
    )


def _identified(face: Identified, point: decisions.IdentifyPoint) -> schemas.IdentifiedFace:
    return schemas.IdentifiedFace(
        **dict(detected(face.face)),
        decision=face.decision,
        candidates=[schemas.Candidate.model_validate(candidate) for candidate in face.candidates],
        margin=face.margin,
        threshold=point.threshold,
        threshold_uncertain=point.uncertain,
        liveness=liveness(face.face.liveness),
    )


def enroll(found: Enrollment, *, explain: bool) -> schemas.EnrollAnswer:
    photos = [one.photo for one in found.chosen]
    return schemas.EnrollAnswer.of(
        found,
        enrolled=[
            schemas.EnrolledFace.of(
                row,
                index=index,
                quality=quality(row.quality),
                duplicate=_resemblance(findings.duplicate),
                conflict=_resemblance(findings.conflict),
                unlike=_resemblance(findings.unlike),
                liveness=liveness(found.liveness.get(index)),
            )
            for index, row, findings in found.enrolled
        ],
        rejected=[
            schemas.RejectedImage(
                index=one.index,
                code=one.error.code,
                reasons=reasons_of(one.error),
                message=one.error.message,
                duplicate=_resemblance(one.findings.duplicate),
                conflict=_resemblance(one.findings.conflict),
            )
            for one in found.rejected
        ],
        explain=explained(photos, found.chosen, found.stages) if explain else None,
    )


def _resemblance(found: Resemblance | None) -> schemas.Resemblance | None:
    return None if found is None else schemas.Resemblance.of(found, index=found.place)


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
    return schemas.Explain(
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
        nearest_other=[None if one is None else schemas.NearestOther.model_validate(one) for one in nearest],
        ruled_out=[[schemas.RuledOut.model_validate(one) for one in some] for some in ruled_out],
        comparisons=None if point is None else round(point.comparisons, 1),
    )


def correction(found: corrections.Correction) -> schemas.Correction:
    return schemas.Correction.of(found, model=found.package)


def stored_face(found: records.StoredFace, gallery: records.Gallery) -> schemas.StoredFace:
    return schemas.StoredFace.of(
        found, quality=quality(found.quality), model=found.package, has_crop=gallery.store == "crop"
    )


def model(package: Package, device: str | None = None, providers: Iterable[str] = ()) -> schemas.Model:
    """Return a package; ``device``: where it is running, None if it isn't."""
    manifest = package.manifest
    return schemas.Model.of(
        package,
        manifest,
        loaded=device is not None,
        source=manifest.source.kind,
        licence=schemas.Licence.of(manifest.licence, url=manifest.licence.url or None),
        liveness=_liveness_model(manifest),
        device=device,
        providers=list(providers),
        provenance=manifest.provenance.model_dump(mode="json"),
        warnings=list(package.warnings),
    )


def _liveness_model(manifest: Manifest) -> schemas.LivenessModel | None:
    contract = manifest.liveness
    if contract is None:
        return None
    return schemas.LivenessModel.of(
        contract,
        scale=contract.cut.scale,
        side=int(manifest.input.shape[1]),
        calibrations=[
            schemas.LivenessCalibration.model_validate(one.model_dump()) for one in manifest.liveness_calibrations
        ],
    )
