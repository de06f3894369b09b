"""The tar of a package may be anybody's: what is taken of it is one manifest and the file that this names."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from app.errors import LikenessError
from app.models.commands.archives import is_archive, read_package
from tests.conftest import PROJECT
from tests.support.tarred import tar_of

SLIM = PROJECT / "models" / "sface-slim"
MANIFEST: dict[str, Any] = json.loads((SLIM / "manifest.json").read_bytes())
MODEL = b"a model"


def package(**changed: Any) -> dict[str, bytes]:
    return {"mine/manifest.json": json.dumps(MANIFEST | changed).encode(), "mine/model.onnx": MODEL}


def read(folder: Path, content: bytes) -> Any:
    file = folder / "given"
    file.write_bytes(content)
    return read_package(file)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("folder", ["mine/", "./mine/", "./", ""])
def test_a_package_is_read_however_its_folder_was_packed(tmp_path: Path, folder: str, mode: str) -> None:
    files = {folder + name.removeprefix("mine/"): content for name, content in package().items()}
    manifest, content = read(tmp_path, tar_of({folder + "README.md": b"words", **files}, mode))
    assert (manifest.id, content) == (f"{MANIFEST['name']}@{MANIFEST['version']}", MODEL)
    assert is_archive(tmp_path / "given")


def test_a_file_of_another_name_is_kept_as_the_packages_own(tmp_path: Path) -> None:
    source = {"kind": "file", "path": "weights/best.onnx"}
    manifest, content = read(
        tmp_path,
        tar_of({"m/weights/best.onnx": MODEL, "m/manifest.json": package(source=source)["mine/manifest.json"]}),
    )
    assert (manifest.source.path, content) == ("model.onnx", MODEL)


def linked(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> bytes:
    file = BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for entry, content in package().items():
            info = tarfile.TarInfo(entry)
            if entry.endswith(name):
                info.type, info.linkname = kind, target
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
    return file.getvalue()


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "no archive": (lambda: b"\x1f\x8b" + bytes(1000), "invalid_archive"),
    "cut": (lambda: tar_of(package(), "w:gz")[:-5000], "invalid_archive"),
    "without a manifest": (lambda: tar_of({"mine/model.onnx": MODEL}), "invalid_archive"),
    "without its file": (lambda: tar_of({"mine/manifest.json": json.dumps(MANIFEST).encode()}), "invalid_archive"),
    "a path that leads out": (lambda: tar_of({"../mine/manifest.json": b"{}", **package()}), "invalid_archive"),
    "an absolute path": (lambda: tar_of({"/etc/manifest.json": b"{}", **package()}), "invalid_archive"),
    "the file is a link": (lambda: linked("model.onnx", "/etc/passwd"), "invalid_archive"),
    "the manifest is a hard link": (
        lambda: linked("manifest.json", "mine/model.onnx", tarfile.LNKTYPE),
        "invalid_archive",
    ),
    "the manifest is a device": (lambda: linked("manifest.json", "", tarfile.CHRTYPE), "invalid_archive"),
    "a huge manifest": (lambda: tar_of({"mine/manifest.json": bytes(5 * 1024**2)}, "w:gz"), "package_too_large"),
    "a manifest of nothing": (lambda: tar_of({"mine/manifest.json": b"[]"}), "package_manifest_invalid"),
    "deep JSON": (lambda: tar_of({"mine/manifest.json": b"[" * 200_000}), "package_manifest_invalid"),
    "a name that is a path": (lambda: tar_of(package(name="../../mine")), "package_manifest_invalid"),
    "a file that is a path": (
        lambda: tar_of(package(source={"kind": "file", "path": "../../keys"})),
        "package_manifest_invalid",
    ),
    "a file elsewhere": (
        lambda: tar_of(package(source={"kind": "url", "url": "http://127.0.0.1:9/model.onnx"})),
        "package_file_missing",
    ),
    "a file of a distribution": (
        lambda: tar_of(package(source={"kind": "carrier", "distribution": "pip", "module": "pip", "path": "x.py"})),
        "package_file_missing",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused(tmp_path: Path, name: str) -> None:
    make, code = HOSTILE[name]
    with pytest.raises(LikenessError) as refused:
        read(tmp_path, make())
    assert refused.value.code == code
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_an_onnx_file_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert not is_archive(SLIM / "model.onnx")
    assert not is_archive(tmp_path / "empty")
