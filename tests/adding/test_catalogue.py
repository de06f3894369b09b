"""Known models are fetched whole or not at all, from a server with every fault that a network has."""

from __future__ import annotations

import hashlib
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.adding import catalogue
from app.adding.catalogue import KnownModel, fetch, known_models
from app.errors import Unusable
from app.inference.manifest import Licence
from app.inference.package import load_package
from tests.conftest import PROJECT
from tests.support.commands import run

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Faulty(ThreadingHTTPServer):
    """Serves CONTENT: /whole, /cut (each connection ends after a third), /stuck (no byte more), /moved, /ignores."""

    daemon_threads = True
    ranges: list[str | None]
    content: bytes


class Handler(BaseHTTPRequestHandler):
    server: Faulty

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/whole")
            self.end_headers()
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.path != "/ignores" else 0
        content = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.path == "/cut":
            content = content[: len(CONTENT) // 3]
        elif self.path in {"/stuck", "/ignores"} and len(self.server.ranges) < 3:
            content = content[:1000]
        elif self.path == "/stuck":
            content = b""
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Faulty]:
    server = Faulty(("127.0.0.1", 0), Handler)
    server.ranges, server.content = [], CONTENT
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def model(server: Faulty, path: str, *, sha256: str | None = SHA256, non_commercial: bool = False) -> KnownModel:
    return KnownModel(
        name="known",
        title="A known model",
        url=f"http://127.0.0.1:{server.server_port}/{path}",
        sha256=sha256,
        max_bytes=2 * len(CONTENT),
        licence=Licence(name="CC-BY-NC-4.0" if non_commercial else "MIT", non_commercial=non_commercial),
        training_data=None,
        colour=None,
        normalisation=None,
        dimension=None,
        figures=None,
        source="a test",
    )


def refused(known: KnownModel, folder: Path, sha256: str | None = None) -> Unusable:
    with pytest.raises(Unusable) as caught:
        fetch(known, folder, accept_non_commercial=False, sha256=sha256)
    return caught.value


@pytest.mark.parametrize("path", ["whole", "moved", "cut", "ignores"])
def test_a_file_arrives_whole_however_often_the_connection_is_cut(server: Faulty, tmp_path: Path, path: str) -> None:
    got = fetch(model(server, path), tmp_path, accept_non_commercial=False)
    assert got.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [got]
    if path == "cut":
        assert server.ranges == [None, f"bytes={len(CONTENT) // 3}-", f"bytes={2 * (len(CONTENT) // 3)}-",
                                 f"bytes={3 * (len(CONTENT) // 3)}-"][: len(server.ranges)]  # fmt: skip
    before = len(server.ranges)
    assert fetch(model(server, path), tmp_path, accept_non_commercial=False) == got
    assert len(server.ranges) == before, "a file that is there is not fetched again"


def test_what_arrived_is_kept_for_the_next_call(server: Faulty, tmp_path: Path) -> None:
    stuck = model(server, "stuck")
    assert refused(stuck, tmp_path).code == "package_download_failed"
    (part,) = tmp_path.iterdir()
    assert part.suffix == ".part"
    assert part.read_bytes() == CONTENT[:2000]


def test_a_wrong_hash_keeps_nothing(server: Faulty, tmp_path: Path) -> None:
    error = refused(model(server, "whole", sha256="0" * 64), tmp_path)
    assert (error.code, error.details["found"]) == ("package_hash_mismatch", SHA256)
    assert list(tmp_path.iterdir()) == []


def test_an_unpublished_hash_is_shown_and_must_be_confirmed(server: Faulty, tmp_path: Path) -> None:
    known = model(server, "whole", sha256=None)
    error = refused(known, tmp_path)
    assert (error.code, error.details["found"]) == ("package_hash_unknown", SHA256)
    assert fetch(known, tmp_path, accept_non_commercial=False, sha256=SHA256).read_bytes() == CONTENT
    assert len(server.ranges) == 1, "confirming does not download it again"
    assert refused(known, tmp_path, "0" * 64).code == "package_hash_mismatch"


def test_a_non_commercial_licence_must_be_accepted_before_a_byte_is_fetched(server: Faulty, tmp_path: Path) -> None:
    known = model(server, "whole", non_commercial=True)
    assert refused(known, tmp_path).code == "licence_not_accepted"
    assert server.ranges == []
    assert fetch(known, tmp_path, accept_non_commercial=True).read_bytes() == CONTENT


def test_too_large_and_missing_files_are_refused(server: Faulty, tmp_path: Path) -> None:
    small = model(server, "whole").model_copy(update={"max_bytes": 1000})
    assert refused(small, tmp_path).code == "package_too_large"
    assert refused(model(server, "missing"), tmp_path).code == "package_download_failed"


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """Let no file of this process grow past ``limit`` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_error_and_the_rest_is_fetched_later(server: Faulty, tmp_path: Path) -> None:
    known = model(server, "whole")
    with small_files(len(CONTENT) // 2):
        assert refused(known, tmp_path).code == "package_download_failed"
    assert fetch(known, tmp_path, accept_non_commercial=False).read_bytes() == CONTENT
    assert server.ranges[1] == f"bytes={len(CONTENT) // 2}-"


def test_the_catalogue_is_valid_and_pinned() -> None:
    for known in known_models().values():
        assert known.sha256 is not None or len(known.url.split("/")[-2]) == 40, "a revision or a hash fixes the file"


def test_the_command_fetches_adds_and_leaves_a_package(
    server: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.content = (PROJECT / "models" / "mobilefacenet-64" / "model.onnx").read_bytes()
    found = hashlib.sha256(server.content).hexdigest()
    known = model(server, "whole", sha256=None).model_copy(update={"max_bytes": len(server.content)})
    monkeypatch.setattr(catalogue, "known_models", lambda: {"known": known})
    words = ("models", "pull", "known")
    models = tmp_path / "packages"
    models.mkdir()
    refusal = run(tmp_path / "data", *words, models_dir=models)
    assert (refusal.returncode, found in refusal.stderr) == (4, True)
    done = run(tmp_path / "data", *words, "--sha256", found, "--json", models_dir=models)
    assert done.returncode == 0, done.stderr
    assert done.rows[0]["model"] == "known@1"
    manifest = load_package(models / "known").manifest
    assert (manifest.sha256, manifest.licence.name) == (found, "MIT")
    again = run(tmp_path / "data", *words, models_dir=models)
    assert again.returncode == 0, again.stderr
    assert len(server.ranges) == 1
