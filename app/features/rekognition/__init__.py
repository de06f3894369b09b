"""Amazon Rekognition's wire format: `POST /`, AWS JSON 1.1, signed with SigV4. See docs/reference/drop-ins.md."""

from app.api.components import Components
from app.api.feature import Feature, Part
from app.features.one_time import SeenSignatures
from app.features.rekognition.routes import router
from app.features.rekognition.wire import REKOGNITION, SignatureChecker


def _start(core: Components) -> Part:
    checker, seen = SignatureChecker(core.keys, core.guard), SeenSignatures(core.store.database)
    return Part({"signature_checker": checker, "seen_signatures": seen})


FEATURE = Feature([router], _start, setting="rekognition", wire=REKOGNITION)
