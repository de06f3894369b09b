"""Connect a command to a server: a named one, one that runs on the data folder, or one in this process."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from likeness_client import Client, Unreachable

from app.cli import output
from app.db.encryption import ADMIN_KEY_FILE, read_admin_key
from app.errors import Unusable
from app.server import data_folder

if TYPE_CHECKING:
    from app.config import Settings

IN_PROCESS_URL = "http://in-process"
TIMEOUT_S = 300.0
KEY_FILE_VARIABLE = "LIKENESS_KEY_FILE"
"""Environment variable with a file of the API key for the server that --server or LIKENESS_SERVER names."""


class Data(Enum):
    """The parts of the data folder that a command needs if it does the work itself."""

    UNUSED = 1
    """Only models. Without a data folder, the command uses a temporary one."""
    EXISTING = 2
    """The stored data. If it is missing, the command fails and creates nothing."""
    CREATED = 3
    """A place to store data, which is created if it is missing."""


@contextmanager
def connect(server: str | None, key: str | None, data: Data = Data.EXISTING) -> Iterator[Client]:
    """Yield a client for ``server``, for a server on the data folder, or for the application in this process.

    Raises Unreachable; Unusable if settings, models or the data folder are at fault (``no_data_folder``).
    """
    running = find_server(server, key)
    with _in_process(data) if running is None else answering(running) as client:
        yield client


@contextmanager
def answering(client: Client) -> Iterator[Client]:
    """Yield the client, and close it. If nothing listens there, Unreachable says how to start a server."""
    try:
        with client:
            yield client
    except Unreachable as error:
        if not isinstance(error.__cause__, httpx.ConnectError):
            raise
        message = (
            f"No server answers at {error.message}. Start one with `likeness serve`, or name a running one with "
            "--server (or LIKENESS_SERVER)."
        )
        raise Unreachable(message) from None


def find_server(server: str | None, key: str | None) -> Client | None:
    """Return a client for ``server``, or for the server that runs on the data folder; None if none runs."""
    if server:
        return Client(server, key or _key_from_file(), timeout_s=TIMEOUT_S)
    from app.config import load_settings  # noqa: PLC0415 - slow to import

    settings = load_settings()
    url = data_folder.running_at(settings.data_dir)
    if url is None:
        return None
    return own_client(settings, url, key or own_admin_key(settings))


def _key_from_file() -> str | None:
    """Return the key in the file that LIKENESS_KEY_FILE names; None if it isn't set.

    Raises Unusable (``key_unusable``).
    """
    path = os.environ.get(KEY_FILE_VARIABLE)
    return read_admin_key(Path(path)) if path else None


def own_client(settings: Settings, url: str, key: str) -> Client:
    """Return a client for a server of this data folder, which trusts the server's certificate for any name."""
    transport = None
    if settings.tls_cert:
        context = ssl.create_default_context(cafile=settings.tls_cert)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        transport = httpx.HTTPTransport(verify=context)
    return Client(url, key, timeout_s=TIMEOUT_S, transport=transport)


def own_admin_key(settings: Settings) -> str:
    """Return the admin key of the data folder. Raises Unusable (``no_data_folder``, ``key_unusable``)."""
    path = settings.data_dir / ADMIN_KEY_FILE
    if not path.exists():
        raise no_data_folder(settings)
    return read_admin_key(path)


def has_data(settings: Settings) -> bool:
    """Return whether there is a database to read: its file, or for PostgreSQL the key of a server that used it."""
    from app.db.opening import sqlite_file  # noqa: PLC0415 - slow to import

    return (sqlite_file(settings.database) or settings.data_dir / ADMIN_KEY_FILE).exists()


def require_data(settings: Settings) -> None:
    """Raise Unusable (``no_data_folder``) unless there is a database to read."""
    if not has_data(settings):
        raise no_data_folder(settings)


def no_data_folder(settings: Settings) -> Unusable:
    """Return the error for a data folder without data."""
    message = (
        f"There is no data folder of Likeness at {settings.data_dir.absolute()}, and no server runs on it. Start one "
        "with `likeness serve`, name a running one with --server, or set LIKENESS_DATA_DIR."
    )
    return Unusable(message, code="no_data_folder", folder=str(settings.data_dir.absolute()))


@contextmanager
def _in_process(data: Data) -> Iterator[Client]:
    from app.config import load_settings  # noqa: PLC0415 - slow to import

    settings = load_settings()
    if data is Data.EXISTING:
        require_data(settings)
    if data is Data.CREATED and not has_data(settings):
        folder = settings.data_dir.absolute()
        output.warn(f"{folder} is a new data folder: --server or LIKENESS_DATA_DIR names the one that you have.")
    with ExitStack() as ending:
        if data is Data.UNUSED and not has_data(settings):
            settings = _temporary(settings, ending.enter_context(tempfile.TemporaryDirectory(prefix="likeness-")))
        from app import main  # noqa: PLC0415 - slow to import, and not needed with a server
        from app.server.local import InProcess  # noqa: PLC0415 - slow to import

        here, key = InProcess(main.create_app(settings)), data_folder.load_key(settings.data_dir)[0]
        yield ending.enter_context(Client(IN_PROCESS_URL, key, timeout_s=TIMEOUT_S, transport=here))


def _temporary(settings: Settings, folder: str) -> Settings:
    """Return the settings for a temporary data folder, which has the models and thresholds of the real one."""
    from app.config import load_settings  # noqa: PLC0415 - slow to import
    from app.package.folders import CALIBRATIONS, OWN_FOLDER  # noqa: PLC0415 - slow to import
    from app.server.models import FOLDER  # noqa: PLC0415 - slow to import

    for name in (FOLDER, OWN_FOLDER, CALIBRATIONS):
        kept = settings.data_dir.absolute() / name
        if kept.is_dir():
            (Path(folder) / name).symlink_to(kept)
    return load_settings(data_dir=Path(folder), database_url=None, index="faiss", keys_file=None)
