"""Makes the secrets that the containers share, once, each in a volume that only those see who need it.

`database/password` (for the database's container) and `database/pgpass` (the same for the service, as libpq reads it)
come from DATABASE_PASSWORD or are random; `metrics/key` is the key that Prometheus reads the metrics with;
`grafana/password` its administrator's. What is there stays as it is: the database was made with it.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

FOLDER = Path("/run/likeness")
PRIVATE, GROUP = 0o600, 0o640
"""libpq takes no password file that others can read; the database and Prometheus have this container's group."""


def keep(path: Path, text: str, mode: int) -> None:
    """Writes the file, whole or not at all, unless it is there."""
    if path.exists():
        return
    draft = path.with_name(path.name + ".draft")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        os.fchmod(handle, mode)
        file.write(text)
        os.fsync(handle)
    draft.replace(path)


def main(folder: Path) -> None:
    password = folder / "database" / "password"
    keep(password, os.environ.get("DATABASE_PASSWORD") or secrets.token_urlsafe(32), GROUP)
    escaped = password.read_text(encoding="utf-8").replace("\\", "\\\\").replace(":", "\\:")
    keep(folder / "database" / "pgpass", f"*:*:*:*:{escaped}\n", PRIVATE)
    keep(folder / "grafana" / "password", secrets.token_urlsafe(24), GROUP)
    keep(folder / "metrics" / "key", f"lk_monitoring_{secrets.token_urlsafe(32)}", GROUP)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
