"""An exported package keeps the contract, equals the torch model, and is measured on its own file."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="training needs the train extra")

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from app.errors import InvalidInput, Unusable
from app.inference.session import Session
from app.models.opening import open_embedder
from app.package import golden
from app.package.folders import load_package
from tests.conftest import PROJECT
from tests.support.commands import run as run_command
from tests.support.packages import package as write_package
from tests.support.ready import give_models
from tests.support.runs import flat_people, small_recipe, small_trainer
from tests.support.service import COLLINS, HOPPER
from training import checkpoint
from training.__main__ import app as training_app
from training.backbones import build
from training.commands.try_package import identify_drawn, served
from training.export import PARITY, PARITY_BATCHES, About, Evaluation, export, parity_crops, to_fp16
from training.model import EmbedderExport, FaceModel, embed, tower
from training.packages import MODELS, how_to_measure, how_to_serve


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    recipe = small_recipe(model={"input_size": 48, "options": {"width": 0.125}}, train={"steps": 20})
    small_trainer(recipe, folder, held_out=flat_people(10, 8, seed=7)).train()
    return folder


@pytest.fixture(scope="module")
def packages(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    unseen = flat_people(30, 6, seed=8)
    export(
        run,
        About("small", licence="Apache-2.0", non_commercial=False),
        models,
        variants=("fp32", "fp16", "int8"),
        calibration=flat_people().images(range(24)),
        evaluation=Evaluation(unseen, "thirty people of flat colours"),
    )
    return models


@pytest.mark.long
@pytest.mark.parametrize("name", ["small", "small-fp16", "small-int8"])
def test_a_package_is_served_and_keeps_the_contract(packages: Path, tmp_path: Path, name: str) -> None:
    package = load_package(packages / name)
    session = open_embedder(package, tmp_path, "cpu")
    crops = parity_crops(7)
    together = session.run(crops)
    assert together.shape == (7, 8)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-3)
    assert package.manifest.golden is not None
    vectors = session.run(golden.golden_crops())
    assert (vectors * np.array(package.manifest.golden.templates)).sum(axis=1).min() > golden.LEAST_COSINE
    assert np.allclose(together[:3], session.run(crops[:3]), atol=1e-5)
    onnx.checker.check_model(str(packages / name / "model.onnx"))


@pytest.fixture(scope="module")
def models(packages: Path) -> Path:
    """The packages with the detector beside them, as a folder of models that a server can start from."""
    shutil.copytree(PROJECT / "models" / "yunet", packages / "yunet")
    return packages


@pytest.mark.long
def test_a_package_is_listed_enrolled_and_identified_with_over_rest(models: Path, tmp_path: Path) -> None:
    give_models(tmp_path / "data")
    with served("small", models, tmp_path) as client:
        rows = {row["id"]: row for row in run_command(tmp_path / "data", "models", "list", "--json").rows}
        assert set(rows) == {"small@1", "small-fp16@1", "small-int8@1", load_package(models / "yunet").id}
        assert (rows["small@1"]["device"], rows["small@1"]["dimension"]) == ("cpu", 8)
        assert "device" not in rows["small-fp16@1"], "only the one that LIKENESS_EMBEDDER names is loaded"
        assert client.create_gallery("crew").embedder == "small@1"
        crew = {"eileen": COLLINS, "grace": HOPPER}
        assert all(client.enroll("crew", who, [photo]).model == "small@1" for who, photo in crew.items())
        for who, photo in crew.items():
            (face,) = client.identify("crew", photo).faces
            assert face.candidates[0].subject == who
            assert face.candidates[0].score == pytest.approx(1, abs=1e-4)
            assert face.decision == "known"
        tried = identify_drawn(client, "small", people=2, seed=1)
    assert (tried.package, tried.people, tried.enrolled, tried.searches, tried.strangers) == ("small@1", 2, 2, 4, 2)
    assert 0 <= tried.known <= tried.first <= 4


def test_a_package_that_is_not_there_is_not_tried(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="nonesuch"), served("nonesuch", PROJECT / "models", tmp_path):
        raise AssertionError("it started")


@pytest.mark.long
def test_the_file_equals_the_torch_model_with_the_averaged_weights(run: Path, packages: Path) -> None:
    recipe = small_recipe(model={"input_size": 48, "options": {"width": 0.125}}, train={"steps": 20})
    trainer = small_trainer(recipe, run)
    trainer.restore(run / "best.pt")
    crops = parity_crops(max(PARITY_BATCHES))
    wanted = embed(tower(trainer.averaged()), torch.from_numpy(crops)).numpy()
    session = Session(packages / "small" / "model.onnx", "cpu")
    for n in PARITY_BATCHES:
        assert np.abs(session.run(crops[:n])[0].astype(np.float32) - wanted[:n]).max() <= PARITY


@pytest.mark.long
def test_the_manifest_holds_the_parity_and_points_measured_on_the_file(packages: Path) -> None:
    manifest = load_package(packages / "small").manifest
    figures = manifest.provenance.figures
    differences = figures["parity"]
    assert isinstance(differences, dict)
    assert set(differences) == {"1", "3", "7"}
    assert all(float(str(value)) <= PARITY for value in differences.values())
    (calibration,) = manifest.calibrations
    assert calibration.measured_on == "thirty people of flat colours"
    assert (calibration.mated, calibration.comparisons) == (30 * 15, 180 * 179 // 2 - 30 * 15)
    unseen = flat_people(30, 6, seed=8)
    vectors = Session(packages / "small" / "model.onnx", "cpu").run(unseen.images(range(180)))[0].astype(np.float64)
    scores = vectors @ vectors.T
    rows, columns = np.triu_indices(180, 1)
    nonmated = scores[rows, columns][unseen.labels[rows] != unseen.labels[columns]]
    for point in calibration.points:
        assert np.mean(nonmated >= point.threshold + 1e-6) <= point.fmr
        assert np.mean(nonmated >= point.threshold - 1e-5) > point.fmr * 0.9


@pytest.mark.long
def test_variants_are_packages_of_their_own_with_their_cost_measured(packages: Path) -> None:
    sizes = {}
    for variant in ("fp16", "int8"):
        manifest = load_package(packages / f"small-{variant}").manifest
        assert manifest.name == f"small-{variant}"
        assert float(str(manifest.provenance.figures["cosine_to_fp32_mean"])) > {"fp16": 0.999, "int8": 0.8}[variant]
        assert "fnmr_at_fmr_0.001" in manifest.provenance.figures
        sizes[variant] = (packages / f"small-{variant}" / "model.onnx").stat().st_size
    assert sizes["fp16"] < (packages / "small" / "model.onnx").stat().st_size


@pytest.mark.long
def test_half_precision_holds_no_float32_weights_inside_the_network(packages: Path) -> None:
    half = to_fp16(onnx.load(packages / "small" / "model.onnx"))
    floats = [t for t in half.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and np.prod(t.dims) > 100]
    assert {tuple(sorted(t.dims)) for t in floats} <= {(48, 112)}  # the resize of the pixels
    assert half.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_a_zero_embedding_stays_finite() -> None:
    class Nothing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :8] * 0

    from training.model import FaceModel  # noqa: PLC0415  beside torch's own late import

    out = EmbedderExport(FaceModel(Nothing()))(torch.from_numpy(parity_crops(2)))
    assert torch.isfinite(out).all()


def test_the_second_tower_of_a_pseudo_siamese_run_is_exported(tmp_path: Path) -> None:
    recipe = small_recipe(
        losses=[{"name": "triplet"}], sampler={"name": "pk", "images": 2}, model={"towers": "pseudo_siamese"}
    )
    trainer = small_trainer(recipe, tmp_path)
    saved = checkpoint.load(trainer.save())
    crops = torch.from_numpy(parity_crops(2))
    first, second = (checkpoint.trained_embedder(saved, second_tower=which)(crops) for which in (False, True))
    assert torch.allclose(first, embed(tower(trainer.averaged(), 0), crops), atol=1e-5)
    assert torch.allclose(second, embed(tower(trainer.averaged(), 1), crops), atol=1e-5)
    assert not torch.allclose(first, second, atol=1e-2)


def test_a_second_tower_needs_a_run_that_has_one(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        export(run, About("x"), tmp_path, calibration=parity_crops(2), evaluation=None, second_tower=True)
    assert caught.value.code == "no_second_tower"


def test_a_package_is_not_replaced_unasked(run: Path, tmp_path: Path) -> None:
    write_package(tmp_path / "mine")
    before = (tmp_path / "mine" / "model.onnx").read_bytes()
    command = ["export", str(run), "--name", "mine", "--out", str(tmp_path), "--unmeasured"]
    refused = CliRunner().invoke(training_app, command)
    assert (refused.exit_code, "package_exists" in refused.output) == (2, True), refused.output
    assert (tmp_path / "mine" / "model.onnx").read_bytes() == before


@pytest.mark.long
def test_an_unmeasured_package_is_said_to_decide_nothing_and_how_to_measure_it(run: Path, tmp_path: Path) -> None:
    made = CliRunner().invoke(
        training_app, ["export", str(run), "--name", "mine", "--out", str(tmp_path), "--unmeasured"]
    )
    assert made.exit_code == 0, made.output
    assert "decides nothing" in made.output
    assert f"python -m training evaluate operating-points --package {tmp_path / 'mine'} " in made.output
    assert f"cp -r {tmp_path / 'mine'} data/packages/ && LIKENESS_EMBEDDER=mine make serve" in made.output
    assert "--package mine " in how_to_measure(MODELS / "mine")
    assert how_to_serve(MODELS / "mine") == "LIKENESS_EMBEDDER=mine make serve"


def test_exporting_leaves_a_parametrized_model_as_it_is() -> None:
    """Also one whose own layers are parametrized: torch's removal changes the class that the copy shares."""
    net = FaceModel(build("mobilefacenet", dim=8, size=112))
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    for layer in layers:
        parametrizations.weight_norm(layer)
    crops = torch.from_numpy(parity_crops(2))
    before = embed(net, crops)
    exported = EmbedderExport(net)
    assert not any(parametrize.is_parametrized(layer) for layer in exported.modules())
    torch.testing.assert_close(exported(crops), before, atol=1e-5, rtol=0)
    assert all(parametrize.is_parametrized(layer, "weight") for layer in layers)
    torch.testing.assert_close(embed(net, crops), before)
