"""The data folder, its admin key, and the list of servers that run on it, in which commands find one.

Any number of servers may run on it: they share the database, and each follows the changes of the others.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.db.encryption import ADMIN_KEY_FILE, read_admin_key
from app.errors import Unusable
from app.files import write_new

FOLDER = "servers"
KEY_PREFIX = "lk_"
ADMIN_KEY_BYTES = 32
"""Random bytes of the key: 256 bits, so that a fast hash protects it as well as a slow one."""


def prepare_data_dir(folder: Path) -> None:
    """Create the data folder, only for its owner. Raises Unusable (``data_dir_unusable``)."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"{folder}: {error.strerror}. Choose another LIKENESS_DATA_DIR."
        raise Unusable(message, code="data_dir_unusable") from None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise Unusable(f"{folder}: this user can't write to it", code="data_dir_unusable")


def load_key(folder: Path) -> tuple[str, bool]:
    """Prepare the folder; return the admin key and whether this call created it. Remove other users' access to the key.

    Raises Unusable (``data_dir_unusable``; ``key_unusable`` if the file holds no key).
    """
    prepare_data_dir(folder)
    path = folder / ADMIN_KEY_FILE
    made = not path.exists() and write_new(path, new_admin_key().encode() + b"\n")
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise Unusable(f"{path}: its permissions can't be changed ({error})", code="key_unusable") from None
    return read_admin_key(path), made


def new_admin_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(ADMIN_KEY_BYTES)


@contextmanager
def announce(data_dir: Path, url: str) -> Iterator[None]:
    """List this process as a server at ``url`` while the block lasts.

    The list entry is a locked file with the URL. The kernel releases the lock however the process ends.
    """
    folder = data_dir / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{secrets.token_hex(8)}.url"
    draft = path.with_suffix(".draft")
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, url.encode())
        fcntl.flock(handle, fcntl.LOCK_EX)
        draft.replace(path)  # it is already locked when it appears
        yield
    finally:
        draft.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        os.close(handle)


def running_at(data_dir: Path) -> str | None:
    """Return the URL of the (first) server that runs on the data folder, or None."""
    return next(iter(all_running_at(data_dir)), None)


def all_running_at(data_dir: Path) -> list[str]:
    """Return the URLs of this machine's servers that run on the data folder, oldest first."""
    try:
        paths = sorted((data_dir / FOLDER).glob("*.url"), key=lambda path: path.stat().st_mtime_ns)
    except FileNotFoundError:  # a server has just ended
        return all_running_at(data_dir)
    return [url for path in paths if (url := _url_of(path))]


def _url_of(path: Path) -> str | None:
    """Return the URL that the server wrote. If its process has ended, delete the file and return None."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return path.read_text()
    else:
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(handle)
