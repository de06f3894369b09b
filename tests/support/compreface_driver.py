"""Call CompreFace's own Python SDK, in an environment of its own: reads a call a line, writes an answer a line.

`python compreface_driver.py URL KEY`; a call is `{"of", "call", "given", "options"}`.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from compreface import CompreFace
from compreface.collections import FaceCollection
from compreface.collections.face_collections import Subjects
from compreface.exceptions import IncorrectFieldException
from compreface.service import DetectionService, RecognitionService, VerificationService


def main(url: str, key: str) -> None:
    domain, _, port = url.rpartition(":")
    for line in sys.stdin:
        asked = json.loads(line)
        service = CompreFace(domain, port, asked.get("defaults") or {})
        recognition: RecognitionService = service.init_face_recognition(key)
        verification: VerificationService = service.init_face_verification(key)
        detection: DetectionService = service.init_face_detection(key)
        collection: FaceCollection = recognition.get_face_collection()
        subjects: Subjects = recognition.get_subjects()
        places = {
            "recognition": recognition,
            "verification": verification,
            "detection": detection,
            "collection": collection,
            "subjects": subjects,
        }
        answer = call(getattr(places[asked["of"]], asked["call"]), asked)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def call(function: Any, asked: dict[str, Any]) -> Any:
    """Call the SDK and return its answer, or the name of what it raises.

    An image that is given as an object is sent as bytes, otherwise as a path.
    """
    given = {
        name: base64.b64decode(value["bytes"]) if isinstance(value, dict) else value
        for name, value in asked["given"].items()
    }
    if asked.get("options"):
        given["options"] = asked["options"]
    try:
        return function(**given)
    except IncorrectFieldException:
        return {"raised": "IncorrectFieldException"}


if __name__ == "__main__":
    main(*sys.argv[1:])
