"""The requirement files: the versions of constraints.txt and no others, each with the SHA-256 of its files."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT

FOLDER = PROJECT / "requirements"
AUDIT = runpy.run_path(str(FOLDER / "audit.py"))
WRITE = runpy.run_path(str(FOLDER / "write.py"))
SBOM = runpy.run_path(str(FOLDER / "sbom.py"))
FILES = (*WRITE["EXTRAS"], *WRITE["ALONE"])
TORCH = {"torch"}


def plain(name: str) -> str:
    """The name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    return {plain(name): version for name, version in (line.split("==") for line in lines if not line.startswith("#"))}


def blocks(name: str) -> dict[str, tuple[str, list[str]]]:
    """(version, hashes) of each requirement in a file."""
    text = (FOLDER / f"{name}.txt").read_text().replace("\\\n", " ")
    found: dict[str, tuple[str, list[str]]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        requirement, *hashes = line.split("--hash=")
        package, version = requirement.partition(";")[0].strip().split("==")
        assert plain(package) not in found, line
        found[plain(package)] = (version, [one.strip() for one in hashes])
    return found


def test_no_other_files_are_there() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_requirement_is_pinned_as_in_constraints_and_has_hashes(name: str) -> None:
    known = pins()
    for package, (version, hashes) in blocks(name).items():
        assert known.get(package) == version, f"{package}: run `make hashes`"
        assert hashes, package
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), package
        assert len(set(hashes)) == len(hashes)


def test_every_pin_has_hashes() -> None:
    hashed = {package for name in FILES for package in blocks(name)}
    assert pins().keys() - hashed <= TORCH | {"mdit-py-plugins"}


def extras_of(*names: str) -> list[str]:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [re.split(r"[\[<>=]", one)[0] for name in names for one in extras[name]]


@pytest.mark.parametrize("name", WRITE["EXTRAS"])
def test_a_file_names_what_its_installation_asks_for(name: str) -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted = {plain(re.split(r"[\[<>=]", one)[0]) for one in [*project, *extras_of(*WRITE["EXTRAS"][name])]}
    assert wanted | {"setuptools"} <= blocks(name).keys() | TORCH


def test_torch_is_left_out_and_what_it_needs_is_not() -> None:
    text = (
        "torch==1 ; sys_platform == 'never' \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "sympy==2 ; sys_platform == 'never' \\\n    --hash=sha256:cc\ntorchvision==3 \\\n    --hash=sha256:dd\n"
    )
    assert WRITE["_without_torch"](text) == (
        "sympy==2 \\\n    --hash=sha256:cc\ntorchvision==3 \\\n    --hash=sha256:dd\n"
    )


def test_nothing_is_installed_without_hashes_but_torch() -> None:
    """In the Makefile, and in the images, which don't have it."""
    makefile = (PROJECT / "Makefile").read_text().replace("\\\n", " ")
    installs = [
        line for line in makefile.splitlines() if re.search(r"pip install|\$\(PIP\)", line) and "PIP =" not in line
    ]
    allowed = re.compile(r"--require-hashes|--no-deps --no-build-isolation -e \.|^TORCH = ")
    assert len(installs) >= 5
    assert [line for line in installs if not allowed.search(line)] == []
    (hashed,) = re.findall(r"^HASHED = (.*)$", makefile, re.MULTILINE)
    assert "--no-deps" in hashed, (
        "pytorch-metric-learning asks for torch, which has no hash: pip would refuse everything"
    )
    dockerfile = (PROJECT / "docker" / "Dockerfile").read_text()
    for install in re.findall(r"pip install [^\\&]*", dockerfile):
        assert "--require-hashes -r requirements/" in install or "--no-deps --no-build-isolation" in install, install


def test_pip_refuses_a_file_that_is_not_listed(tmp_path: Path) -> None:
    """What the whole rests upon, tried with a wheel made here, offline."""
    wheel = tmp_path / "made-1.0-py3-none-any.whl"
    pytest.importorskip("pip")
    from zipfile import ZipFile  # noqa: PLC0415 - this test alone

    with ZipFile(wheel, "w") as file:
        file.writestr("made.py", "")
        file.writestr("made-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: made\nVersion: 1.0\n")
        file.writestr("made-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("made-1.0.dist-info/RECORD", "")
    listed = tmp_path / "listed.txt"
    listed.write_text(f"made==1.0 --hash=sha256:{'0' * 64}\n")
    options = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "there"), "--no-deps"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--require-hashes", *options, "-r", str(listed)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    assert "DO NOT MATCH" in done.stderr


