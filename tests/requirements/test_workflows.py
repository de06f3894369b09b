"""The workflows name what is there, ask for little, and what they run of ours does what it says."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.version import VERSION
from tests.conftest import PROJECT

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (PROJECT / ".github" / "workflows").glob("*.yml")}
JOBS = {f"{name}.{job}": about for name, flow in WORKFLOWS.items() for job, about in flow["jobs"].items()}
STEPS: list[dict[str, Any]] = [step for job in JOBS.values() for step in job["steps"]]
RELEASE = PROJECT / ".ci" / "release.py"


def test_both_processors_are_tested_and_have_images() -> None:
    runners = {"ubuntu-24.04", "ubuntu-24.04-arm"}
    for job in ("test.first-stage", "test.containers"):
        assert set(JOBS[job]["strategy"]["matrix"]["runner"]) == runners
    images = {each["target"]: each["platforms"] for each in JOBS["release.images"]["strategy"]["matrix"]["include"]}
    assert images == {"cpu": "linux/amd64,linux/arm64", "gpu": "linux/amd64"}
    (build,) = (step["with"] for step in STEPS if "build-push-action" in step.get("uses", ""))
    assert (build["sbom"], build["provenance"]) == (True, "mode=max")


def test_they_run_targets_and_scripts_that_are_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)) | {
        ".venv/.dev",
        ".venv/.serve",
    }
    commands = "\n".join(step["run"] for step in STEPS if "run" in step)
    asked = {
        word for words in re.findall(r"\bmake ([\w./ -]+)", commands) for word in words.split() if not word.isupper()
    }
    assert {"check", "test", "test-long"} <= asked
    assert asked <= targets
    scripts = re.findall(r"python3? ([\w./-]+\.py)", commands)
    assert scripts
    assert all((PROJECT / name).is_file() for name in scripts)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_asks_for_little_and_ends(name: str) -> None:
    job = JOBS[name]
    assert WORKFLOWS[name.partition(".")[0]]["permissions"] == {"contents": "read"}
    assert job["timeout-minutes"] <= 180
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert "${{ github.event" not in step.get("run", ""), "text of others is no part of a command"


def test_actions_of_others_are_pinned_by_commit_and_say_their_version() -> None:
    """A tag can be moved to other code, a commit can't."""
    texts = [path.read_text() for path in (PROJECT / ".github" / "workflows").glob("*.yml")]
    used = [line for text in texts for line in re.findall(r"uses: (.*)", text)]
    assert len(used) == sum("uses" in step for step in STEPS)
    pins = {
        pin.partition("@")[::2] for pin in used if re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", pin)
    }
    assert {name for name, _ in pins} == {line.partition("@")[0] for line in used}
    assert len(dict(pins)) == len(pins), "one version of each"


def test_notes_are_the_versions_part_of_the_changelog() -> None:
    release = runpy.run_path(str(RELEASE))
    assert release["notes"]("v0.1.0").startswith("The first version.")
    assert "## 0." not in release["notes"](f"v{VERSION}")
    with pytest.raises(SystemExit, match=r"no part about v9\.9\.9"):
        release["notes"]("v9.9.9")


def test_a_tag_must_be_the_version_of_every_part_and_have_its_day() -> None:
    release = runpy.run_path(str(RELEASE))
    with pytest.raises(SystemExit, match=r"v9\.9\.9: pyproject\.toml says .*typescript/package\.json says .*CHANGELOG"):
        release["check"]("v9.9.9")
    release["check"].__globals__["_changelog"] = lambda: f"## {VERSION} (2026-12-01)\n"
    release["check"](f"v{VERSION}")


@pytest.mark.long
def test_the_wheels_are_built_without_a_download_and_hold_what_they_are_for(tmp_path: Path) -> None:
    project = _copied(tmp_path / "project")
    stale = project / "build" / "lib" / "app" / "gone.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    done = subprocess.run(
        [sys.executable, project / ".ci" / "release.py", "wheels", tmp_path / "dist"],
        env={"PIP_NO_INDEX": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = {wheel.name.split("-")[0]: zipfile.ZipFile(wheel).namelist() for wheel in (tmp_path / "dist").glob("*.whl")}
    assert set(names) == {"likeness_server", "likeness_client"}
    assert "likeness_client/client.py" in names["likeness_client"]
    assert "app/main.py" in names["likeness_server"]
    assert "app/gone.py" not in names["likeness_server"]
    assert not [*project.glob("build"), *project.glob("clients/*/build")]
    assert not [name for name in names["likeness_server"] if name.startswith(("tests/", "training/"))]
    left_out = {"app/README.md", "app/db/migrations/script.py.mako"}
    tracked = subprocess.run(["git", "ls-files", "app"], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert set(tracked.stdout.split()) - left_out <= set(names["likeness_server"])


@pytest.mark.long
def test_an_installed_wheel_has_the_default_models(tmp_path: Path) -> None:
    """And none for research only."""
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(tmp_path / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(_copied(tmp_path / "project"))], check=True)
    (tmp_path / "elsewhere").mkdir()
    code = "from app.config import Settings; from app.package.folders import find_packages; import app\n"
    code += "print(app.__file__, *sorted(find_packages(Settings().models_dir)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "elsewhere",
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    program, *models = done.stdout.split()
    assert Path(program).is_relative_to(tmp_path / "site")
    assert [one.partition("@")[0] for one in models] == ["sface", "yunet"]


def _copied(folder: Path) -> Path:
    """Return the folder with a copy of what the wheels are built of."""
    folder.mkdir()
    for name in ("app", "clients", "models", "pyproject.toml", "README.md", "LICENSE", ".ci"):
        source = PROJECT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    return folder
