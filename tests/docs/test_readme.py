"""The README can be followed as pasted, and its links lead somewhere; versions are pinned; no research data is here."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from app.version import DISTRIBUTION, VERSION
from tests.conftest import PROJECT
from tests.support.tutorials import following

README = (PROJECT / "README.md").read_text()


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("make"), reason="needs curl and make")
def test_the_first_use_works_as_pasted_and_answers_as_printed(tmp_path: Path) -> None:
    (python,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with following(tmp_path) as (reader, _):
        reader.follow(README)
        reader.follow(
            f"```sh\n.venv/bin/python - <<'EOF'\n{python}EOF\n```\n"
            "<!-- output -->\n```text\nknown eileen 0.9…\nknown grace 0.9…\n```\n"
        )


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", README)
    local = [link for pair in links for link in pair if link and not link.startswith("http")]
    assert len(local) > 20
    assert not [link for link in local if not (PROJECT / link).exists()]


def test_files_that_the_pages_name_are_there() -> None:
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"\b(?:app|training|tests|docker)/[\w/.-]+\.(?:py|toml|yml)\b", page.read_text())
    }
    assert len(named) > 10
    assert not [(page, name) for page, name in named if not (PROJECT / name).exists()]


def test_every_version_is_pinned() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    pinned = {
        line.split("==")[0].lower().replace("_", "-") for line in (PROJECT / "constraints.txt").read_text().splitlines()
    }
    missing = sorted(name for name in wanted if re.split(r"[\[>=<~]", name)[0].lower().replace("_", "-") not in pinned)
    assert not missing


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == (DISTRIBUTION, VERSION)
    assert re.search(rf"^## {re.escape(VERSION)}\b", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    labels = re.findall(r'image\.version="([^"]*)"', (PROJECT / "docker" / "Dockerfile").read_text())
    assert set(labels) == {VERSION}
    assert f"Likeness {VERSION.rpartition('.')[0]} |" in (PROJECT / "README.md").read_text()


def test_pip_is_told_the_distributions_own_name() -> None:
    """On PyPI `likeness` is another's."""
    texts = [path for folder in ("app", "bench", "training", "docs") for path in (PROJECT / folder).rglob("*.[pm][yd]")]
    wrong = [str(path) for path in texts if re.search(r"(?<![\w-])likeness\[", path.read_text(encoding="utf-8"))]
    assert wrong == []


def test_nothing_of_the_research_data_is_here() -> None:
    images = [path for path in PROJECT.rglob("*.jp*g") if not {".venv", ".git"} & set(path.relative_to(PROJECT).parts)]
    samples = {"collins.jpg", "collins_again.jpg", "hopper.jpg", "both.jpg", "drawn.jpg"}
    tracked = subprocess.run(
        ["git", "ls-files", "*.jpg", "*.jpeg"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    names = {Path(line).name for line in tracked.stdout.splitlines()} or {path.name for path in images}
    assert names <= samples


def test_the_map_of_the_rooms_names_every_feature_with_its_size() -> None:
    """A size is right to a tenth, or to 50 lines; ``features/*.py`` are what several features share."""
    features, text = PROJECT / "app" / "features", (PROJECT / "app" / "README.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \| [^|]+ \| ([\d, ]+) \|$", text, re.MULTILINE)
    told = {
        name: int(lines.replace(",", ""))
        for names, sizes in rows
        for name, lines in zip(re.findall(r"`([^`]+)`", names), sizes.split(", "), strict=True)
    }
    folders = {path.parent.name for path in features.glob("*/__init__.py")}
    assert set(told) == folders | {"features/*.py"}
    for name, lines in told.items():
        files = features.glob("*.py") if name == "features/*.py" else (features / name).rglob("*.py")
        found = sum(len(path.read_text().splitlines()) for path in files)
        assert abs(found - lines) <= max(50, lines / 10), f"{name} has {found} lines"
