"""Uploads for jobs: written to the job's file as they arrive, and gone if the job can't be created."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from starlette.requests import Request

from app.api.body import BodyLimits, File, read_upload
from app.concurrency.admission import Admission
from app.features.sealed_files import SealedWriter
from app.jobs.records import Job


async def receive_upload(
    request: Request,
    wanted: File,
    file: SealedWriter,
    begin: Callable[[], Job],
    *,
    admission: Admission,
    limits: BodyLimits,
) -> Job:
    """Write the request's upload to ``file``, and return the job that ``begin`` then creates in a thread.

    Raises InvalidInput with the codes of `read_upload`, what ``file.write`` and ``begin`` raise; the file is then gone.
    """
    try:
        admission.receive()
        async with aclosing(read_upload(request, wanted, limits.seconds)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(file.write, piece)
        return await asyncio.to_thread(begin)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(file.abort))
        raise
