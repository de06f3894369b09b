"""`likeness models measure`: photos of people become operating points in the manifest, which decide at once."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import httpx
import pytest

from app.errors import Unusable
from app.models.packages import write_manifest, write_own
from app.models.people import people_for
from app.package.folders import OwnCalibrations, load_package, own_path
from app.package.thresholds import Thresholds
from tests.conftest import PROJECT
from tests.support.commands import run as likeness
from tests.support.crops import write_people
from tests.support.ready import give_models
from tests.support.service import AGAIN, COLLINS, running
from training.data.drawn import ProceduralFaces

NAME = "sface-slim"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a package without operating points, a detector and the default embedder."""
    for name in (NAME, "yunet", "sface"):
        shutil.copytree(PROJECT / "models" / name, tmp_path / "models" / name)
    folder = tmp_path / "models" / NAME
    write_manifest(folder, load_package(folder).manifest.model_copy(update={"calibrations": ()}))
    return tmp_path / "models"


@pytest.fixture(scope="module")
def drawn_people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Aligned crops of 48 drawn people, a folder each, to be copied only; one file is no crop."""
    folder = write_people(tmp_path_factory.mktemp("drawn") / "people", ProceduralFaces(48, 3))
    (folder / "p00" / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def people(drawn_people: Path, tmp_path: Path) -> Path:
    """The drawn people in a folder of the test's own."""
    return shutil.copytree(drawn_people, tmp_path / "people")


@pytest.mark.long
def test_points_with_intervals_are_written_drawn_and_said(models: Path, people: Path, tmp_path: Path) -> None:
    drawn, shipped = tmp_path / "det.svg", (models / NAME / "manifest.json").read_bytes()
    told = ("--photos", people, "--aligned", "--name", "doors", "--draw", drawn)
    done = likeness(tmp_path / "data", "models", "measure", NAME, *told, models_dir=models)
    assert done.returncode == 0, done.stderr
    assert "broken.png: left out" in done.stderr
    assert "144 photos of 48 people" in done.stdout
    assert "10,152 non-mated, 144 mated pairs" in done.stdout
    assert "people with as many photos each" in done.stdout
    assert "FPIR 0.01, the server's default, is supported up to" in done.stdout
    assert "Most alike of two people: 0." in done.stdout
    assert (models / NAME / "manifest.json").read_bytes() == shipped, "what is shipped stays as it was"
    manifest = load_package(models / NAME, tmp_path / "data").manifest
    [written] = manifest.calibrations
    assert (written.name, written.default, written.measured_with) == ("doors", True, manifest.recipe_digest)
    assert written.points[0].fmr == 1e-2
    assert all(point.threshold_low <= point.threshold <= point.threshold_high for point in written.points)
    assert all(point.fnmr is not None for point in written.points)
    picture = ET.parse(drawn).getroot()  # noqa: S314 - the command has just written it
    assert len(picture.findall("{http://www.w3.org/2000/svg}g")) == 2
    again = likeness(
        tmp_path / "data",
        "models",
        "measure",
        NAME,
        *told[:3],
        "--name",
        "other",
        "--json",
        models_dir=models,
    )
    assert again.rows[0]["calibration"]["name"] == "other"
    kept = load_package(models / NAME, tmp_path / "data").manifest
    assert [(each.name, each.default) for each in kept.calibrations] == [("doors", True), ("other", False)]
    assert Thresholds(kept).threshold(1e-2) == written.points[0].threshold
    assert "it decides" in done.stdout, "the package had no other points"
    used = likeness(
        tmp_path / "data", "models", "measure", NAME, *told[:3], "--name", "third", "--use", models_dir=models
    )
    assert "it decides" in used.stdout
    kept = load_package(models / NAME, tmp_path / "data").manifest
    assert [each.name for each in kept.calibrations if each.default] == ["third"]


