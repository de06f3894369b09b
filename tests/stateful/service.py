"""The real service in this process, on a data folder of its own, with what a test of all its features needs."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.config import Settings
from app.features.corrected import read_corrections
from app.features.erasure.erasing import Erasures
from app.features.stored import decode_crop
from app.main import create_app
from app.search.snapshots import Snapshots
from app.server.data_folder import load_key
from app.server.local import InProcess
from app.types import Vector
from tests.conftest import PROJECT
from tests.support import aws, packages
from tests.support.commands import run
from tests.support.following import let_expire
from tests.support.ready import give_database, give_models
from tests.support.tarred import templates_of
from tests.support.waiting import until

WAIT_S = 60.0
OFTEN_S = 0.1
"""Between sweeps of expired subjects, and between snapshots."""
SMALL = "small@1"


def _unless_held(lock: threading.Lock, sweep: Callable[[], int]) -> int:
    """Sweep with the lock; erase nobody where it is held."""
    if not lock.acquire(blocking=False):
        return 0
    try:
        return sweep()
    finally:
        lock.release()


class Service:
    """`database_url` None: SQLite in the data folder."""

    def __init__(self, folder: Path, database_url: str | None) -> None:
        self._stack = ExitStack()
        self._folder, self._made = folder, 0
        self._sweeping = threading.Lock()
        self.data = folder / "data"
        self._url, self.on_sqlite = database_url, database_url is None
        models = folder / "models"
        for name in ("yunet", "sface"):
            shutil.copytree(PROJECT / "models" / name, models / name)
        packages.install(models, "small", dimension=32)
        self._settings: dict[str, Any] = {
            "models_dir": models,
            "embedder": "sface",
            "expiry_seconds": OFTEN_S,
            "snapshot_seconds": OFTEN_S,
            **({"database_url": database_url} if database_url else {}),
        }
        give_models(self.data)
        if database_url is None:
            give_database(self.data)
        self.start()
        self.trust = self.call("GET", "/v1/server-key")["public_key"]
        points = {model["id"]: model["calibrations"] for model in self.call("GET", "/v1/models")["models"]}
        self.lenient = {
            package: max(point["threshold"] for point in found["points"] if point["fmr"] == highest)
            for package, calibrations in points.items()
            for found in calibrations
            if found["default"]
            for highest in [max(point["fmr"] for point in found["points"])]
        }
        made = self.call("POST", "/v1/keys", json={"id": "all", "scopes": ["admin", "templates"], "aws": True})
        self._key = made

    @property
    def url(self) -> str:
        return self._url or f"sqlite:///{self.data / 'likeness.db'}"

    def start(self) -> None:
        changed = self._stack.enter_context(pytest.MonkeyPatch.context())
        changed.setattr(Snapshots.__init__, "__kwdefaults__", {"min_faces": 1, "sealer": None})
        sweep = Erasures.sweep
        changed.setattr(Erasures, "sweep", lambda erasures: _unless_held(self._sweeping, lambda: sweep(erasures)))
        app = create_app(Settings(data_dir=self.data, **self._settings))
        transport = InProcess(app)
        self.parts = app.state.components
        self._client = self._stack.enter_context(httpx.Client(transport=transport, base_url="http://service"))
        self._client.headers["x-api-key"] = load_key(self.data)[0]

    def stop(self) -> None:
        self._stack.close()

    def back_up_and_restore(self) -> None:
        """Stop, back up, and go on with the backup in a new data folder: nothing of the old one is left."""
        self.stop()
        backup = self._folder / "backup.tar"
        self._command("backup", backup)
        shutil.rmtree(self.data)
        self._made += 1
        self.data = self._folder / f"data{self._made}"
        give_models(self.data)
        self._command("restore", backup)
        backup.unlink()
        self.start()

    def _command(self, *words: object) -> None:
        done = run(self.data, *words, MODELS_DIR=self._settings["models_dir"])
        assert done.returncode == 0, done

    def call(self, method: str, path: str, status: int = 0, **options: Any) -> Any:
        """Return the answer's body; the answer must have this status, or be a success."""
        answer = self._client.request(method, path, **options)
        assert answer.status_code == status if status else answer.is_success, (method, path, options, answer.text)
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.content

    def finished(self, job: Any, state: str = "done") -> dict[str, Any]:
        """Wait until the job has ended, in this state."""
        until(lambda: self.call("GET", f"/v1/jobs/{job['id']}")["state"] not in {"queued", "running"})
        found: dict[str, Any] = self.call("GET", f"/v1/jobs/{job['id']}")
        assert found["state"] == state, found
        return found

    def index_faces(self, gallery: str, photo: bytes) -> list[str]:
        """Enroll a photo's faces as Rekognition does, each as an unnamed subject; return their ids."""
        body = {"CollectionId": gallery, "Image": {"Bytes": base64.b64encode(photo).decode()}, "QualityFilter": "NONE"}
        data = json.dumps(body).encode()
        headers = aws.signed_headers("http://service", self._key, "IndexFaces", data)
        found = self.call("POST", "/", content=data, headers=headers | {"x-api-key": ""})
        return [one["Face"]["FaceId"].replace("-", "") for one in found["FaceRecords"]]

    def import_template(self, gallery: str, subject: str, vector: Vector, package: str) -> None:
        tar = templates_of(vector[None], [{"subject": subject}])
        params = {"content": "templates", "package": package}
        self.finished(self.upload(gallery, tar, params))

    def upload(self, gallery: str, tar: bytes, params: dict[str, str]) -> Any:
        headers = {"content-type": "application/x-tar"}
        return self.call("POST", f"/v1/galleries/{gallery}/import", params=params, content=tar, headers=headers)

    def embed(self, photo: bytes, package: str) -> Vector | None:
        """Return the template of the photo's first face; None if there is none, or it can't be aligned."""
        faces = self.call("POST", "/v1/embed", data={"model": package}, files={"image": photo})["faces"]
        found = faces[0]["embedding"] if faces else None
        return None if found is None else np.array(found, np.float32)

    def embed_crop(self, jpeg: bytes, package: str) -> Vector:
        """Embed a stored crop, as a re-embedding does."""
        with self.parts.embedders.use(package) as used:
            vector: Vector = used.embedder.embed([decode_crop(jpeg)])[0][0].vector
        return vector

    def correction_crop(self, gallery: str, correction: str) -> bytes | None:
        home = self.parts.galleries.store.gallery(gallery)
        kept: dict[str, bytes | None] = {
            one.id: one.crop for one in read_corrections(self.parts.store, home, crops=True)
        }
        return kept[correction]

    def receipts(self) -> int:
        """Count the erasures that are complete."""
        return len(self.call("GET", "/v1/receipts", params={"limit": 1000})["receipts"])

    @contextmanager
    def no_sweep(self) -> Iterator[None]:
        """Leave subjects that expire meanwhile where they are."""
        with self._sweeping:
            yield

    def expire(self, subject: str) -> None:
        let_expire(self.url, subject)

    def files(self) -> list[bytes]:
        """Return the content of all files of the data folder but the model packages."""
        found = []
        for path in self.data.rglob("*"):
            with suppress(FileNotFoundError):  # a snapshot's draft, which has got its name meanwhile
                if path.is_file() and "models" not in path.parts:
                    found.append(path.read_bytes())
        return found
