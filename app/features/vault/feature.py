"""Encrypt the keys of jobs' files when a server starts; `likeness vault` encrypts everything else."""

from app.api.components import Components
from app.api.feature import Feature, Part
from app.features.vault.reseal import seal_job_keys


def _start(core: Components) -> Part:
    store = core.store
    if store.blobs.key_id is not None:
        seal_job_keys(store.database, store.blobs)
    return Part()


FEATURE = Feature(start=_start)
