"""Packages that name a URL: their files are downloaded once, checked, and licences must be accepted."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.adding.download import download, pull
from app.errors import Unusable
from app.inference.manifest import Licence, UrlSource
from app.inference.package import Package, load_package, locate
from tests.conftest import PROJECT

CONTENT = b"a model" * 1000


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):
                for byte in CONTENT:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.02)
            return
        if self.path == "/gone":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("content-length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def at(url: str, *, content: bytes = CONTENT, max_bytes: int = 10**6, non_commercial: bool = False) -> Package:
    known = load_package(PROJECT / "models" / "sface")
    changed = {
        "source": UrlSource(url=url, max_bytes=max_bytes),
        "sha256": hashlib.sha256(content).hexdigest(),
        "licence": Licence(name="CC-BY-NC-4.0" if non_commercial else "MIT", non_commercial=non_commercial),
    }
    return Package(known.folder, known.manifest.model_copy(update=changed))


def test_a_pulled_file_is_located_afterwards_and_not_fetched_again(server: str, tmp_path: Path) -> None:
    made = at(f"{server}/good")
    with pytest.raises(Unusable, match="likeness models pull"):
        locate(made, tmp_path)
    pulled = pull(made, tmp_path)
    assert pulled.read_bytes() == CONTENT
    assert locate(made, tmp_path) == pulled == pull(at(f"{server}/gone"), tmp_path)
    pulled.write_bytes(b"damaged")
    assert pull(made, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda url: at(f"{url}/good", content=b"another file"), "package_hash_mismatch"),
        (lambda url: at(f"{url}/good", max_bytes=len(CONTENT) - 1), "package_too_large"),
        (lambda url: at(f"{url}/gone"), "package_download_failed"),
        (lambda _url: at("http://127.0.0.1:9/model"), "package_download_failed"),
    ],
)
def test_a_wrong_download_leaves_nothing(
    server: str, tmp_path: Path, made: Callable[[str], Package], code: str
) -> None:
    with pytest.raises(Unusable) as caught:
        pull(made(server), tmp_path)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_only_drips_ends_in_time_and_what_arrived_is_kept(server: str, tmp_path: Path) -> None:
    path, start = tmp_path / "model.onnx", time.monotonic()
    with pytest.raises(Unusable, match="too slow") as caught:
        download("mine", f"{server}/slow", path, 10**6, None, total_s=0.2)
    assert caught.value.code == "package_download_failed"
    assert time.monotonic() - start < 5
    assert CONTENT.startswith((tmp_path / "model.part").read_bytes())


def test_a_non_commercial_licence_must_be_accepted(server: str, tmp_path: Path) -> None:
    made = at(f"{server}/good", non_commercial=True)
    with pytest.raises(Unusable, match="CC-BY-NC") as caught:
        pull(made, tmp_path)
    assert caught.value.code == "licence_not_accepted"
    assert pull(made, tmp_path, accept_non_commercial=True).read_bytes() == CONTENT
