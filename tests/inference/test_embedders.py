"""Several embedder packages in one server: opened when needed, a bounded number kept, each gallery with its own."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.errors import InvalidInput, OperatingPointUnavailable, Overloaded, Unusable
from app.inference.embedders import Embedder, Embedders
from app.models.opening import open_embedder
from app.models.packages import write_manifest
from app.package import golden
from app.package.folders import Package, find_packages, load_package, select
from app.types import Pixels
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.service import AGAIN, COLLINS, HOPPER, error_of, running
from tests.support.waiting import PATIENCE_S

GREY: Pixels = np.full((112, 112, 3), 128, np.uint8)


class Openings:
    """Opens packages for real, and keeps what it opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.opened: list[str] = []
        self.embedders: dict[str, Embedder] = {}

    def __call__(self, package: Package) -> Embedder:
        self.opened.append(package.id)
        self.embedders[package.id] = Embedder(open_embedder(package, self._folder, "cpu"), workers=1)
        return self.embedders[package.id]

    def closed(self, package_id: str) -> bool:
        try:
            self.embedders[package_id].embed([GREY])
        except Overloaded:
            return True
        return False


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for seed, name in enumerate(("a", "b", "c", "d")):
        packages.install(folder, name, dimension=4 + seed, seed=seed)
    return folder


@pytest.fixture
def openings(tmp_path: Path) -> Openings:
    return Openings(tmp_path / "cache")


@pytest.fixture
def embedders(models: Path, openings: Openings) -> Iterator[Embedders]:
    found = find_packages(models)
    made = Embedders(found["a@1"], lambda: find_packages(models), openings, kept=2)
    yield made
    made.close()


def use(embedders: Embedders, package_id: str) -> int:
    with embedders.use(package_id) as model:
        (template,), _ = model.embedder.embed([GREY])
        assert template.package == model.id == package_id == model.thresholds.package
        return len(template.vector)


def test_a_package_is_opened_at_its_first_use_and_stays(embedders: Embedders, openings: Openings) -> None:
    assert openings.opened == []
    assert [use(embedders, name) for name in ("b@1", "b@1", "a@1")] == [5, 5, 4]
    assert openings.opened == ["b@1", "a@1"]
    assert embedders.devices() == {"a@1": "cpu", "b@1": "cpu"}


def test_the_one_used_longest_ago_makes_room_but_the_default_never(embedders: Embedders, openings: Openings) -> None:
    embedders.open_default()
    for name in ("b@1", "c@1"):
        use(embedders, name)
    assert set(embedders.devices()) == {"a@1", "c@1"}
    assert openings.closed("b@1")
    use(embedders, "b@1")
    assert openings.opened == ["a@1", "b@1", "c@1", "b@1"]
    assert openings.closed("c@1")
    assert embedders.batch_sizes == {1: 3}, "those of closed packages count on"
    assert embedders.waiting == 0


def test_a_package_in_use_is_not_closed(embedders: Embedders) -> None:
    embedders.open_default()
    with embedders.use("b@1") as used:
        use(embedders, "c@1")
        use(embedders, "d@1")
        assert len(used.embedder.embed([GREY])[0]) == 1
    assert set(embedders.devices()) == {"a@1", "b@1"}


def test_many_at_once_open_a_package_once(embedders: Embedders, openings: Openings) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: use(embedders, "b@1"), range(16))) == {5}
    assert openings.opened == ["b@1"]


def test_opening_one_does_not_keep_the_others_waiting(models: Path, openings: Openings) -> None:
    opening, go_on = threading.Event(), threading.Event()

    def slow(package: Package) -> Embedder:
        if package.id == "b@1":
            opening.set()
            assert go_on.wait(PATIENCE_S)
        return openings(package)

    embedders = Embedders(find_packages(models)["a@1"], lambda: find_packages(models), slow, kept=4)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(use, embedders, "b@1")
        assert opening.wait(PATIENCE_S)
        assert use(embedders, "c@1") == 6
        go_on.set()
        assert waiting.result(PATIENCE_S) == 5
    embedders.close()


