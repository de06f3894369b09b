"""Converts results of operations to answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import cast

from app import types
from app.api import schemas
from app.gallery import records
from app.inference.manifest import DecidedBy, Manifest
from app.inference.package import Package
from app.recognition import corrections, decisions, results
from app.recognition.duplicate_check import Resemblance


def quality(value: types.Quality) -> schemas.Quality:
    return schemas.Quality(score=value.score, reasons=[reason.value for reason in value.reasons])


def detected(face: types.Face) -> schemas.DetectedFace:
    found = face.detection
    return schemas.DetectedFace(
        box=schemas.Box.model_validate(found.box),
        landmarks=[(float(x), float(y)) for x, y in found.landmarks],
        score=found.score,
        quality=quality(face.quality),
    )


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


def chosen_face(chosen: results.Chosen) -> schemas.ChosenFace:
    return schemas.ChosenFace(
        **dict(detected(chosen.face)),
        image=schemas.ImageSize.model_validate(chosen.photo),
        faces=len(chosen.photo.faces),
        liveness=liveness(chosen.face.liveness),
    )


def decided_by(found: DecidedBy) -> schemas.DecidedBy:
    return schemas.DecidedBy(source=found.source, name=found.name, fallback=found.fallback)


def verify(found: results.Verified, fmr_asked: float | None, *, explain: bool) -> schemas.VerifyAnswer:
    both = [found.first, found.second]
    return schemas.VerifyAnswer(
        match=found.match,
        score=found.score,
        threshold=found.point.threshold,
        fmr=found.point.fmr,
        fmr_asked=fmr_asked,
        calibration=decided_by(found.point.calibration),
        face1=chosen_face(found.first),
        face2=chosen_face(found.second),
        model=found.model,
        explain=explained([one.photo for one in both], both) if explain else None,
        warnings=_warnings(found.warnings),
    )


def verify_subject(
    found: results.SubjectVerified, fmr_asked: float | None, *, explain: bool
) -> schemas.SubjectVerifyAnswer:
    chosen = found.chosen
    return schemas.SubjectVerifyAnswer(
        match=found.match,
        subject=found.candidate.subject,
        name=found.candidate.name,
        score=found.candidate.score,
        template_score=found.candidate.template_score,
        face_id=found.candidate.face_id,
        threshold=found.point.threshold,
        fmr=found.point.fmr,
        fmr_asked=fmr_asked,
        calibration=decided_by(found.point.calibration),
        face=chosen_face(chosen),
        model=found.model,
        explain=explained(
            [chosen.photo],
            [chosen],
            found.stages,
            [found.nearest_other],
            [[found.ruled_out] if found.ruled_out else []],
        )
        if explain
        else None,
        warnings=_warnings(found.warnings),
    )


def identify(found: results.Identification, asked: schemas.IdentifyParams) -> schemas.IdentifyAnswer:
    nearest = [face.nearest_other for face in found.faces]
    ruled_out = [face.ruled_out for face in found.faces]
    return schemas.IdentifyAnswer(
        image=schemas.ImageSize.model_validate(found.photo),
        faces=[_identified(face, found.point) for face in found.faces],
        fmr=found.point.fmr,
        fpir=found.point.fpir,
        fmr_asked=asked.fmr,
        fpir_asked=asked.fpir,
        limited=found.point.limited,
        calibration=decided_by(found.point.calibration),
        subjects=found.subjects,
        model=found.model,
        explain=explained([found.photo], (), found.stages, nearest, ruled_out) if asked.explain else None,
        warnings=_warnings(found.warnings),
    )


def _warnings(found: Sequence[decisions.PopulationWarning] | None) -> list[schemas.PopulationWarning] | None:
    return None if found is None else [_warning(one) for one in found]


def _warning(found: decisions.PopulationWarning) -> schemas.PopulationWarning:
    rate = found.rate
    return schemas.PopulationWarning(
        code=found.code,
        message=found.message,
        population=found.population,
        fmr_found=rate.found if rate else None,
        fmr_found_low=rate.low if rate else None,
        fmr_found_high=rate.high if rate else None,
    )


def _identified(face: results.Identified, point: decisions.IdentifyPoint) -> schemas.IdentifiedFace:
    return schemas.IdentifiedFace(
        **dict(detected(face.face)),
        decision=face.decision,
        candidates=[schemas.Candidate.model_validate(candidate) for candidate in face.candidates],
        margin=face.margin,
        threshold=point.threshold,
        threshold_uncertain=point.uncertain,
        liveness=liveness(face.face.liveness),
    )


def enroll(found: results.Enrollment, *, explain: bool) -> schemas.EnrollAnswer:
    photos = [one.photo for one in found.chosen]
    return schemas.EnrollAnswer(
        subject=found.subject,
        created=found.created,
        enrolled=[
            schemas.EnrolledFace(
                index=index,
                face_id=row.face_id,
                quality=quality(row.quality),
                box=schemas.Box.model_validate(row.box),
                duplicate=_resemblance(findings.duplicate),
                conflict=_resemblance(findings.conflict),
                liveness=liveness(found.liveness.get(index)),
            )
            for index, row, findings in found.enrolled
        ],
        rejected=[
            schemas.RejectedImage(
                index=one.index,
                code=one.error.code,
                reasons=one.reasons,
                message=one.error.message,
                duplicate=_resemblance(one.findings.duplicate),
                conflict=_resemblance(one.findings.conflict),
            )
            for one in found.rejected
        ],
        model=found.model,
        explain=explained(photos, found.chosen, found.stages) if explain else None,
    )


def _resemblance(found: Resemblance | None) -> schemas.Resemblance | None:
    if found is None:
        return None
    return schemas.Resemblance(
        subject=found.subject, name=found.name, face_id=found.face_id, score=found.score, index=found.place
    )


def explained(
    photos: Iterable[types.Photo],
    chosen: Iterable[results.Chosen] = (),
    stages: Mapping[str, float] | None = None,
    nearest: Iterable[decisions.AnsweredCandidate | None] = (),
    ruled_out: Iterable[Sequence[corrections.RuledOut]] = (),
) -> schemas.Explain:
    """Return how an answer came about. ``stages``: milliseconds beside those of the photos, which are summed."""
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
        ruled_out=[[_ruled_out(one) for one in some] for some in ruled_out],
    )


def _ruled_out(found: corrections.RuledOut) -> schemas.RuledOut:
    return schemas.RuledOut.model_validate(found)


def correction(found: corrections.Correction) -> schemas.Correction:
    return schemas.Correction(
        id=found.id,
        subject=found.subject,
        model=found.package,
        has_crop=found.has_crop,
        created_at=datetime.fromisoformat(found.created_at),
        expires_at=datetime.fromisoformat(found.expires_at),
    )


def stored_face(found: records.FaceRow, gallery: records.Gallery) -> schemas.StoredFace:
    return schemas.StoredFace.model_validate(
        {
            "face_id": found.face_id,
            "box": schemas.Box.model_validate(found.box),
            "quality": quality(found.quality),
            "model": found.package,
            "has_crop": gallery.store == "crop",
            "created_at": found.created_at,
        }
    )


def model(package: Package, device: str | None = None, providers: Iterable[str] = ()) -> schemas.Model:
    """Return a package; ``device``: where it is running, None if it isn't."""
    manifest = package.manifest
    return schemas.Model(
        id=package.id,
        name=manifest.name,
        version=manifest.version,
        task=manifest.task,
        title=manifest.title,
        description=manifest.description,
        loaded=device is not None,
        source=manifest.source.kind,
        sha256=manifest.sha256,
        licence=schemas.Licence(
            name=manifest.licence.name,
            non_commercial=manifest.licence.non_commercial,
            url=manifest.licence.url or None,
        ),
        dimension=manifest.dimension,
        calibrations=[schemas.Calibration.model_validate(one) for one in manifest.calibrations],
        bias_card=None if manifest.bias_card is None else schemas.BiasCard.model_validate(manifest.bias_card),
        liveness=_liveness_model(manifest),
        device=device,
        providers=list(providers),
        provenance=cast("dict[str, object]", manifest.provenance.model_dump(mode="json")),
        warnings=list(package.warnings),
    )


def _liveness_model(manifest: Manifest) -> schemas.LivenessModel | None:
    contract = manifest.liveness
    if contract is None:
        return None
    return schemas.LivenessModel(
        classes=list(contract.classes),
        live=contract.live,
        scale=contract.cut.scale,
        side=int(manifest.input.shape[1]),
        calibrations=[
            schemas.LivenessCalibration.model_validate(one.model_dump()) for one in manifest.liveness_calibrations
        ],
    )
