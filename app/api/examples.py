"""One example for every answer and request, for the OpenAPI page; a test holds each to its model."""

from __future__ import annotations

from typing import Any

PHOTO = "/9j/4AAQSkZJRgABAQAAAQABAAD..."
"""The beginning of a JPEG in base64."""
MODEL = "sface@1.0.0"
FACE_ID = "6f1f2d5f0f0c4c3a9a3e0c6d7b8a9f10"
TIME = "2026-01-31T12:00:00Z"

BOX = {"x": 177.4, "y": 68.2, "width": 92.1, "height": 121.7}
QUALITY = {"score": 92.4, "reasons": []}
LANDMARKS = [[204.1, 113.6], [244.9, 111.2], [227.8, 137.5], [209.3, 158.8], [243.7, 156.9]]
FACE = {"box": BOX, "landmarks": LANDMARKS, "score": 0.93, "quality": QUALITY}
IMAGE = {"width": 512, "height": 512, "rotated": 0}
CHOSEN = FACE | {"image": IMAGE, "faces": 1}
CANDIDATE = {
    "subject": "collins",
    "name": "Eileen Collins",
    "score": 0.871,
    "template_score": 0.884,
    "face_id": FACE_ID,
}
SUBJECT = {
    "id": "collins",
    "name": "Eileen Collins",
    "metadata": {"team": "STS-114"},
    "face_count": 1,
    "created_at": TIME,
    "updated_at": TIME,
    "expires_at": None,
    "consent": {"note": "form of 31 January, folder 12", "given_at": TIME},
}
KEY = {
    "id": "door",
    "name": None,
    "scopes": ["recognize"],
    "galleries": ["staff"],
    "rate": "10/s",
    "created_at": TIME,
    "expires_at": None,
    "rotated_at": None,
    "revoked_at": None,
    "old_secret_until": None,
    "declared": False,
}
JOB = {
    "id": "0c9d7f0e4b8f4f0f9a3e0c6d7b8a9f10",
    "kind": "import",
    "gallery": "staff",
    "state": "running",
    "done": 1200,
    "total": 5000,
    "counts": {"enrolled": 1187, "refused": 13},
    "error": None,
    "has_result": False,
    "key": "admin.key",
    "created_at": TIME,
    "started_at": TIME,
    "finished_at": None,
}
GALLERY: dict[str, object] = {
    "id": "staff",
    "embedder": MODEL,
    "store": "crop",
    "search": "fp32",
    "metadata": {},
    "subjects": 1,
    "faces": 1,
    "created_at": TIME,
}
STORED_FACE = {
    "face_id": FACE_ID,
    "box": BOX,
    "quality": QUALITY,
    "model": MODEL,
    "has_crop": True,
    "created_at": TIME,
}

RECEIPT = {
    "format": 1,
    "id": "0f5c1c2bb2dd4d0aa6a1e9b0c7c3de51",
    "gallery": "staff",
    "subject": {
        "salt": "9b0d0f3f5a0e4d6b8f7c6a5b4c3d2e1f",
        "digest": "3f1c7a52c4a1a3b7d9e8f0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f708192a3b",
    },
    "reason": "asked",
    "erased_at": TIME,
    "erased": {"faces": 2, "templates": 2, "crops": 2},
    "cleared": {"tables": "overwritten", "write_ahead_log": "emptied", "index_copies": "removed"},
    "complete": True,
    "completed_at": TIME,
    "not_reached": ["backups, exports and other copies made before"],
    "signature": {
        "algorithm": "Ed25519",
        "key_id": "21fe31dfa154a261",
        "public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
        "value": "bXktc2lnbmF0dXJlLWlzLTY0LWJ5dGVzLW9mLUVkMjU1MTktb3Zlci10aGUtZG9jdW1lbnQtLi4uLi4uLi4uLg==",
    },
}

