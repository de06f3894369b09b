"""Open everything that keeps state: the database with its keys, the galleries in it, and the folders of files."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass

from app.access.audit import AuditLog, AuditStore
from app.config import PREFIX, Settings
from app.db import usage
from app.db.encryption import VAULT_FILE, Sealer
from app.db.engine import Database
from app.db.sealed_columns import Blobs
from app.db.secrets import Rings, SecretStore, load_rings
from app.errors import InvalidSetting, SealedUnreadable, Unusable
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.jobs.files import JobFiles
from app.jobs.store import JobStore
from app.machine import cores
from app.search.follower import LocalBackend
from app.search.index import FindGpu
from app.search.registry import OpenIndex
from app.search.snapshots import Snapshots

SNAPSHOT_FOLDER = "snapshots"
JOBS_FOLDER = "jobs"


@dataclass(frozen=True, slots=True)
class Storage:
    """The database, and the objects that need only it. ``sealer`` seals with the server's secrets."""

    database: Database
    galleries: Galleries
    sealer: Sealer
    secrets: SecretStore
    audit: AuditLog
    jobs: JobStore
    files: JobFiles


def open_storage(
    settings: Settings, stack: ExitStack, open_index: OpenIndex | None = None, find_gpu: FindGpu | None = None
) -> Storage:
    """Open the database, migrate it if needed, and make the stores. `open_index` opens indexes other than FAISS's,
    `find_gpu` a GPU for the rows of those in memory.

    Raises Unusable if the database, the keys, or Milvus can't be used.
    """
    rings = load_rings(
        settings.data_dir,
        settings.database,
        settings.encryption_key_file,
        settings.encryption_keys,
        seals=settings.encryption == "seal",
    )
    sql = Store(
        settings.database, max_metadata_bytes=settings.max_metadata_bytes, blobs=Blobs(rings.faces, seals=rings.seals)
    )
    galleries = _open_galleries(settings, sql, rings, open_index, find_gpu)
    stack.callback(galleries.close)
    usage.note_tables(settings.data_dir, settings.database)
    secrets = SecretStore(sql.database, rings.secrets)
    _check_secrets(settings, secrets)
    audit = AuditLog(AuditStore(sql.database), days=settings.audit_days)
    stack.callback(audit.close)
    return Storage(
        database=sql.database,
        galleries=galleries,
        sealer=rings.secrets,
        secrets=secrets,
        audit=audit,
        jobs=JobStore(sql.database, sql.blobs),
        files=JobFiles(settings.data_dir / JOBS_FOLDER),
    )


def _open_galleries(
    settings: Settings, store: Store, rings: Rings, open_index: OpenIndex | None, find_gpu: FindGpu | None
) -> Galleries:
    folder = settings.data_dir / SNAPSHOT_FOLDER
    if settings.index != "faiss" or not settings.snapshot_seconds:
        shutil.rmtree(folder, ignore_errors=True)  # so that no copies of templates stay
    if settings.index != "faiss":
        token = settings.index_token.get_secret_value() if settings.index_token else None
        if open_index is None:
            store.close()
            raise InvalidSetting(f"{PREFIX}INDEX: this server has no index but faiss")
        try:
            return Galleries(store, open_index(settings.index, token, store.change_reader, store.database))
        except (ValueError, Unusable) as error:
            store.close()
            raise error if isinstance(error, Unusable) else InvalidSetting(f"{PREFIX}INDEX: {error}") from None
    sealer = rings.faces if rings.seals else None
    snapshots = Snapshots(folder, sealer=sealer) if settings.snapshot_seconds else None
    gpu = find_gpu(settings.gpu_search) if find_gpu and settings.device in {"cuda", "tensorrt", "auto"} else None
    return Galleries(store, LocalBackend(store.change_reader, snapshots, cores(), gpu))


def _check_secrets(settings: Settings, secrets: SecretStore) -> None:
    """Raise Unusable (``sealed_unreadable``) if the keys here don't open the server's secrets."""
    path = settings.data_dir / VAULT_FILE
    try:
        secrets.check()
    except SealedUnreadable as error:
        message = f"{path} is not what the database's secrets were sealed with: put the one there that is. {error}"
        raise SealedUnreadable(message) from None