def bill() -> dict[str, Any]:
    """As cyclonedx-py writes one."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "metadata": {"component": {"type": "application", "bom-ref": "root-component", "name": "likeness"}},
        "components": [{"type": "library", "bom-ref": "numpy==2", "name": "numpy", "version": "2"}],
        "dependencies": [{"ref": "numpy==2"}, {"ref": "root-component", "dependsOn": ["numpy==2"]}],
    }


def test_the_bill_of_materials_lists_the_model_packages() -> None:
    found = SBOM["with_models"](bill(), PROJECT / "models")
    components = {one["bom-ref"]: one for one in found["components"]}
    assert len(components) == len(found["components"])
    manifests = [json.loads(path.read_text()) for path in (PROJECT / "models").glob("*/manifest.json")]
    assert len(components) == len(manifests) + 1
    for manifest in manifests:
        model = components[f"model:{manifest['name']}@{manifest['version']}"]
        assert model["type"] == "machine-learning-model"
        assert model["hashes"] == [{"alg": "SHA-256", "content": manifest["sha256"]}]
        assert model["licenses"][0]["license"]["name"] == manifest["licence"]["name"]
    edges = {one["ref"]: set(one.get("dependsOn", ())) for one in found["dependencies"]}
    assert edges.keys() == components.keys() | {"root-component"}
    assert edges["root-component"] == components.keys()
    assert bill()["components"] == [components["numpy==2"]], "the given one is left as it was"


def audited(tmp_path: Path, packages: dict[str, Any], pinned: str) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "requirements"
    folder.mkdir(exist_ok=True)
    shutil.copy(FOLDER / "audit.py", folder)
    (tmp_path / "constraints.txt").write_text(f"# All\n{pinned}\n")
    (folder / "advisories.json").write_text(json.dumps({"date": "2026-01-02", "packages": packages}))
    return subprocess.run([sys.executable, folder / "audit.py"], capture_output=True, text=True, check=False)


def test_an_audit_says_what_is_vulnerable(tmp_path: Path) -> None:
    advisory = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["1.1"]}
    packages = {"made": {"version": "1.0", "advisories": [advisory]}, "fine": {"version": "2", "advisories": []}}
    done = audited(tmp_path, packages, "made==1.0\nfine==2")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "made 1.0: PYSEC-1, fixed in 1.1.",
        "2 versions checked, advisories of 2026-01-02: 1 known vulnerabilities",
    ]
    assert audited(tmp_path, packages, "fine==2").returncode == 0


def test_an_audit_names_what_the_record_does_not_tell(tmp_path: Path) -> None:
    packages = {"old": {"version": "1", "advisories": []}, "hidden": {"version": "3", "advisories": None}}
    done = audited(tmp_path, packages, "old==2\nhidden==3")
    assert (done.returncode, done.stdout.split(",")[0]) == (2, "0 versions checked")
    assert "told advisories of: hidden" in done.stderr
    assert "1 versions are not recorded: old" in done.stderr


def test_what_the_index_no_longer_tells_of_a_version_is_kept_with_its_date() -> None:
    told = {"version": "1", "advisories": [{"id": "PYSEC-1"}], "date": "2026-01-02"}
    before = {"kept": told, "newer": told, "renewed": told, "never": {"version": "1", "advisories": None}}
    versions = {"kept": "1", "newer": "2", "renewed": "1", "never": "1", "added": "1"}
    found: dict[str, list[Any] | None] = {"kept": None, "newer": None, "renewed": [], "never": None, "added": []}
    assert AUDIT["merge"](before, versions, found, "2026-02-03") == {
        "kept": told,
        "newer": {"version": "2", "advisories": None},
        "renewed": {"version": "1", "advisories": [], "date": "2026-02-03"},
        "never": {"version": "1", "advisories": None},
        "added": {"version": "1", "advisories": [], "date": "2026-02-03"},
    }


def test_an_audit_says_how_old_its_oldest_advisories_are(tmp_path: Path) -> None:
    packages = {
        "old": {"version": "1", "advisories": [], "date": "2026-01-01"},
        "new": {"version": "1", "advisories": []},
    }
    done = audited(tmp_path, packages, "old==1\nnew==1")
    assert done.stdout == "2 versions checked, advisories of 2026-01-01 to 2026-01-02: 0 known vulnerabilities\n"


def test_the_record_is_of_the_pinned_versions() -> None:
    done = subprocess.run([sys.executable, FOLDER / "audit.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