def expect_other_templates(folder: Path) -> None:
    """In the manifest, the opposite of what the package makes: as on a machine that computes it wrongly."""
    package = load_package(folder)
    opposite = golden.record(lambda crops: -open_embedder(package, folder, "cpu").run(crops))
    write_manifest(folder, package.manifest.model_copy(update={"golden": opposite}))


@pytest.mark.parametrize("harm", ["missing", "changed", "uninstalled", "other templates"])
def test_a_package_that_cannot_be_opened_says_why_and_harms_no_other(
    models: Path, openings: Openings, harm: str
) -> None:
    embedders = Embedders(find_packages(models)["a@1"], lambda: find_packages(models), openings, kept=4, retry_s=0)
    harms: dict[str, tuple[Callable[[], object], str]] = {
        "missing": ((models / "b-1" / "model.onnx").unlink, "package_file_missing"),
        "changed": (lambda: (models / "b-1" / "model.onnx").write_bytes(b"another"), "package_hash_mismatch"),
        "uninstalled": (lambda: shutil.rmtree(models / "b-1"), "package_unknown"),
        "other templates": (lambda: expect_other_templates(models / "b-1"), "package_templates_differ"),
    }
    act, reason = harms[harm]
    act()
    for _ in range(2):
        with pytest.raises(Unusable) as caught:
            use(embedders, "b@1")
        assert (caught.value.code, caught.value.details["reason"]) == ("package_unavailable", reason)
    assert use(embedders, "c@1") == 6
    packages.install(models, "b", dimension=5, seed=1)
    assert use(embedders, "b@1") == 5, "what was put right works again"
    embedders.close()


def test_a_package_that_failed_is_not_tried_again_at_once(
    embedders: Embedders, models: Path, openings: Openings
) -> None:
    (models / "b-1" / "model.onnx").unlink()
    for _ in range(3):
        with pytest.raises(Unusable):
            use(embedders, "b@1")
    assert openings.opened == ["b@1"]


def test_the_default_says_itself_what_is_wrong_with_it(embedders: Embedders, models: Path) -> None:
    (models / "a-1" / "model.onnx").unlink()
    with pytest.raises(Unusable) as caught:
        embedders.open_default()
    assert caught.value.code == "package_file_missing"


def test_packages_are_chosen_by_name_and_looked_for_anew(embedders: Embedders, models: Path) -> None:
    assert embedders.choose(None).id == embedders.choose("a").id == "a@1"
    with pytest.raises(InvalidInput) as caught:
        embedders.choose("e")
    assert (caught.value.code, caught.value.details["known"]) == ("package_unknown", ["a@1", "b@1", "c@1", "d@1"])
    packages.install(models, "e")
    packages.install(models, "b", version="2")
    assert embedders.choose("e").id == "e@1"
    assert embedders.thresholds("e@1").threshold(1e-2) == pytest.approx(0.7)
    with pytest.raises(InvalidInput) as caught:
        embedders.choose("b")
    assert caught.value.code == "package_ambiguous"
    assert embedders.choose("b@2").id == "b@2"


def test_a_manifest_that_is_damaged_later_keeps_its_package_in_use(embedders: Embedders, models: Path) -> None:
    before = set(embedders.packages())
    for name in ("a-1", "b-1"):
        (models / name / "manifest.json").write_text("{")
    assert set(embedders.packages()) == before
    assert use(embedders, "b@1") == 5
    (models / "b-1" / "manifest.json").unlink()
    assert set(embedders.packages()) == before - {"b@1"}


