"""CompreFace's REST interface, as documented in its version 1.2. docs/reference/drop-ins.md lists the differences."""

from app.api.feature import Feature
from app.features.compreface import recognition, subjects
from app.features.compreface.wire import COMPREFACE

ROUTERS = (subjects.router, recognition.router)
FEATURE = Feature(ROUTERS, setting="compreface", wire=COMPREFACE)
