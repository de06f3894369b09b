"""Models that come measured are made of what their recipe names, and are what was measured."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from app.errors import PackageTemplatesDiffer, Unusable
from app.models import measured
from app.models.measured import Download, Fused, FusedMember, MeasuredModel, OpenVino, add_measured, measured_models
from app.models.opening import open_embedder
from app.models.packages import write_manifest
from app.package.folders import find_packages, load_package
from app.package.golden import golden_crops, record
from app.package.manifest import Manifest
from app.types import Vectors
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.commands import run


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve the folder of the research data's models; the value is its address."""
    folder = request.getfixturevalue("shared_data") / "models"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def made_of(one: Manifest, other: Manifest, vectors: Vectors) -> MeasuredModel:
    """A pair of two packages that was measured with these golden vectors."""
    members = (FusedMember(package=one.id, weight=0.5), FusedMember(package=other.id, weight=0.5))
    manifest = packages.manifest(name="pair", dimension=16, calibrations=(packages.calibration(packages.MEASURED),))
    kept = manifest.model_copy(update={"golden": record(lambda _crops: vectors)})
    return MeasuredModel(recipe=Fused(kind="fused", members=members), manifest=kept)


def test_a_pair_is_made_with_the_points_that_it_was_measured_with(tmp_path: Path) -> None:
    cache, models = tmp_path / "cache", tmp_path / "models"
    one, other = (packages.install(models, name, seed=seed) for seed, name in enumerate(("one", "other")))
    crops = golden_crops()
    parts = [open_embedder(each, cache, "cpu").run(crops) for each in (one, other)]
    model = made_of(one.manifest, other.manifest, np.concatenate(parts, axis=1) / np.sqrt(2))
    made = add_measured(model, partial(find_packages, models), models, cache)
    assert made.warnings == (), "its points are bound to the file that was made here"
    assert [each.points for each in made.manifest.calibrations] == [each.points for each in model.manifest.calibrations]
    assert made.manifest.sha256 == hashlib.sha256((made.folder / "model.onnx").read_bytes()).hexdigest()
    with pytest.raises(Unusable) as caught:
        add_measured(model, partial(find_packages, models), models, cache)
    assert caught.value.code == "package_exists"


def test_other_templates_than_those_measured_are_refused(tmp_path: Path) -> None:
    models = tmp_path / "models"
    one, other = (packages.install(models, name, seed=seed) for seed, name in enumerate(("one", "other")))
    wrong = np.eye(2, 16, dtype=np.float32)
    with pytest.raises(PackageTemplatesDiffer):
        add_measured(made_of(one.manifest, other.manifest, wrong), partial(find_packages, models), models, tmp_path)
    assert not (models / "pair").exists()


def test_what_is_shipped_is_measured_and_pinned() -> None:
    for model in measured_models().values():
        manifest = model.manifest
        assert manifest.golden is not None
        assert not manifest.licence.non_commercial
        assert any(each.default for each in manifest.calibrations)
        assert manifest.bias_card is not None
        assert manifest.without_foreign_points() == (manifest, ())
    best = measured_models()["best"].recipe
    assert isinstance(best, Fused)
    own = load_package(PROJECT / "models" / "sface").id
    assert {each.package for each in best.members} == {own, measured_models()["intel-face"].manifest.id}


@pytest.mark.long
def test_best_and_what_it_lacks_are_pulled_by_one_command(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("sface", "yunet"):
        package = load_package(PROJECT / "models" / name)
        write_manifest(models / name, package.manifest)
    monkeypatch.setattr(measured, "measured_models", lambda: {each.name: each for each in _here(served)})
    done = run(tmp_path / "data", "models", "pull", "best", "--json", models_dir=models)
    assert done.returncode == 0, done.stderr
    assert [row["model"] for row in done.rows] == [measured_models()["best"].manifest.id]
    assert not [*(tmp_path / "data").rglob("*.xml"), *(tmp_path / "data").rglob("*.bin")]
    found = find_packages(models, tmp_path / "data")
    for name in ("best", "intel-face"):
        made, shipped = load_package(tmp_path / "data" / "packages" / name), measured_models()[name].manifest
        assert made.warnings == ()
        assert (made.manifest.sha256, made.manifest) == (shipped.sha256, shipped), "made as it was measured"
        assert made.id in found
    again = run(tmp_path / "data", "models", "pull", "best", models_dir=models)
    assert again.returncode == 0, again.stderr


def _here(address: str) -> Iterator[MeasuredModel]:
    """Yield the shipped models, their downloads from another address."""
    for model in measured_models().values():
        recipe = model.recipe
        if isinstance(recipe, OpenVino):
            recipe = recipe.model_copy(
                update={"graph": _moved(recipe.graph, address), "weights": _moved(recipe.weights, address)}
            )
        yield model.model_copy(update={"recipe": recipe})


def _moved(file: Download, address: str) -> Download:
    return file.model_copy(update={"url": f"{address}/{file.url.rpartition('/')[2]}"})


@pytest.mark.long
def test_a_model_is_made_of_files_in_a_folder_without_a_network(shared_data: Path, tmp_path: Path) -> None:
    """The two files that the docs name, and nothing else; they stay where they are."""
    page = (PROJECT / "docs" / "how-to" / "change-the-model.md").read_text(encoding="utf-8")
    for file in measured_models()["best"].downloads:
        assert file.sha256 in page
        assert file.url.rpartition("/")[0] in page
    for name in ("intel-face", "best"):
        done = run(tmp_path / "data", "models", "pull", name, "--from", shared_data / "models")
        assert done.returncode == 0, done
    listed = {row["name"]: row for row in run(tmp_path / "data", "models", "pull", "--json").rows}
    assert (listed["best"]["installed"], listed["auraface-v1"]["installed"]) == (True, False)
    assert list((tmp_path / "data" / "models").glob("*.bin")) == []
