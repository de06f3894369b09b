"""Features are at the edge: without a feature's folder, and its lines in `main.py`, the rest works as before."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app import main
from app.config import Settings
from app.errors import InvalidSetting
from app.features.watching.feature import FEATURE as WATCHING

PROJECT = Path(__file__).resolve().parents[1]
IMPORT = re.compile(
    r"^from app\.features\.(\S+?)(?:\.(?:feature|gate|indexes|routes))? import FEATURE as (\w+)\n", re.MULTILINE
)
FEATURES = dict(IMPORT.findall((PROJECT / "app" / "main.py").read_text(encoding="utf-8")))
"""The folder of each feature, as a module's name, and what `main.py` calls it."""
PATHS: dict[str, str | None] = {
    "audit": "/v1/audit",
    "bulk": "import",
    "calibration": "calibration",
    "challenges": "challenges",
    "checks": "{gallery}/check",
    "compreface": "/api/v1/",
    "corrections": "corrections",
    "deepstack": "/v1/vision/",
    "erasure": "receipts",
    "gpu_search": None,
    "immich": "/predict",
    "keys": "/v1/keys",
    "keys_file": None,
    "liveness": None,
    "milvus": None,
    "monitoring": "/metrics",
    "moving": "/subjects/{subject}/merge",
    "models": "/v1/models/pull",
    "reembedding": "reembed",
    "rekognition": '"/"',
    "review": "review",
    "server_key": "/v1/server-key",
    "sign_in": "/v1/sign-in",
    "vault": None,
    "watching": "sightings",
    "webhook_form": None,
}
"""A part of each feature's paths, where it has any."""
SWITCHED = {"compreface", "deepstack", "immich", "rekognition", "watching"}
"""The features with a setting of their name that turns them on."""
CORE_TESTS = ("tests/api/test_api_recognition.py", "tests/gallery/test_change_log.py", "tests/recognition/test_gate.py")
DOCUMENT = """
import json, sys
from app.config import Settings
from app.main import create_app
features = dict.fromkeys(sys.argv[2:], "on")
print(json.dumps(create_app(Settings(data_dir=sys.argv[1], **features)).openapi()))
"""