def test_operating_points_of_another_model_are_left_out_and_logged_once(
    embedders: Embedders, caplog: pytest.LogCaptureFixture
) -> None:
    package = embedders.packages()["b@1"]
    foreign = packages.calibration({1e-1: 0.2, 1e-2: 0.3}).model_copy(update={"measured_with": "0" * 64})
    write_manifest(package.folder, package.manifest.model_copy(update={"calibrations": (foreign,)}))
    for _ in range(2):
        with pytest.raises(OperatingPointUnavailable):
            embedders.thresholds("b@1").threshold(1e-2)
        assert embedders.packages()["b@1"].warnings
    assert caplog.text.count("measured with another file") == 1


def test_nothing_is_opened_after_the_end(embedders: Embedders) -> None:
    use(embedders, "b@1")
    embedders.close()
    with pytest.raises(Overloaded) as caught:
        use(embedders, "b@1")
    assert caught.value.code == "shutting_down"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real packages, and a small one."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("yunet", "sface"):
        shutil.copytree(PROJECT / "models" / name, folder / name)
    packages.install(folder, "small")
    return folder


@pytest.fixture(scope="module")
def client(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(tmp_path_factory.mktemp("several"), models_dir=installed) as client:
        for gallery, embedder in (("large", None), ("small", "small")):
            client.post("/v1/galleries", json={"id": gallery, "embedder": embedder}).raise_for_status()
        yield client


def test_galleries_of_different_packages_are_used_side_by_side(client: httpx.Client, installed: Path) -> None:
    thresholds = {"small": 0.7}
    for gallery, package in (("large", select(find_packages(installed), "sface").id), ("small", "small@1")):
        assert client.get(f"/v1/galleries/{gallery}").json()["embedder"] == package
        path = f"/v1/galleries/{gallery}/subjects/eileen"
        enrolled = client.post(f"{path}/faces", files={"images": COLLINS}).raise_for_status().json()
        assert enrolled["model"] == package
        found = client.post(f"/v1/galleries/{gallery}/identify?fmr=0.01", files={"image": COLLINS}).json()
        assert (found["model"], found["fmr"]) == (package, 0.01)
        (face,) = found["faces"]
        assert (face["decision"], face["candidates"][0]["subject"]) == ("known", "eileen")
        assert face["threshold"] == pytest.approx(thresholds.get(gallery, face["threshold"]))
        verified = client.post(f"{path}/verify?fmr=0.01", files={"image": AGAIN}).raise_for_status().json()
        assert (verified["model"], verified["threshold"]) == (package, face["threshold"])
        (row,) = client.get(f"{path}/faces").json()["faces"]
        assert row["model"] == package
    assert face["threshold"] == pytest.approx(0.7)
    refused = client.post("/v1/galleries/small/identify?fmr=0.5", files={"image": COLLINS})
    assert error_of(refused, 422, "operating_point_unavailable") == {"lowest": 1e-6, "highest": 0.1}


def test_embed_and_verify_take_the_default_or_the_model_named(client: httpx.Client) -> None:
    for model, dimension in (
        (None, 128),
        ("sface", 128),
        ("small", packages.DIMENSION),
        ("small@1", packages.DIMENSION),
    ):
        params = {} if model is None else {"model": model}
        answer = client.post("/v1/embed", files={"image": COLLINS}, params=params).raise_for_status().json()
        assert len(answer["faces"][0]["embedding"]) == dimension
        verified = client.post("/v1/verify", files={"image1": COLLINS, "image2": HOPPER}, data=params).json()
        assert verified["model"] == answer["model"]
        assert answer["model"].startswith(f"{model or 'sface'}".split("@")[0])
    for path, files in (("embed", {"image": COLLINS}), ("verify", {"image1": COLLINS, "image2": HOPPER})):
        refused = client.post(f"/v1/{path}?model=yunet", files=files)
        assert "small@1" in error_of(refused, 422, "package_unknown")["known"]


def test_models_and_metrics_say_which_run(client: httpx.Client, installed: Path) -> None:
    client.post("/v1/embed?model=small", files={"image": COLLINS}).raise_for_status()
    packages.install(installed, "idle")
    try:
        models = {model["name"]: model for model in client.get("/v1/models").json()["models"]}
        assert {name: model["loaded"] for name, model in models.items()} == {
            "yunet": True,
            "sface": True,
            "small": True,
            "idle": False,
        }
        info = [line for line in client.get("/metrics").text.splitlines() if line.startswith("likeness_model_info{")]
        assert {name for name in models if any(f'model="{name}@' in line for line in info)} == set(models) - {"idle"}
    finally:
        shutil.rmtree(installed / "idle-1")


def test_a_bad_manifest_is_listed_and_new_points_decide_at_once(client: httpx.Client, installed: Path) -> None:
    files = {"image1": COLLINS, "image2": HOPPER}
    before = client.post("/v1/verify?model=small&fmr=0.01", files=files).json()
    (installed / "bad").mkdir()
    (installed / "bad" / "manifest.json").write_text("{")
    package = find_packages(installed)["small@1"]
    low = before["score"] - 0.1
    points = packages.calibration({1e-1: low - 0.1, 1e-2: low})
    try:
        write_manifest(package.folder, package.manifest.model_copy(update={"calibrations": (points,)}))
        listed = client.get("/v1/models").raise_for_status().json()
        (skipped,) = listed["skipped"]
        assert (skipped["folder"], skipped["problem"].split()[0]) == ("bad", "bad/manifest.json")
        (small,) = (model for model in listed["models"] if model["name"] == "small")
        assert small["calibrations"][0]["points"][1]["threshold"] == low
        assert small["warnings"] == []
        after = client.post("/v1/verify?model=small&fmr=0.01", files=files).json()
        assert (after["threshold"], after["match"]) == (pytest.approx(low), True)
        foreign = points.model_copy(update={"measured_with": "0" * 64})
        write_manifest(package.folder, package.manifest.model_copy(update={"calibrations": (foreign,)}))
        listed = client.get("/v1/models").raise_for_status().json()
        (small,) = (model for model in listed["models"] if model["name"] == "small")
        assert (small["calibrations"], len(small["warnings"])) == ([], 1)
        assert (
            client.post("/v1/verify?model=small&fmr=0.01", files=files).status_code == httpx.codes.UNPROCESSABLE_ENTITY
        )
    finally:
        shutil.rmtree(installed / "bad")
        write_manifest(package.folder, package.manifest)


@pytest.mark.long
def test_galleries_packages_run_from_the_start_and_one_that_is_gone_stops_its_own_alone(
    tmp_path: Path, installed: Path
) -> None:
    models = tmp_path / "models"
    shutil.copytree(installed, models)
    data = tmp_path / "data"
    with running(data, models_dir=models, max_embedders=2) as client:
        for gallery in ("large", "small"):
            embedder = "sface" if gallery == "large" else "small"
            client.post("/v1/galleries", json={"id": gallery, "embedder": embedder}).raise_for_status()
            client.post(f"/v1/galleries/{gallery}/subjects/eileen/faces", files={"images": COLLINS}).raise_for_status()
    for kept, loaded in ((1, {"sface"}), (2, {"sface", "small"})):
        with running(data, models_dir=models, max_embedders=kept) as client:
            models_now = client.get("/v1/models").json()["models"]
            assert {model["name"] for model in models_now if model["task"] == "embed" and model["loaded"]} == loaded
    (models / "small-1" / "model.onnx").write_bytes(b"damaged")
    with running(data, models_dir=models) as client:
        assert client.get("/readyz").status_code == 200
        details = error_of(
            client.post("/v1/galleries/small/identify", files={"image": COLLINS}), 503, "package_unavailable"
        )
        assert details == {"package": "small@1", "reason": "package_hash_mismatch"}
        assert client.get("/v1/galleries/small").json()["faces"] == 1
        assert client.get("/v1/galleries/small/check").json()["ok"]
        found = client.post("/v1/galleries/large/identify", files={"image": COLLINS}).raise_for_status().json()
        assert found["faces"][0]["candidates"][0]["subject"] == "eileen"
        assert client.delete("/v1/galleries/small").status_code == 204
