"""Known models, and files of packages, are fetched whole or not at all, from a server with every fault there is."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import struct
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.errors import Unusable
from app.models import download
from app.models.download import Archive, KnownModel, fetch, known_models, pull
from app.models.packages import locate
from app.package.folders import Package, load_package
from app.package.manifest import Licence, UrlSource
from tests.conftest import PROJECT
from tests.support.commands import run

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Faulty(ThreadingHTTPServer):
    """Serves CONTENT: /whole, /cut (each connection ends after a third), /stuck (no byte more), /moved, /ignores, /slow
    (byte by byte)."""

    daemon_threads = True
    ranges: list[str | None]
    content: bytes
    mended = False
    """Whether /stuck sends everything from now on."""


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
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):
                for byte in content:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.02)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.path == "/cut":
            content = content[: len(CONTENT) // 3]
        elif self.path in {"/stuck", "/ignores"} and len(self.server.ranges) < 3:
            content = content[:1000]
        elif self.path == "/stuck" and not self.server.mended:
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
        preset="sface",
        dimension=None,
        figures=None,
        source="a test",
    )


def naming(server: Faulty, path: str, *, non_commercial: bool = False) -> Package:
    """A package that names a URL of the server."""
    known = load_package(PROJECT / "models" / "sface")
    described = model(server, path, non_commercial=non_commercial)
    changed = {"source": UrlSource(url=described.url, max_bytes=10**7), "sha256": SHA256, "licence": described.licence}
    return Package(known.folder, known.manifest.model_copy(update=changed))


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


def test_an_unpublished_hash_is_shown_and_must_be_confirmed(server: Faulty, tmp_path: Path) -> None:
    known = model(server, "whole", sha256=None)
    error = refused(known, tmp_path)
    assert (error.code, error.details["found"]) == ("package_hash_unknown", SHA256)
    assert fetch(known, tmp_path, accept_non_commercial=False, sha256=SHA256).read_bytes() == CONTENT
    assert len(server.ranges) == 1, "confirming does not download it again"
    assert refused(known, tmp_path, "0" * 64).code == "package_hash_mismatch"


def test_a_non_commercial_licence_must_be_accepted_before_a_byte_is_fetched(server: Faulty, tmp_path: Path) -> None:
    known = model(server, "whole", non_commercial=True)
    package = naming(server, "whole", non_commercial=True)
    assert refused(known, tmp_path).code == "licence_not_accepted"
    with pytest.raises(Unusable, match="CC-BY-NC") as caught:
        pull(package, tmp_path)
    assert caught.value.code == "licence_not_accepted"
    assert server.ranges == []
    for got in (
        fetch(known, tmp_path, accept_non_commercial=True),
        pull(package, tmp_path, accept_non_commercial=True),
    ):
        assert got.read_bytes() == CONTENT


def test_a_packages_file_is_located_once_it_is_pulled_and_pulled_again_when_damaged(
    server: Faulty, tmp_path: Path
) -> None:
    made = naming(server, "whole")
    with pytest.raises(Unusable, match="likeness models pull"):
        locate(made, tmp_path)
    pulled = pull(made, tmp_path)
    assert pulled.read_bytes() == CONTENT
    assert locate(made, tmp_path) == pulled == pull(naming(server, "missing"), tmp_path)
    pulled.write_bytes(b"damaged")
    assert pull(made, tmp_path).read_bytes() == CONTENT


def test_a_download_that_only_drips_ends_in_time_and_what_arrived_is_kept(server: Faulty, tmp_path: Path) -> None:
    start, url = time.monotonic(), model(server, "slow").url
    with pytest.raises(Unusable, match="too slow") as caught:
        download.download("mine", url, tmp_path / "model.onnx", 10**7, None, total_s=0.2)
    assert caught.value.code == "package_download_failed"
    assert time.monotonic() - start < 5
    assert CONTENT.startswith((tmp_path / "model.part").read_bytes())


def test_too_large_missing_and_other_files_are_refused_and_leave_nothing(server: Faulty, tmp_path: Path) -> None:
    small = model(server, "whole").model_copy(update={"max_bytes": 1000})
    assert refused(small, tmp_path).code == "package_too_large"
    gone = model(server, "whole").model_copy(update={"url": "http://127.0.0.1:9/model"})
    for missing in (model(server, "missing"), gone):
        assert refused(missing, tmp_path).code == "package_download_failed"
    assert refused(model(server, "whole", sha256="0" * 64), tmp_path).code == "package_hash_mismatch"
    assert list(tmp_path.iterdir()) == []


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


def zip_of(*files: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return packed.getvalue()


def archived(server: Faulty, path: str, content: bytes, *, member: str = "pack/model.onnx") -> KnownModel:
    """A model in an archive with this content, whose own hash is right."""
    server.content = content
    archive = Archive(member=member, sha256=hashlib.sha256(content).hexdigest(), max_bytes=2 * len(CONTENT))
    return model(server, path).model_copy(update={"archive": archive})


STORED = zip_of(("det.onnx", b"a detector"), ("pack/model.onnx", CONTENT), method=zipfile.ZIP_STORED)


@pytest.mark.parametrize("path", ["whole", "moved", "cut", "ignores"])
def test_a_model_in_an_archive_arrives_whole_and_alone(server: Faulty, tmp_path: Path, path: str) -> None:
    known = archived(server, path, STORED)
    got = fetch(known, tmp_path, accept_non_commercial=False)
    assert (got.suffix, got.read_bytes()) == (".onnx", CONTENT)
    assert list(tmp_path.iterdir()) == [got]
    before = len(server.ranges)
    assert fetch(known, tmp_path, accept_non_commercial=False) == got
    assert len(server.ranges) == before


def test_an_archive_that_was_cut_is_fetched_on_by_the_next_call(server: Faulty, tmp_path: Path) -> None:
    known = archived(server, "stuck", STORED)
    assert refused(known, tmp_path).code == "package_download_failed"
    (part,) = tmp_path.iterdir()
    assert part.read_bytes() == STORED[:2000]
    server.mended = True
    assert fetch(known, tmp_path, accept_non_commercial=False).read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=2000-"


@pytest.mark.parametrize("wrong", ["archive", "model"])
def test_a_wrong_hash_of_an_archive_or_its_model_keeps_nothing(server: Faulty, tmp_path: Path, wrong: str) -> None:
    known = archived(server, "whole", STORED)
    assert known.archive is not None
    if wrong == "archive":
        known = known.model_copy(update={"archive": known.archive.model_copy(update={"sha256": "0" * 64})})
    else:
        known = known.model_copy(update={"sha256": "0" * 64})
    assert refused(known, tmp_path).code == "package_hash_mismatch"
    assert list(tmp_path.iterdir()) == []


def encrypted(content: bytes) -> bytes:
    """The archive with the flag of encryption on every member, in both places."""
    changed = bytearray(content)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = changed.find(signature)
        while at >= 0:
            changed[at + offset] |= 1
            at = changed.find(signature, at + 4)
    return bytes(changed)


def claiming(content: bytes, size: int) -> bytes:
    """The archive whose directory claims another size of its last member."""
    at = content.rfind(b"PK\x01\x02")
    return content[: at + 24] + struct.pack("<I", size) + content[at + 28 :]


BOMB = zip_of(("pack/model.onnx", bytes(64 * len(CONTENT))))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"no archive at all", "package_archive_invalid"),
        (STORED[:-40], "package_archive_invalid"),
        (zip_of(("model.onnx", CONTENT), ("../pack/model.onnx", CONTENT)), "package_archive_invalid"),
        (STORED.replace(b"pack/model.onnx", b"pack/other.onnx", 1), "package_archive_invalid"),
        (encrypted(STORED), "package_archive_invalid"),
        (zip_of(("pack/model.onnx", CONTENT), method=zipfile.ZIP_LZMA), "package_archive_invalid"),
        (BOMB, "package_too_large"),
        (claiming(BOMB, 1000), "package_archive_invalid"),
        (STORED.replace(bytes(range(256)), bytes(256), 1), "package_archive_invalid"),
    ],
    ids=[
        "no archive",
        "cut",
        "missing member",
        "other name inside",
        "encrypted",
        "lzma",
        "bomb",
        "lying bomb",
        "altered",
    ],
)
def test_a_hostile_archive_is_refused(server: Faulty, tmp_path: Path, content: bytes, code: str) -> None:
    assert refused(archived(server, "whole", content), tmp_path).code == code
    assert [path.suffix for path in tmp_path.rglob("*")] in ([], [".zip"]), "nothing came out of it"


def test_a_member_that_is_there_twice_is_refused(server: Faulty, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zip_of(("pack/model.onnx", CONTENT), ("pack/model.onnx", b"another"))
    assert "2 files" in refused(archived(server, "whole", twice), tmp_path).message


def test_no_space_for_the_model_leaves_the_archive_for_the_next_call(server: Faulty, tmp_path: Path) -> None:
    known = archived(server, "whole", zip_of(("pack/model.onnx", CONTENT)))
    with small_files(len(CONTENT) // 2):
        assert refused(known, tmp_path).code == "package_download_failed"
    (kept,) = tmp_path.iterdir()
    assert kept.suffix == ".zip"
    assert fetch(known, tmp_path, accept_non_commercial=False).read_bytes() == CONTENT
    assert len(server.ranges) == 1


def test_an_archive_that_is_too_large_is_refused(server: Faulty, tmp_path: Path) -> None:
    known = archived(server, "whole", STORED)
    assert known.archive is not None
    small = known.model_copy(update={"archive": known.archive.model_copy(update={"max_bytes": 1000})})
    assert refused(small, tmp_path).code == "package_too_large"


def test_the_catalogue_is_valid_and_pinned() -> None:
    for known in known_models().values():
        assert known.sha256 is not None or len(known.url.split("/")[-2]) == 40, "a revision or a hash fixes the file"
    listed = json.loads(download.CATALOGUE.read_bytes())
    assert [one["name"] for one in listed] == list(known_models()), "no name twice"
    for name in ("buffalo_l", "buffalo_s", "buffalo_sc", "antelopev2", "lvface-t", "edgeface-s"):
        assert known_models()[name].licence.non_commercial


@pytest.mark.long
def test_the_command_fetches_adds_and_leaves_a_package(
    server: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.content = (PROJECT / "models" / "sface-slim" / "model.onnx").read_bytes()
    found = hashlib.sha256(server.content).hexdigest()
    known = model(server, "whole", sha256=None).model_copy(update={"max_bytes": len(server.content)})
    monkeypatch.setattr(download, "known_models", lambda: {"known": known})
    words = ("models", "pull", "known")
    models = tmp_path / "packages"
    models.mkdir()
    refusal = run(tmp_path / "data", *words, models_dir=models)
    assert (refusal.returncode, found in refusal.stderr) == (4, True)
    done = run(tmp_path / "data", *words, "--sha256", found, "--json", models_dir=models)
    assert done.returncode == 0, done.stderr
    assert done.rows[0]["model"] == "known@1"
    manifest = load_package(tmp_path / "data" / "packages" / "known").manifest
    assert (manifest.sha256, manifest.licence.name) == (found, "MIT")
    again = run(tmp_path / "data", *words, models_dir=models)
    assert again.returncode == 0, again.stderr
    assert len(server.ranges) == 1


def test_files_come_from_a_folder_where_one_is_given(tmp_path: Path) -> None:
    content = b"the model"
    given, cache = tmp_path / "given", tmp_path / "cache"
    given.mkdir()

    def take(sha256: str | None, most: int = 100) -> Path:
        path = cache / "model.onnx"
        url = "https://nowhere.invalid/a/model%20v1.onnx?download=1"
        download.download("mine", url, path, most, sha256, folder=given)
        return path

    right = hashlib.sha256(content).hexdigest()
    with pytest.raises(Unusable, match=f"put the file from https://nowhere.invalid/.*{right}") as caught:
        take(right)
    assert caught.value.code == "package_file_missing"
    (given / "model v1.onnx").write_bytes(content)
    for sha256, most, code in (("0" * 64, 100, "package_hash_mismatch"), (right, 3, "package_too_large")):
        with pytest.raises(Unusable) as caught:
            take(sha256, most)
        assert caught.value.code == code
        assert not (cache / "model.onnx").exists()
    assert take(right).read_bytes() == (given / "model v1.onnx").read_bytes() == content
