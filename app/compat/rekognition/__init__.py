"""Amazon Rekognition's wire format: `POST /`, AWS JSON 1.1, signed with SigV4. See docs/reference/drop-ins.md."""

from fastapi import FastAPI

from app.api import route
from app.compat.rekognition.routes import router
from app.compat.rekognition.signatures import SignatureChecker
from app.compat.rekognition.wire import REKOGNITION


def install(app: FastAPI) -> None:
    """Add the operations and the wire format."""
    app.state.wires = (*app.state.wires, REKOGNITION)
    app.state.rekognition_signatures = SignatureChecker()
    route.install(app, [router])
