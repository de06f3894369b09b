"""A gallery is bound to the model that its templates were made with: another file under the same id is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from app.errors import InvalidInput
from app.package.folders import check_choice, load_package
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.commands import run
from tests.support.ready import give_models
from tests.support.service import AGAIN, COLLINS, running

GALLERIES = "/v1/galleries"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("yunet", "sface"):
        shutil.copytree(PROJECT / "models" / name, folder / name)
    packages.install(folder, "small")
    return folder


def identify(client: httpx.Client, gallery: str) -> httpx.Response:
    return client.post(f"{GALLERIES}/{gallery}/identify", files={"image": AGAIN})


def test_another_model_under_the_same_id_is_refused_until_the_first_is_back_or_the_gallery_moves(
    tmp_path: Path, models: Path
) -> None:
    data = tmp_path / "data"
    with running(data, models_dir=models) as client:
        for gallery, embedder in (("staff", "small"), ("other", None)):
            client.post(GALLERIES, json={"id": gallery, "embedder": embedder}).raise_for_status()
            photo = {"images": COLLINS}
            client.post(f"{GALLERIES}/{gallery}/subjects/e/faces", files=photo).raise_for_status()
        identify(client, "staff").raise_for_status()
        identify(client, "other").raise_for_status()
    kept = shutil.move(models / "small-1", tmp_path / "kept")
    packages.install(models, "small", seed=2)
    with running(data, models_dir=models) as client:
        refused = identify(client, "staff")
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (503, "package_unavailable")
        assert error["details"]["reason"] == "package_changed"
        assert "likeness reembed start staff" in error["message"]
        added = client.post(f"{GALLERIES}/staff/subjects/f/faces", files={"images": COLLINS})
        assert added.status_code == httpx.codes.SERVICE_UNAVAILABLE
        checked = client.get(f"{GALLERIES}/staff/check").raise_for_status().json()
        assert (checked["ok"], "another model" in checked["problems"][0]) == (False, True)
        identify(client, "other").raise_for_status()
        assert client.post(GALLERIES, json={"id": "new", "embedder": "small"}).json()["error"]["code"] == error["code"]
    doctor = run(data, "doctor", models_dir=models)
    assert "another model than the one of the galleries' templates" in doctor.stdout
    another = shutil.move(models / "small-1", tmp_path / "another")
    shutil.move(kept, models / "small-1")
    with running(data, models_dir=models) as client:
        identify(client, "staff").raise_for_status()
        assert client.get(f"{GALLERIES}/staff/check").json()["ok"]
    shutil.rmtree(models / "small-1")
    shutil.move(another, models / "small-1")
    packages.install(models, "small", seed=2, version="2")
    done = run(data, "reembed", "start", "staff", "small@2", "--wait", models_dir=models)
    assert done.returncode == 0, done.stderr
    with running(data, models_dir=models) as client:
        assert identify(client, "staff").raise_for_status().json()["model"] == "small@2"


def test_an_id_that_no_gallery_needs_is_free_for_another_model(tmp_path: Path, models: Path) -> None:
    data = tmp_path / "data"
    with running(data, models_dir=models) as client:
        client.post(GALLERIES, json={"id": "staff", "embedder": "small"}).raise_for_status()
        client.delete(f"{GALLERIES}/staff").raise_for_status()
    shutil.rmtree(models / "small-1")
    packages.install(models, "small", seed=2)
    with running(data, models_dir=models) as client:
        client.post(GALLERIES, json={"id": "staff", "embedder": "small"}).raise_for_status()


@pytest.mark.long
def test_research_only_and_unmeasured_packages_need_a_word(tmp_path: Path) -> None:
    slim = load_package(PROJECT / "models" / "sface-slim").manifest
    with pytest.raises(InvalidInput, match=r"FNMR .* at FMR 0\.0001") as caught:
        check_choice(slim, force=True, accept_non_commercial=False)
    assert (caught.value.code, slim.licence.name in caught.value.message) == ("licence_not_accepted", True)
    check_choice(slim, force=False, accept_non_commercial=True)
    unmeasured = slim.model_copy(update={"calibrations": ()})
    with pytest.raises(InvalidInput, match="likeness models measure sface-slim") as caught:
        check_choice(unmeasured, force=False, accept_non_commercial=True)
    assert caught.value.code == "package_not_measured"
    check_choice(unmeasured, force=True, accept_non_commercial=True)
    give_models(tmp_path / "data")
    words = ("galleries", "create", "trial", "--embedder", "sface-slim")
    refused = run(tmp_path / "data", *words)
    assert (refused.returncode, "licence_not_accepted" in refused.stderr) == (2, True), refused.stderr
    assert run(tmp_path / "data", *words, "--accept-non-commercial").returncode == 0
