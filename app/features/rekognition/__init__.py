"""Amazon Rekognition's wire format: `POST /`, AWS JSON 1.1, signed with SigV4. See docs/reference/drop-ins.md."""

from app.api.feature import Feature, Part
from app.features.rekognition.routes import router
from app.features.rekognition.wire import REKOGNITION, SignatureChecker

FEATURE = Feature(
    [router],
    lambda core: Part({"signature_checker": SignatureChecker(core.keys, core.guard)}),
    setting="rekognition",
    wire=REKOGNITION,
)
