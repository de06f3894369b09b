"""Create the secrets that the containers share, each in a volume that only the containers that need it mount.

`database/password` is the superuser's, from DATABASE_PASSWORD or random; `service/password` is for the role that the
service uses, and `service/pgpass` holds the same as libpq reads it. Prometheus reads the metrics with `metrics/key`,
the watcher reports sightings with `watcher/key`, and `grafana/password` is for Grafana's administrator. A file that
exists is left unchanged: the database was created with its password.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from app.files import PRIVATE, write_new

FOLDER = Path("/run/likeness")
GROUP = 0o640
"""File mode: the group may read, to which the containers of the database, of its role and of Prometheus belong."""


def main(folder: Path) -> None:
    password = folder / "database" / "password"
    write_new(password, (os.environ.get("DATABASE_PASSWORD") or secrets.token_urlsafe(32)).encode(), GROUP)
    (folder / "database" / "pgpass").unlink(missing_ok=True)  # from 0.1.0, in which the service was the superuser
    password_file = folder / "service" / "password"
    write_new(password_file, secrets.token_urlsafe(32).encode(), GROUP)
    write_new(folder / "service" / "pgpass", f"*:*:*:*:{password_file.read_text(encoding='utf-8')}\n".encode(), PRIVATE)
    write_new(folder / "grafana" / "password", secrets.token_urlsafe(24).encode(), GROUP)
    for name, key_id in (("metrics", "monitoring"), ("watcher", "watcher")):
        write_new(folder / name / "key", f"lk_{key_id}_{secrets.token_urlsafe(32)}".encode(), GROUP)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
