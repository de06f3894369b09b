"""Model packages are added over REST by a job, whose child process opens what nobody has vouched for."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.machine import limit_memory
from app.models.packages import new_folder
from tests.conftest import PROJECT
from tests.support.live import family
from tests.support.service import COLLINS, enrolled, error_of, running
from tests.support.tarred import tar_of
from tests.support.waiting import job_ended, until

SLIM = PROJECT / "models" / "sface-slim"
MODEL = (SLIM / "model.onnx").read_bytes()
TAR = {"content-type": "application/x-tar"}
ONNX = {"content-type": "application/octet-stream"}
MANIFEST: dict[str, Any] = json.loads((SLIM / "manifest.json").read_bytes()) | {"name": "mine"}
FREE = {"name": "Apache-2.0", "non_commercial": False}
PASSED_MIB = 512


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "data"


@pytest.fixture(scope="module")
def api(data: Path) -> Iterator[httpx.Client]:
    """A client of a service of its own: its data folder gets packages."""
    with running(data) as client:
        yield client


def package(**changed: Any) -> dict[str, bytes]:
    return {"mine/manifest.json": json.dumps(MANIFEST | changed).encode(), "mine/model.onnx": MODEL}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def added(api: httpx.Client, content: bytes, headers: dict[str, str] | None = None, **params: Any) -> dict[str, Any]:
    """The job that adds this file, once it is over."""
    answer = api.post("/v1/models", content=content, headers=headers or TAR, params=params)
    assert answer.status_code == 202, answer.text
    return job_ended(api, answer.json()["id"])


def installed(api: httpx.Client) -> set[str]:
    return {model["id"] for model in api.get("/v1/models").raise_for_status().json()["models"]}


def left_behind(data: Path) -> list[str]:
    """What lies in the data folder of packages that were not added."""
    packages = data / "packages"
    found = [path.name for path in packages.iterdir() if path.name.startswith(".")] if packages.is_dir() else []
    return found + [path.name for path in data.glob(".model-*")]


@pytest.mark.long
def test_a_refusal_names_the_file_and_no_folder_of_the_server(api: httpx.Client, data: Path) -> None:
    jobs = (
        added(api, bytes(2000), ONNX, name="zeros", licence="MIT", preset="sface"),
        added(api, tar_of(package(name="../x"))),
    )
    for job, named in zip(jobs, ("upload", "manifest.json"), strict=True):
        assert job["state"] == "failed"
        assert job["error"]["message"].startswith(named)
        assert str(data) not in job["error"]["message"]
    assert left_behind(data) == []


@pytest.mark.long
def test_the_archive_of_a_package_becomes_one_that_a_gallery_uses(api: httpx.Client, data: Path) -> None:
    job = added(api, tar_of(package(version="7", licence=FREE)))
    assert (job["state"], job["kind"], job["counts"]) == ("done", "add_model", {"added": 1}), job
    assert "mine@7" in installed(api)
    assert left_behind(data) == []
    api.post("/v1/galleries", json={"id": "new", "embedder": "mine@7"}).raise_for_status()
    enrolled(api, "/v1/galleries/new", "eileen", COLLINS)
    found = api.post("/v1/galleries/new/identify", files={"image": COLLINS}).raise_for_status().json()
    assert found["faces"][0]["candidates"][0]["subject"] == "eileen"
    again = added(api, tar_of(package(version="8", licence=FREE)))
    assert again["error"]["code"] == "package_exists"


@pytest.mark.long
def test_an_onnx_file_becomes_a_package_by_what_is_said_of_it(api: httpx.Client) -> None:
    said = {"name": "plain", "preset": "sface", "licence": "MIT", "non_commercial": True}
    assert added(api, MODEL, ONNX, **said)["state"] == "done"
    (found,) = (one for one in api.get("/v1/models").json()["models"] if one["name"] == "plain")
    assert found["licence"] == {"name": "MIT", "non_commercial": True, "url": None}
    assert found["calibrations"] == []


@pytest.mark.long
@pytest.mark.parametrize("said", [{}, {"name": "x", "licence": "MIT"}], ids=["nothing", "no preset"])
def test_an_onnx_file_of_which_too_little_is_said_is_refused(api: httpx.Client, said: dict[str, str]) -> None:
    job = added(api, MODEL, ONNX, **said)
    assert job["state"] == "failed"
    assert "x@1" not in installed(api)


OTHER = {"name": "other", "licence": FREE}
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "no archive": (lambda: b"\x1f\x8b" + bytes(1000), "invalid_archive"),
    "a path that leads out": (lambda: tar_of({"../mine/manifest.json": b"{}", **package()}), "invalid_archive"),
    "another hash": (lambda: tar_of(package(**OTHER, sha256="0" * 64)), "package_hash_mismatch"),
    "another network's numbers": (lambda: tar_of(package(**OTHER, dimension=64)), ""),
    "not ONNX": (lambda: tar_of(package(**OTHER, sha256=digest(b"x" * 999)) | {"mine/model.onnx": b"x" * 999}), ""),
}
"""Those that the archive itself gives away are in tests/models/test_archives.py."""


@pytest.mark.parametrize(
    "name", [name if name == "not ONNX" else pytest.param(name, marks=pytest.mark.long) for name in HOSTILE]
)
def test_a_hostile_archive_fails_in_its_job_and_leaves_nothing(api: httpx.Client, data: Path, name: str) -> None:
    make, code = HOSTILE[name]
    before = installed(api)
    job = added(api, make())
    assert job["state"] == "failed", job
    assert job["error"]["code"] not in {"internal_error", "job_crashed"}, job
    assert not code or job["error"]["code"] == code, job
    assert installed(api) == before
    assert left_behind(data) == []
    assert api.get("/readyz").status_code == 200


def test_what_is_no_upload_is_no_job(api: httpx.Client) -> None:
    error_of(api.post("/v1/models", content=b"", headers=TAR), 422, "empty_upload")
    error_of(
        api.post("/v1/models", content=b"x", headers={"content-type": "text/plain"}), 415, "unsupported_media_type"
    )
    error_of(api.post("/v1/models", content=b"x", headers=ONNX, params={"name": "../x"}), 422, "invalid_request")


@pytest.mark.long
def test_one_upload_arrives_at_a_time(api: httpx.Client) -> None:
    came, over = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        yield MODEL[:1000]
        came.set()
        over.wait(60)

    job: list[httpx.Response] = []
    sending = threading.Thread(target=lambda: job.append(api.post("/v1/models", content=slow(), headers=TAR)))
    sending.start()
    assert came.wait(60)
    try:
        error_of(api.post("/v1/models", content=MODEL, headers=TAR), 429, "overloaded")
    finally:
        over.set()
        sending.join()
    assert job_ended(api, job[0].json()["id"])["state"] == "failed"


def test_only_an_unrestricted_admin_adds_models(api: httpx.Client) -> None:
    api.post("/v1/galleries", json={"id": "own"}).raise_for_status()
    made = api.post("/v1/keys", json={"id": "boss", "scopes": ["admin"], "galleries": ["own"]}).raise_for_status()
    headers = {"x-api-key": made.json()["secret"]}
    error_of(api.get("/v1/models/pullable", headers=headers), 403, "gallery_restricted")
    error_of(api.post("/v1/models/pull", json={"name": "best"}, headers=headers), 403, "gallery_restricted")
    error_of(api.post("/v1/models", content=b"x", headers=headers | TAR), 403, "gallery_restricted")


def test_the_models_that_can_be_pulled_are_listed(api: httpx.Client) -> None:
    models = {model["name"]: model for model in api.get("/v1/models/pullable").raise_for_status().json()["models"]}
    assert models["best"]["accuracy"].startswith("FNMR")
    assert models["best"]["installed"] is False
    assert all(file["url"].startswith("https://") for model in models.values() for file in model["files"])
    assert any(model["licence"]["non_commercial"] for model in models.values())


def test_a_name_that_there_is_not_is_refused_at_once_with_those_that_there_are(api: httpx.Client) -> None:
    jobs = api.get("/v1/jobs").json()["jobs"]
    refused = api.post("/v1/models/pull", json={"name": "bset"})
    details = error_of(refused, 422, "package_unknown")
    assert "Did you mean best?" in refused.json()["error"]["message"]
    models = api.get("/v1/models/pullable").json()["models"]
    assert details["known"] == sorted(model["name"] for model in models)
    assert api.get("/v1/jobs").json()["jobs"] == jobs


@pytest.mark.long
def test_a_licence_that_was_not_accepted_is_said_in_the_job(api: httpx.Client) -> None:
    models = api.get("/v1/models/pullable").json()["models"]
    asked = {"name": next(model["name"] for model in models if model["licence"]["non_commercial"])}
    job = job_ended(api, api.post("/v1/models/pull", json=asked).raise_for_status().json()["id"])
    assert (job["state"], job["error"]["code"]) == ("failed", "licence_not_accepted")


class Files(BaseHTTPRequestHandler):
    """Serves the model at `/model.onnx`; at `/never.onnx` a beginning, and then nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(MODEL)))
        self.end_headers()
        if self.path != "/never.onnx":
            self.wfile.write(MODEL)
            return
        self.wfile.write(MODEL[:1000])
        self.wfile.flush()
        self.server.asked.set()  # type: ignore[attr-defined]  # of `files`
        self.server.over.wait(120)  # type: ignore[attr-defined]  # of `files`

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def files() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    server.asked, server.over = threading.Event(), threading.Event()  # type: ignore[attr-defined]  # for `Files`
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.over.set()  # type: ignore[attr-defined]  # for `Files`
    server.shutdown()
    server.server_close()