def without(folders: list[str], tmp_path: Path) -> Path:
    """Return a copy of the project in which these features' folders and lines are gone."""
    for name in ("app", "tests"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("clients", "docs", "models", "pyproject.toml"):
        (tmp_path / name).symlink_to(PROJECT / name)
    main = tmp_path / "app" / "main.py"
    text = main.read_text(encoding="utf-8")
    for folder in folders:
        shutil.rmtree(tmp_path / "app" / "features" / folder)
        text, imports = re.subn(rf"^from app\.features\.{folder}\b.*\n", "", text, flags=re.MULTILINE)
        text, entries = re.subn(rf"^    {FEATURES[folder]},\n", "", text, flags=re.MULTILINE)
        assert (imports, entries) == (1, 1)
    main.write_text(text, encoding="utf-8")
    return tmp_path


def run(project: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(folders: list[str], tmp_path: Path) -> None:
    project = without(folders, tmp_path)
    switched = sorted(SWITCHED - set(folders))
    document = json.loads(run(project, "-c", DOCUMENT, str(tmp_path / "data"), *switched))
    paths = json.dumps(list(document["paths"]))
    assert {folder for folder, part in PATHS.items() if part and part in paths} == {
        folder for folder, part in PATHS.items() if part and folder not in folders
    }
    run(project, "-m", "pytest", "-q", "-n", "0", "-k", "not postgresql", "-p", "no:cacheprovider", *CORE_TESTS)


TOY = """
from app.access.grants import Scope
from app.api.feature import Feature, Part
from app.api.route import Router

router = Router("toys")


class Toys:
    def __init__(self, galleries):
        self.galleries = galleries


@router.operation("GET", "/v1/toys", scope=Scope.READ, name="count_toys")
def count(toys: Toys) -> dict[str, int]:
    "Count the toys."
    return {"toys": 3, "galleries": len(toys.galleries.store.galleries().items)}


FEATURE = Feature((router,), start=lambda core: Part({"toys": Toys(core.galleries)}))
"""
ASK = """
import sys
from pathlib import Path
from tests.support import ready
from tests.support.service import running
ready.begin()
with running(Path(sys.argv[1])) as api:
    print(api.get("/v1/toys").text, api.get("/v1/toys", headers={"x-api-key": "none"}).status_code)
ready.end()
"""


@pytest.mark.long
def test_another_distribution_adds_a_feature_by_an_entry_point(tmp_path: Path) -> None:
    installed = tmp_path / "site"
    about = installed / "toys-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[likeness.features]\ntoys = likeness_toys:FEATURE\n")
    (installed / "likeness_toys.py").write_text(TOY)
    paths = os.pathsep.join([str(PROJECT), str(installed)])
    command = [sys.executable, "-c", ASK, str(tmp_path / "data")]
    done = subprocess.run(
        command, cwd=PROJECT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.stdout == '{"toys":3,"galleries":0} 401\n', done.stderr


def test_every_feature_has_a_folder_and_paths_of_its_own() -> None:
    assert sorted(PATHS) == sorted(FEATURES)
    folders = {path.parent.name for path in (PROJECT / "app" / "features").glob("*/__init__.py")}
    table = (PROJECT / "app" / "README.md").read_text(encoding="utf-8").partition("| feature |")[2]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `")))
    assert sorted(named) == sorted(folders), "the map names every feature"


@pytest.mark.long
def test_without_any_feature_the_core_starts_and_recognises(tmp_path: Path) -> None:
    check(list(FEATURES), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("folder", FEATURES)
def test_each_feature_can_be_taken_out_alone(folder: str, tmp_path: Path) -> None:
    check([folder], tmp_path)


def test_a_feature_that_is_switched_on_and_missing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "FEATURES", tuple(each for each in main.FEATURES if each is not WATCHING))
    main.create_app(Settings(data_dir=tmp_path))
    with pytest.raises(InvalidSetting, match="LIKENESS_WATCHING is on, and this installation does without it"):
        main.create_app(Settings(data_dir=tmp_path, watching="on"))


@pytest.mark.long
def test_commands_say_which_feature_is_missing(tmp_path: Path) -> None:
    """Those of what stays name what was taken out, in place of a traceback."""
    project, model = without(["liveness", "milvus"], tmp_path), PROJECT / "models" / "sface-slim"
    environ = {"LIKENESS_DATA_DIR": str(tmp_path / "data"), "LIKENESS_INDEX": "milvus://127.0.0.1:1/likeness"}
    add = ["add", str(next(model.glob("*.onnx"))), "--task", "liveness", "--name", "live", "--licence", "MIT"]
    added = asked(project, environ, "models", *add, "--cut", "square", "--scale", "2.7", "--classes", "fake,live")
    assert (added.returncode, "does without liveness" in added.stderr) == (4, True), added.stderr
    checked = asked(project, environ, "doctor")
    assert "Traceback" not in checked.stderr
    for what in ("liveness", "Milvus, and this installation does without it: no server starts"):
        assert what in checked.stdout
    served = asked(project, environ, "serve")
    assert (served.returncode, "no index but faiss" in served.stderr) == (2, True), served.stderr


UNMEASURED = """
import sys
from pathlib import Path
from tests.support import ready
from tests.support.service import COLLINS, enroll, running
ready.begin()
with running(Path(sys.argv[1])) as api:
    api.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
    api.patch("/v1/galleries/crew", json={"calibration": "gallery"}).raise_for_status()
    enroll(api, "/v1/galleries/crew", "eileen", COLLINS).raise_for_status()
    answer = api.post("/v1/galleries/crew/identify", files={"image": COLLINS}).raise_for_status().json()
    print(answer["calibration"]["source"], answer["calibration"]["fallback"])
ready.end()
"""


@pytest.mark.long
def test_without_calibrations_answers_say_that_the_galleries_own_does_not_decide(tmp_path: Path) -> None:
    assert run(without(["calibration"], tmp_path), "-c", UNMEASURED, str(tmp_path / "data")) == "package not_measured\n"


def asked(project: Path, environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """What `likeness` answers there."""
    command = [sys.executable, "-m", "app", *words]
    return subprocess.run(
        command, cwd=project, env=os.environ | environ, capture_output=True, text=True, check=False, timeout=300
    )
