"""Photos in, faces out: detected, compared with each other, and searched for in a collection."""

from __future__ import annotations

from app.compat.rekognition import asked
from app.compat.rekognition.call import Call, good_enough, no_faces, stored_template, template_of
from app.compat.rekognition.matching import match_faces
from app.compat.rekognition.shapes import Shape, face_detail, face_id_from, largest_first, percent, searched_face
from app.decisions import cosine
from app.types import Face

MOST_FACES = 100


def detect(call: Call, wanted: asked.DetectFaces) -> Shape:
    photo = call.service.operations.detect(call.image(wanted.Image))
    return {"FaceDetails": [face_detail(face, photo) for face in largest_first(photo.faces)[:MOST_FACES]]}


def compare(call: Call, wanted: asked.CompareFaces) -> Shape:
    """The largest face of the first photo against each of the second."""
    images = [call.image(source) for source in (wanted.SourceImage, wanted.TargetImage)]
    source, package = call.service.operations.embed(images[0])
    sources = good_enough(source, wanted.QualityFilter)
    if not sources:
        raise no_faces()
    target, _ = call.service.operations.embed(images[1], package)
    scale = call.scale(package)
    floor = scale.cosine_of(wanted.SimilarityThreshold / 100)
    probe = template_of(sources[0])
    scored = [
        (cosine(probe, template_of(face)), face) for face in good_enough(target, wanted.QualityFilter)[:MOST_FACES]
    ]
    matches = sorted((pair for pair in scored if pair[0] >= floor), key=lambda pair: -pair[0])
    box, confidence = searched_face(sources[0], source)

    def shown(face: Face) -> Shape:
        return face_detail(face, target)

    return {
        "SourceImageFace": {"BoundingBox": box, "Confidence": confidence},
        "FaceMatches": [
            {"Similarity": percent(scale.of_cosine(score)), "Face": shown(face)} for score, face in matches
        ],
        "UnmatchedFaces": [shown(face) for score, face in scored if score < floor],
    }


def search(call: Call, wanted: asked.SearchFaces) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    row = call.stored(gallery, face_id_from(wanted.FaceId))
    matches = match_faces(
        call, gallery, stored_template(row), wanted.FaceMatchThreshold, wanted.MaxFaces, leave_out=row.face_id
    )
    return {"SearchedFaceId": wanted.FaceId, "FaceMatches": matches, "FaceModelVersion": gallery.embedder}


def search_by_image(call: Call, wanted: asked.SearchFacesByImage) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    photo = call.service.operations.embed_for(gallery.id, call.image(wanted.Image))
    faces = good_enough(photo, wanted.QualityFilter)
    if not faces:
        raise no_faces()
    box, confidence = searched_face(faces[0], photo)
    matches = match_faces(call, gallery, template_of(faces[0]), wanted.FaceMatchThreshold, wanted.MaxFaces)
    return {
        "SearchedFaceBoundingBox": box,
        "SearchedFaceConfidence": confidence,
        "FaceMatches": matches,
        "FaceModelVersion": gallery.embedder,
    }
