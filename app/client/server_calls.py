"""`app.client.calls` of keys, the audit log, jobs, receipts and the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from app.api import endpoints, schemas
from app.client.call import Call, call, given


def keys(*, limit: int | None = None, cursor: str | None = None) -> Call[schemas.KeyPage]:
    """Return one page of the API keys, without their secrets."""
    return call(endpoints.LIST_KEYS, params=given(limit=limit, cursor=cursor))


def create_key(
    scopes: Sequence[str],
    *,
    key_id: str | None = None,
    name: str | None = None,
    galleries: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    rate: str | None = None,
    aws: bool = False,
) -> Call[schemas.NewKey]:
    """Create an API key; only this answer has its ``secret``.

    ``expires_at`` has a time zone; with ``aws`` the answer has credentials for AWS clients, too.
    """
    body = given(
        id=key_id, name=name, scopes=scopes, galleries=galleries, expires_at=expires_at, rate=rate, aws=aws or None
    )
    return call(endpoints.CREATE_KEY, json=body)


def own_key() -> Call[schemas.OwnKey]:
    """Return what the key in use allows."""
    return call(endpoints.SHOW_OWN_KEY)


def create_sign_in_code() -> Call[schemas.SignInCode]:
    """Make a code that signs a browser in with the key in use: once, within a minute."""
    return call(endpoints.CREATE_SIGN_IN_CODE)


def key(key_id: str) -> Call[schemas.Key]:
    """Return one API key, without its secret."""
    return call(endpoints.SHOW_KEY, key=key_id)


def rotate_key(key_id: str, *, grace_seconds: int = 0) -> Call[schemas.NewKey]:
    """Give an API key a new secret; the previous one works for ``grace_seconds`` more."""
    return call(endpoints.ROTATE_KEY, key=key_id, json={"grace_seconds": grace_seconds})


def revoke_key(key_id: str) -> Call[None]:
    """Revoke an API key for good."""
    return call(endpoints.REVOKE_KEY, key=key_id)


def audit(
    *,
    key: str | None = None,
    operation: str | None = None,
    gallery: str | None = None,
    subject: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    order: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[schemas.AuditPage]:
    """Return one page of the audit log. Times have a time zone; ``order`` is ``newest`` or ``oldest`` first."""
    params = given(
        key=key,
        operation=operation,
        gallery=gallery,
        subject=subject,
        since=since,
        until=until,
        order=order,
        limit=limit,
        cursor=cursor,
    )
    return call(endpoints.READ_AUDIT, params=params)


def job_result(job_id: str) -> Call[bytes]:
    """Return the file that a job made: the archive of an export."""
    return call(endpoints.FETCH_RESULT, job=job_id)


def jobs(
    *, gallery: str | None = None, state: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[schemas.JobPage]:
    """Return one page of the jobs, newest first."""
    return call(endpoints.LIST_JOBS, params=given(gallery=gallery, state=state, limit=limit, cursor=cursor))


def job(job_id: str) -> Call[schemas.Job]:
    """Return one job: its progress, and how it ended."""
    return call(endpoints.SHOW_JOB, job=job_id)


def cancel_job(job_id: str) -> Call[schemas.Job]:
    """Cancel a job. What it has done so far stays."""
    return call(endpoints.CANCEL_JOB, job=job_id)


def job_report(job_id: str, *, csv: bool = False) -> Call[bytes]:
    """Return what the job refused: lines of JSON, or CSV."""
    return call(endpoints.SHOW_REPORT, job=job_id, params={"format": "csv" if csv else "jsonl"})


def models() -> Call[schemas.ModelList]:
    """Return the model packages of the server."""
    return call(endpoints.LIST_MODELS)


def receipts(*, limit: int | None = None, cursor: str | None = None) -> Call[schemas.ReceiptPage]:
    """Return one page of the receipts of erasures."""
    return call(endpoints.LIST_RECEIPTS, params=given(limit=limit, cursor=cursor))


def receipt(receipt_id: str) -> Call[schemas.Receipt]:
    """Return one receipt."""
    return call(endpoints.SHOW_RECEIPT, receipt=receipt_id)


def server_key() -> Call[schemas.ServerKey]:
    """Return the public half of the key that the server signs with."""
    return call(endpoints.SHOW_SERVER_KEY)


def version() -> Call[schemas.Version]:
    """Return the server's version."""
    return call(endpoints.VERSION)


def ready() -> Call[schemas.Health]:
    """Check that the server is ready; raises ``ApiError`` (503) while it isn't."""
    return call(endpoints.READY)
