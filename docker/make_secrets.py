"""Create the secrets that the containers share, each in a volume that only the containers that need it mount.

`database/password` (for the database's container) and `database/pgpass` (the same for the service, as libpq reads it)
come from DATABASE_PASSWORD or are random. Prometheus reads the metrics with `metrics/key`; `grafana/password` is for
Grafana's administrator. A file that exists is left unchanged: the database was created with its password.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from app.files import PRIVATE, write_new

FOLDER = Path("/run/likeness")
GROUP = 0o640
"""libpq rejects a password file that others can read; the database and Prometheus run in this container's group."""


def main(folder: Path) -> None:
    password = folder / "database" / "password"
    write_new(password, (os.environ.get("DATABASE_PASSWORD") or secrets.token_urlsafe(32)).encode(), GROUP)
    escaped = password.read_text(encoding="utf-8").replace("\\", "\\\\").replace(":", "\\:")
    write_new(folder / "database" / "pgpass", f"*:*:*:*:{escaped}\n".encode(), PRIVATE)
    write_new(folder / "grafana" / "password", secrets.token_urlsafe(24).encode(), GROUP)
    write_new(folder / "metrics" / "key", f"lk_monitoring_{secrets.token_urlsafe(32)}".encode(), GROUP)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