ANSWERS: dict[str, dict[str, Any]] = {
    "DetectAnswer": {"image": IMAGE, "faces": [FACE], "explain": None},
    "EmbedAnswer": {
        "image": IMAGE,
        "faces": [FACE | {"embedding": [0.0132, -0.0871, 0.0456]}],
        "model": MODEL,
        "explain": None,
    },
    "VerifyAnswer": {
        "match": True,
        "score": 0.871,
        "threshold": 0.412,
        "fmr": 0.0001,
        "fmr_asked": None,
        "face1": CHOSEN,
        "face2": CHOSEN,
        "model": MODEL,
        "explain": None,
    },
    "SubjectVerifyAnswer": {
        "match": True,
        "subject": "collins",
        "name": "Eileen Collins",
        "score": 0.871,
        "template_score": 0.884,
        "face_id": FACE_ID,
        "threshold": 0.412,
        "fmr": 0.0001,
        "fmr_asked": 0.0001,
        "face": CHOSEN,
        "model": MODEL,
        "explain": None,
    },
    "IdentifyAnswer": {
        "image": IMAGE,
        "faces": [
            FACE
            | {
                "decision": "known",
                "candidates": [CANDIDATE],
                "margin": None,
                "threshold": 0.446,
                "threshold_uncertain": 0.371,
            }
        ],
        "fmr": 0.00002,
        "fpir": 0.01,
        "fmr_asked": None,
        "fpir_asked": 0.01,
        "subjects": 500,
        "model": MODEL,
        "explain": None,
    },
    "Gallery": GALLERY,
    "GalleryPage": {"galleries": [GALLERY], "next_cursor": None},
    "GalleryCheck": {
        "ok": True,
        "subjects": 1,
        "faces": 1,
        "indexed": 1,
        "problems": [],
        "examples": [],
    },
    "Subject": SUBJECT,
    "SubjectPage": {"subjects": [SUBJECT], "next_cursor": None},
    "StoredFace": STORED_FACE,
    "FacePage": {"faces": [STORED_FACE], "next_cursor": None},
    "EnrollAnswer": {
        "subject": "collins",
        "created": True,
        "enrolled": [{"index": 0, "face_id": FACE_ID, "quality": QUALITY, "box": BOX}],
        "rejected": [
            {
                "index": 1,
                "code": "low_quality",
                "reasons": ["small_face", "low_sharpness"],
                "message": "quality 21, 35 is the least that `medium` takes",
            }
        ],
        "model": MODEL,
        "explain": None,
    },
    "Key": KEY,
    "NewKey": KEY
    | {
        "secret": "lk_door_Vq3zTq9bZ0mJ6cXyqk1o7sJ8b2nPzq4wRrT5uYh6eLk",
        "aws_access_key_id": None,
        "aws_secret_access_key": None,
    },
    "OwnKey": {"id": "door", "scopes": ["recognize"], "galleries": ["staff"]},
    "KeyPage": {"keys": [KEY], "next_cursor": None},
    "AuditPage": {
        "entries": [
            {
                "at": TIME,
                "key": "door",
                "operation": "identify",
                "gallery": "staff",
                "subject": None,
                "target": None,
                "status": 200,
                "request_id": "4f1d8f0c2b7e4c4f8a55f3b1f0e7d9aa",
            }
        ],
        "next_cursor": None,
    },
    "Job": JOB,
    "JobPage": {"jobs": [JOB], "next_cursor": None},
    "Reembedding": {
        "gallery": "staff",
        "source": MODEL,
        "target": "mine@1",
        "state": "embedding",
        "without_crop": "refuse",
        "missing": 0,
        "keep_days": 7,
        "started_at": TIME,
        "switched_at": None,
        "keep_until": None,
        "job": JOB | {"kind": "reembed", "gallery": "staff"},
    },
    "ModelList": {
        "models": [
            {
                "id": MODEL,
                "name": "sface",
                "version": "1.0.0",
                "task": "embed",
                "title": "SFace",
                "description": "128-d face templates.",
                "loaded": True,
                "source": "carrier",
                "sha256": "fb143eea07838aa532d1c95df5f69899974ea0140e1fba05e94204be13ed74ee",
                "licence": {"name": "Apache-2.0", "non_commercial": False, "url": None},
                "dimension": 128,
                "calibrations": [
                    {
                        "name": "lfw-view1",
                        "measured_on": "LFW View 1",
                        "comparisons": 12000000,
                        "mated": 60000,
                        "default": True,
                        "points": [{"fmr": 0.0001, "threshold": 0.412}],
                    }
                ],
                "device": "cpu",
                "providers": ["CPUExecutionProvider"],
                "provenance": {},
            }
        ],
        "skipped": [
            {"folder": "arcface", "problem": "arcface/manifest.json is no valid manifest; correct or restore it."}
        ],
    },
    "Receipt": RECEIPT,
    "ReceiptPage": {"receipts": [RECEIPT], "next_cursor": None},
    "ServerKey": {
        "key_id": "21fe31dfa154a261",
        "algorithm": "Ed25519",
        "public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
        "pem": "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"
        "-----END PUBLIC KEY-----\n",
    },
    "Version": {"name": "likeness", "version": "0.1.0"},
    "Health": {"status": "ok"},
}

REQUESTS: dict[str, dict[str, Any]] = {
    "DetectRequest": {"image": PHOTO},
    "EmbedRequest": {"image": PHOTO},
    "VerifyRequest": {"image1": PHOTO, "image2": PHOTO, "fmr": 0.0001},
    "SubjectVerifyRequest": {"image": PHOTO, "fmr": 0.0001},
    "IdentifyRequest": {"image": PHOTO, "limit": 5, "fpir": 0.01},
    "EnrollRequest": {"images": [PHOTO, PHOTO], "quality": "medium"},
    "GalleryCreate": {"id": "staff"},
    "GalleryPatch": {"search": "int8"},
    "ReembedStart": {"embedder": "mine"},
    "SubjectCreate": {"id": "collins", "name": "Eileen Collins", "metadata": {"team": "STS-114"}},
    "KeyCreate": {"id": "door", "scopes": ["recognize"], "galleries": ["staff"], "rate": "10/s"},
    "KeyRotate": {"grace_seconds": 3600},
    "SubjectPatch": {"name": "Eileen Marie Collins"},
    "FaceMove": {"subject": "eileen"},
}