def described(data: Path, name: str, url: str) -> None:
    """A package of the data folder that names its file by an address."""
    folder = data / "packages" / name
    folder.mkdir(parents=True)
    manifest = MANIFEST | {"name": name, "licence": FREE, "source": {"kind": "url", "url": url}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def pull(api: httpx.Client, name: str) -> str:
    job: str = api.post("/v1/models/pull", json={"name": name}).raise_for_status().json()["id"]
    return job


@pytest.mark.long
def test_a_model_is_pulled_and_without_a_network_the_job_says_what_to_do(
    api: httpx.Client, data: Path, files: ThreadingHTTPServer
) -> None:
    described(data, "there", f"http://127.0.0.1:{files.server_port}/model.onnx")
    described(data, "away", "http://127.0.0.1:9/model.onnx")
    assert job_ended(api, pull(api, "there"))["state"] == "done"
    api.post("/v1/galleries", json={"id": "pulled", "embedder": "there"}).raise_for_status()
    enrolled(api, "/v1/galleries/pulled", "eileen", COLLINS)
    failed = job_ended(api, pull(api, "away"))
    assert failed["error"]["code"] == "package_download_failed"
    assert "--from FOLDER" in failed["error"]["message"]
    assert "model.onnx (SHA-256" in failed["error"]["message"]


@pytest.mark.long
def test_a_pull_that_makes_no_end_is_cancelled_with_its_process(
    api: httpx.Client, data: Path, files: ThreadingHTTPServer
) -> None:
    described(data, "never", f"http://127.0.0.1:{files.server_port}/never.onnx")
    job = pull(api, "never")
    assert files.asked.wait(120)  # type: ignore[attr-defined]  # of `files`
    assert [line for line in started() if "models pull never" in line]
    api.post(f"/v1/jobs/{job}/cancel").raise_for_status()
    assert job_ended(api, job)["state"] == "cancelled"
    until(lambda: not [line for line in started() if "models pull never" in line])


def started() -> list[str]:
    """The command lines of the processes that this one started, and theirs."""
    found = []
    for process in family(os.getpid()):
        with suppress(OSError):
            found.append(Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.long
def test_a_child_is_held_by_its_limit_of_memory() -> None:
    program = f"import sys; sys.stdin.read(1); bytearray({PASSED_MIB} * 2**20)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        limit_memory(PASSED_MIB * 2**19, child.pid)
        limit_memory(PASSED_MIB * 2**22, child.pid)  # which raises nothing
        _, complaint = child.communicate("x")
    assert "MemoryError" in complaint
    limit_memory(2**20, child.pid)  # a child that has ended


@pytest.mark.long
def test_a_model_that_was_added_is_removed_with_its_files_and_may_be_added_anew(api: httpx.Client, data: Path) -> None:
    """Also as another model under the same id: what was open of the first one is closed."""
    named = {"name": "going", "version": "1", "licence": FREE}
    assert added(api, tar_of(package(**named)))["state"] == "done"
    embedded = api.post("/v1/embed", files={"image": COLLINS}, params={"model": "going@1"}).raise_for_status()
    (found,) = (model for model in api.get("/v1/models").json()["models"] if model["id"] == "going@1")
    assert (found["added"], found["loaded"]) == (True, True)
    assert api.delete("/v1/models/going").status_code == 204
    assert "going@1" not in installed(api)
    assert left_behind(data) == []
    assert not list(data.glob("models/going@1-*"))
    error_of(api.post("/v1/embed", files={"image": COLLINS}, params={"model": "going@1"}), 422, "package_unknown")
    error_of(api.delete("/v1/models/going@1"), 404, "package_not_found")
    said = {"name": "going", "preset": "opencv", "licence": "MIT"}
    assert added(api, MODEL, ONNX, **said)["state"] == "done"
    other = api.post("/v1/embed", files={"image": COLLINS}, params={"model": "going@1"}).raise_for_status()
    assert other.json()["faces"][0]["embedding"] != embedded.json()["faces"][0]["embedding"]
    assert api.delete("/v1/models/going").status_code == 204


@pytest.mark.long
def test_a_model_that_is_needed_is_not_removed(api: httpx.Client, data: Path) -> None:
    """By a gallery, by one that moves to it or can go back, by the server, or since it was not added here."""
    assert added(api, tar_of(package(name="kept", version="1", licence=FREE)))["state"] == "done"
    shipped = api.get("/v1/models").json()["defaults"]["embedder"]
    error_of(api.delete(f"/v1/models/{shipped}"), 409, "package_shipped")
    api.post("/v1/galleries", json={"id": "user", "embedder": "kept@1", "store": "crop"}).raise_for_status()
    found = error_of(api.delete("/v1/models/kept"), 409, "package_in_use")
    assert (found["reason"], found["galleries"]) == ("galleries", ["user"])
    enrolled(api, "/v1/galleries/user", "eileen", COLLINS)
    moving = api.post("/v1/galleries/user/reembed", json={"embedder": shipped}).raise_for_status().json()
    assert job_ended(api, moving["job"]["id"])["state"] == "done"
    found = error_of(api.delete("/v1/models/kept"), 409, "package_in_use")
    assert (found["reason"], found["galleries"]) == ("reembedding", ["user"])
    ended = api.post("/v1/galleries/user/reembed/finish").raise_for_status().json()
    assert job_ended(api, ended["job"]["id"])["state"] == "done"
    with new_folder(data / "packages" / "another"):  # as a job does that adds a model right now
        found = error_of(api.delete("/v1/models/kept"), 409, "package_in_use")
        assert found["reason"] == "adding"
    assert "kept@1" in installed(api)
    assert api.delete("/v1/models/kept").status_code == 204
    assert api.post("/v1/galleries/user/identify", files={"image": COLLINS}).raise_for_status().json()["faces"]


@pytest.mark.long
def test_the_server_keeps_the_model_that_it_runs_with(api: httpx.Client, data: Path) -> None:
    assert added(api, MODEL, ONNX, name="main", preset="sface", licence="MIT")["state"] == "done"
    with running(data, embedder="main") as client:
        found = error_of(client.delete("/v1/models/main"), 409, "package_in_use")
        assert found["reason"] == "default"


def test_who_may_not_do_everything_removes_no_model(api: httpx.Client) -> None:
    key = api.post("/v1/keys", json={"id": "reader", "scopes": ["read"]}).raise_for_status().json()["secret"]
    error_of(api.delete("/v1/models/main", headers={"x-api-key": key}), 403, "missing_scope")
