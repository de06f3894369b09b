"""`likeness galleries calibrate`: what it prints, and whose operating points decide afterwards."""

from __future__ import annotations

import re
import uuid

import pytest

from tests.support.calibrating import PEOPLE, add_random_people
from tests.support.commands import Done, run
from tests.support.live import LiveServer


@pytest.fixture(scope="module")
def gallery(shared_server: LiveServer) -> str:
    name = f"staff-{uuid.uuid4().hex}"
    with shared_server.client() as api:
        api.post("/v1/galleries", json={"id": name, "store": "none"}).raise_for_status()
        add_random_people(api, name)
    return name


def calibrate(server: LiveServer, gallery: str, *words: str) -> Done:
    done = run(server.data_dir, "galleries", "calibrate", gallery, *words)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done


def test_a_gallery_is_measured_and_its_own_points_decide_once_chosen(shared_server: LiveServer, gallery: str) -> None:
    none = calibrate(shared_server, gallery, "--show").stdout
    assert none.startswith(f"{gallery}: not measured yet\n")
    measured = calibrate(shared_server, gallery).stdout
    assert f"{2 * PEOPLE:,} of {2 * PEOPLE:,} faces compared, {PEOPLE + 1} of {PEOPLE + 1} subjects" in measured
    assert re.search(r"^0\.001 +0\.3\d{3} +0\.3\d{3}-0\.3\d{3} +0\.3815 +\d\.\de-0\d \(.*\) +0\.3", measured, re.M)
    assert re.search(r"^1e-06 +- +- +0\.5580 ", measured, re.M), "too few pairs for such a rate"
    assert "Pairs of subjects that may be one person: 1, " in measured
    assert re.search(rf"^  1\.000 .*p{PEOPLE - 1} \(\w+\)", measured, re.M)
    assert measured.endswith("Decides: the package's calibration train112\n"), "measuring changes no decision"
    chosen = calibrate(shared_server, gallery, "--show", "--use", "gallery")
    assert chosen.stdout.endswith("Decides: the gallery's calibration gallery\n")
    (found,) = calibrate(shared_server, gallery, "--show", "--use", "package", "--json").rows
    assert (found["calibration"], found["decides"]["source"]) == ("package", "package")


def test_a_small_gallery_says_why_the_package_decides(shared_server: LiveServer) -> None:
    name = f"small-{uuid.uuid4().hex}"
    with shared_server.client() as api:
        api.post("/v1/galleries", json={"id": name}).raise_for_status()
    shown = calibrate(shared_server, name, "--use", "gallery").stdout
    assert "Decides: the package's calibration train112 (the gallery has too few subjects)" in shown