@pytest.mark.long
def test_measuring_a_package_that_has_points_changes_no_decision(models: Path, people: Path, tmp_path: Path) -> None:
    give_models(tmp_path / "data")
    told = ("models", "measure", "sface", "--photos", people, "--aligned", "--name", "doors")
    done = likeness(tmp_path / "data", *told, models_dir=models)
    assert done.returncode == 0, done.stderr
    assert "likeness models calibrations use sface doors" in done.stdout
    manifest = load_package(models / "sface", tmp_path / "data").manifest
    assert "doors" in [each.name for each in manifest.calibrations]
    assert manifest.deciding == load_package(models / "sface").manifest.deciding


def test_few_people_are_refused_and_nothing_is_written(models: Path, people: Path, tmp_path: Path) -> None:
    for folder in sorted(people.iterdir())[6:]:
        shutil.rmtree(folder)
    done = likeness(tmp_path, "models", "measure", NAME, "--photos", people, "--aligned", models_dir=models)
    assert done.returncode == 3, done.stdout
    assert "too_few_people" in done.stderr
    for folder in sorted(people.iterdir())[1:]:
        shutil.rmtree(folder)
    done = likeness(tmp_path, "models", "measure", NAME, "--photos", people, "--aligned", models_dir=models)
    assert "Photos of two people at least are needed" in done.stderr
    assert not (tmp_path / "calibrations").exists()
    assert likeness(tmp_path, "models", "measure", NAME, "--photos", tmp_path / "no", models_dir=models).returncode == 2


def test_own_calibrations_are_listed_chosen_and_removed(models: Path, tmp_path: Path) -> None:
    data, sface = tmp_path / "data", load_package(models / "sface").manifest
    (shipped,) = (each for each in sface.calibrations if each.default)
    own = shipped.model_copy(update={"name": "doors", "default": False})
    foreign = own.model_copy(update={"name": "other", "measured_with": "0" * 64})
    write_own(own_path(data, sface.id), OwnCalibrations(calibrations=(sface.bind(own), foreign)))

    def deciding() -> list[str]:
        rows = likeness(data, "models", "calibrations", "list", "sface", "--json", models_dir=models).rows
        assert [row["name"] for row in rows if row["source"] == "data folder"] in (["doors"], [])
        return [row["name"] for row in rows if row["decides"]]

    assert deciding() == [shipped.name]
    warned = load_package(models / "sface", data).warnings
    assert "(other)" in warned[0], "measured with another model"
    words = ("models", "calibrations")
    assert likeness(data, *words, "use", "sface", "doors", models_dir=models).returncode == 0
    assert deciding() == ["doors"]
    assert "calibration_unknown" in likeness(data, *words, "use", "sface", "nothing", models_dir=models).stderr
    assert "calibration_unknown" in likeness(data, *words, "remove", "sface", shipped.name, models_dir=models).stderr
    assert likeness(data, *words, "remove", "sface", "doors", models_dir=models).returncode == 0
    assert deciding() == [shipped.name]
    own_path(data, sface.id).write_text("{}}")
    with pytest.raises(Unusable) as caught:
        load_package(models / "sface", data)
    assert caught.value.code == "calibrations_invalid"


def test_people_needed_grow_with_the_root_of_the_pairs() -> None:
    assert people_for(1e-3, 100, 10_000) == 100
    assert people_for(1e-5, 100, 10_000) == 1000


@pytest.mark.long
def test_a_running_server_decides_by_them_at_once(models: Path, people: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, models_dir=models) as api:
        api.post(
            "/v1/galleries", json={"id": "trial", "embedder": NAME, "force": True, "accept_non_commercial": True}
        ).raise_for_status()
        api.post("/v1/galleries/trial/subjects/collins/faces", files={"images": COLLINS}).raise_for_status()
        assert identify(api).json()["error"]["code"] == "operating_point_unavailable"
        done = likeness(data, "models", "measure", NAME, "--photos", people, "--aligned", models_dir=models)
        assert done.returncode == 0, done.stderr
        answer = identify(api).raise_for_status().json()
        assert answer["calibration"] == {"source": "package", "name": "measured", "fallback": None}
        assert answer["limited"] is (answer["fmr"] > 1e-4)


def identify(api: httpx.Client) -> httpx.Response:
    return api.post("/v1/galleries/trial/identify", files={"image": AGAIN})
