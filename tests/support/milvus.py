"""Run a Milvus for the tests: milvus-lite, in this process or as a server of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.features.milvus.client import Milvus, parse_address
from app.features.milvus.indexes import MilvusBackend
from app.gallery.service import Galleries
from app.gallery.store import Store

START_S = 60.0
SERVE = "import sys; from milvus_lite.cmdline import main; sys.exit(main())"


def need_milvus() -> None:
    for name in ("pymilvus", "milvus_lite"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}, which the dev extra brings")


def lite(folder: Path) -> Milvus:
    """Return a milvus-lite in this process; the same for the same folder."""
    need_milvus()
    return Milvus(parse_address(f"milvus://{folder / 'vectors.db'}"))


def remote(url: str, milvus: Milvus) -> Galleries:
    """Return galleries in Milvus whose background work a test does by hand (`follow`, `save`)."""
    store = Store(url)
    return Galleries(store, MilvusBackend(store.change_reader, store.database, milvus))


@contextmanager
def milvus_server(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a milvus-lite in a process of its own on 127.0.0.1. Several processes can use it, and it can be killed."""
    need_milvus()
    command = [sys.executable, "-c", SERVE, "server", "--data-dir", str(folder), "--port", str(port)]
    with (folder.parent / "milvus.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait(port)
        yield process
    finally:
        process.kill()
        process.wait()


def _wait(port: int) -> None:
    """Wait until it answers, over a separate connection: pymilvus would share one with the code under test."""
    import grpc  # noqa: PLC0415 - comes with pymilvus, which may be missing

    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        grpc.channel_ready_future(channel).result(START_S)
