"""CompreFace's REST interface, as documented in its version 1.2. docs/reference/drop-ins.md lists the differences."""

from app.api.feature import Feature
from app.features.compreface import recognition, subjects
from app.features.compreface.wire import COMPREFACE

ROUTERS = (subjects.router, recognition.router)
FEATURE = Feature(ROUTERS, setting="compreface", wire=COMPREFACE)


def endpoints_table() -> str:
    """Return each call with its scope and audit word as a Markdown table."""
    some = [operation for router in ROUTERS for operation in router.operations]
    lines = ["| call | scope | in the audit log |", "|---|---|---|"]
    lines += [
        f"| `{operation.method} {operation.path}` | `{operation.scope}` | `{operation.name}` |" for operation in some
    ]
    return "\n".join(lines)
