"""Views on the device, pruning, and the two commands that use them, at a small size on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from app.errors import InvalidInput
from app.models.opening import open_embedder
from app.package.folders import load_package
from tests.support.crops import png_of, some_crops
from tests.support.runs import differing
from training import checkpoint
from training.__main__ import app
from training.adaptation import adapt as adapting
from training.adaptation import views as views_module
from training.adaptation.adapt import precision_on, read_conditions, recipe_of
from training.adaptation.channels import choose, fit, prune
from training.adaptation.distil import OnlineViews, SharedMaps, open_trainer
from training.adaptation.narrow import load_mobilenet, read_widths
from training.adaptation.views import FOR, ConditionConfig, ViewConfig, Views, conditions_for, resize_tables
from training.backbones.imported import import_package
from training.backbones.mobilenet import WIDTHS, MobileNet
from training.data.crops import Crops
from training.model import FaceModel, tower
from training.run.trainer import Trainer

CPU = torch.device("cpu")
SMALL = [4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]


def pixels(count: int) -> torch.Tensor:
    return torch.from_numpy(some_crops(count)).permute(0, 3, 1, 2).float()


def photos_in(folder: Path, count: int) -> str:
    """Crops of nobody in particular as files, for `--photos`."""
    (folder / "nobody").mkdir(parents=True)
    for number, crop in enumerate(some_crops(count)):
        (folder / "nobody" / f"{number}.png").write_bytes(png_of(crop))
    return str(folder)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("quality", [40, 75, 95])
def test_jpeg_on_the_device_is_near_the_codecs(quality: int) -> None:
    x = pixels(6)
    found = Views(112, CPU).jpeg(x, torch.full((6,), float(quality))).permute(0, 2, 3, 1).numpy()
    crops = x.permute(0, 2, 3, 1).numpy().astype(np.uint8)
    for crop, ours in zip(crops, found, strict=True):
        _, data = cv2.imencode(".jpg", crop[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
        theirs = np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR))[:, :, ::-1].astype(float)
        assert np.abs(ours - theirs).mean() < 1.5
        if quality < 95:  # crops are JPEGs already: at 95 the codec changes less than colours' enlarging differs
            assert np.abs(ours - theirs).mean() < np.abs(crop - theirs).mean()


@pytest.mark.long
def test_resizing_by_tables_is_opencvs() -> None:
    crop = some_crops(1)[0].astype(np.float32)
    tables = resize_tables(112).numpy()
    for side in (8, 28, 61, 112):
        down = tables[0, side]
        small = np.einsum("ij,jkc,lk->ilc", down[:side], crop, down[:side])
        np.testing.assert_allclose(small, cv2.resize(crop, (side, side), interpolation=cv2.INTER_AREA), atol=0.02)
        up = tables[1, side][:, :side]
        large = np.einsum("ij,jkc,lk->ilc", up, small, up)
        wanted = cv2.resize(small.astype(np.float32), (112, 112), interpolation=cv2.INTER_LINEAR)
        np.testing.assert_allclose(large, wanted, atol=0.05)


def test_views_follow_from_the_seed_and_stay_pixels() -> None:
    views, x = Views(112, CPU), pixels(8)
    every = ViewConfig(blend=0.5, colour=1, grey=0.5, low_resolution=1, blur=1, noise=1, cover=1)
    worst = ConditionConfig(small=1, jpeg=1, blur=1, dark=1, noise=1, cover=1, clean=0)
    first = views.degraded(views.fresh(x, x.roll(1, 0), every, generator(3)), worst, generator(4))
    again = views.degraded(views.fresh(x, x.roll(1, 0), every, generator(3)), worst, generator(4))
    other = views.fresh(x, x.roll(1, 0), every, generator(5))
    assert torch.equal(first, again)
    assert not torch.equal(views.fresh(x, x.roll(1, 0), every, generator(3)), other)
    assert first.shape == x.shape
    assert 0 <= float(first.min()) <= float(first.max()) <= 255
    assert torch.equal(first, first.round())


def test_conditions_that_never_happen_change_nothing() -> None:
    x = pixels(4)
    never = ConditionConfig(small=0, jpeg=0, blur=0, dark=0, noise=0, cover=0, clean=0)
    assert torch.allclose(Views(112, CPU).degraded(x, never, generator()), x, atol=1)


def test_conditions_of_probability_0_draw_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with the default conditions follows from its seed as before there were others."""
    drawn: list[float] = []
    happens = views_module.happens

    def noted(draw: torch.Generator, probability: float, count: int) -> torch.Tensor:
        drawn.append(probability)
        return happens(draw, probability, count)

    monkeypatch.setattr(views_module, "happens", noted)
    config = ConditionConfig()
    Views(112, CPU).degraded(pixels(2), config, generator())
    often = config.dark, config.blur, config.noise, config.cover, config.small, config.jpeg, config.clean
    assert tuple(drawn) == often


def test_greedy_choice_finds_the_inputs_that_matter() -> None:
    draw = generator()
    sources = torch.randn(3, 4000, generator=draw, dtype=torch.float64)
    x = torch.cat([sources, 0.01 * torch.randn(5, 4000, generator=draw, dtype=torch.float64)])
    weight = torch.randn(6, 8, generator=draw, dtype=torch.float64)
    assert choose(weight, torch.cov(x), 3) == [0, 1, 2]
    weights, offsets, missed = fit(x[:3], weight @ x + 2)
    torch.testing.assert_close(weights, weight[:, :3], atol=0.02, rtol=0)
    torch.testing.assert_close(offsets, torch.full((6,), 2.0, dtype=torch.float64), atol=0.02, rtol=0)
    assert missed < 1e-3


@pytest.mark.long
def test_sface_is_a_mobilenet_and_a_pruned_one_resembles_it(tmp_path: Path) -> None:
    package = load_package(Path("models/sface"))
    teacher = load_mobilenet(package)
    x = (pixels(24) - 127.5) / 127.5
    with torch.no_grad():
        target = torch.nn.functional.normalize(teacher(x))
        imported = import_package(package, tmp_path)(torch.from_numpy(some_crops(24)))
        assert float((target * torch.nn.functional.normalize(imported)).sum(1).min()) > 0.99999
        widths = [max(8, 3 * width // 4) for width in WIDTHS]
        narrow = prune(teacher, widths, x[:12])
        found = torch.nn.functional.normalize(narrow.network.eval()(x[12:]))
    assert [len(kept) for kept in narrow.kept] == widths
    score = float((found * target[12:]).sum(1).mean())
    assert score > 0.5, f"cosine {score:.3f} to the original"


def run_of(out: Path, steps: int, *, frozen: bool = False, resume: bool = False) -> Trainer:
    """A narrow MobileNet that learns from another one by views and maps."""
    torch.manual_seed(0)
    teacher, pixels = MobileNet(16, widths=SMALL), some_crops(6)
    crops = Crops(pixels, np.arange(6), np.zeros(6, np.int64), ["anybody"])
    recipe = recipe_of(
        ["crops"],
        "another",
        CPU,
        sampler={"batch_size": 4},
        model={
            "backbone": "mobilenet",
            "dim": 16,
            "options": {"widths": SMALL},
            "frozen_statistics": frozen,
        },
        distill={"relation": 1.0},
        schedule={"warmup": 1},
        train={"steps": steps, "precision": "fp32"},
    )
    maps = SharedMaps(teacher, {3: torch.arange(8), 12: torch.arange(8)}, 0.5 * steps)
    online = OnlineViews(
        crops,
        FaceModel(teacher),
        recipe,
        ViewConfig(),
        CPU,
        conditions=ConditionConfig() if frozen else None,
        maps=maps,
    )
    trainer = open_trainer(recipe, crops, online, out, resume=resume)
    student = tower(trainer.model).backbone
    assert isinstance(student, MobileNet)
    maps.watch(student)
    return trainer


def test_a_run_is_not_resumed_with_other_steps(tmp_path: Path) -> None:
    run_of(tmp_path, 4).save()
    with pytest.raises(InvalidInput, match="other views or steps") as refused:
        run_of(tmp_path, 5, resume=True)
    assert refused.value.code == "recipe_mismatch"


def test_a_resumed_run_makes_the_same_steps(tmp_path: Path) -> None:
    whole = run_of(tmp_path / "whole", 4)
    whole.train()
    run_of(tmp_path / "half", 4).train(until=2)
    resumed = run_of(tmp_path / "half", 4, resume=True)
    assert resumed.progress.step == 2
    resumed.train()
    assert differing(whole.state(), resumed.state()) == []


def test_maps_count_less_and_less_and_only_until_their_step(tmp_path: Path) -> None:
    run = run_of(tmp_path, 4)
    parts = [run.train_step().parts for _ in range(3)]
    assert ["maps" in step_parts for step_parts in parts] == [True, True, False]
    assert all(set(step_parts) - {"maps"} == {"distill_embedding", "distill_relation"} for step_parts in parts)


def test_the_views_of_a_step_are_those_of_its_seed(tmp_path: Path) -> None:
    online = run_of(tmp_path, 4).material.online
    assert online is not None
    (first, target), (other, _), (again, same) = (online.batch(number) for number in (0, 1, 0))
    assert torch.equal(first.images, again.images)
    assert torch.equal(target, same)
    assert not torch.equal(first.images, other.images)
    assert first.images.shape == (4, 112, 112, 3)
    torch.testing.assert_close(target.norm(dim=1), torch.ones(4))


def test_frozen_statistics_stay_and_weights_move(tmp_path: Path) -> None:
    run = run_of(tmp_path, 2, frozen=True)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.train_step()
    after = run.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if "running" in name)
    assert not torch.equal(before["backbone.stem.0.weight"], after["backbone.stem.0.weight"])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("smal = 0.5", "smal: There is no such field.*Known are small"),
        ("small = 2", "small: Give at most 1"),
        ("small = true", "small: Give a number"),
        ("side = 12", "side: .*valid tuple"),
        ("side = [40, 12]", "side: .*must rise"),
        ("side = [", "cannot be read"),
    ],
)
def test_wrong_conditions_are_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "conditions.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=what):
        read_conditions(path)


@pytest.mark.parametrize(
    ("device", "amx", "chosen"), [("cuda", True, "fp16"), ("cpu", True, "bf16"), ("cpu", False, "fp32")]
)
def test_precision_is_what_the_device_distils_fastest_in(
    monkeypatch: pytest.MonkeyPatch, device: str, amx: bool, chosen: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert precision_on(torch.device(device)) == chosen


def test_conditions_are_read_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "conditions.toml"
    path.write_text("small = 1\nside = [14, 28]\n")
    assert read_conditions(path) == ConditionConfig(small=1, side=(14, 28))


def test_conditions_by_name_are_drawn_alone_and_change_what_they_name() -> None:
    x = pixels(8)
    views = Views(112, x.device)
    for name in FOR:
        config = conditions_for([name]).model_copy(update={"clean": 0.0})
        given = config.model_dump()
        asked = {key: 1.0 for key, value in given.items() if isinstance(value, float) and value > 0}
        seen = views.degraded(x, config.model_copy(update=asked), torch.Generator().manual_seed(1))
        changed = (seen != x).any(dim=1)
        assert changed.any(), name
        if name in ("mask", "dark-glasses"):
            low, high = changed[:, 65:].float().mean(), changed[:, :60].float().mean()
            assert (low > 0.3 > high) if name == "mask" else (high > 0.1 > low), name
        if name in ("grey", "infrared-like"):
            assert (seen[:, 0] - seen[:, 2]).abs().mean() < (20 if name == "infrared-like" else 1), name
    with pytest.raises(InvalidInput, match="no condition 'masks'"):
        conditions_for(["masks"])


def test_adapt_takes_conditions_by_name_or_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[ConditionConfig] = []

    def far_enough(*_args: object, conditions: ConditionConfig, **_more: object) -> None:
        given.append(conditions)
        raise InvalidInput("far enough")

    monkeypatch.setattr(adapting, "OnlineViews", far_enough)
    monkeypatch.setattr(adapting, "read_photos", lambda *_args: [])
    monkeypatch.setattr(adapting, "import_package", lambda *_args, **_more: torch.nn.Identity())
    (tmp_path / "own.toml").write_text("grey = 0.5\n")
    start = ["adapt", "sface", "--photos", "x", "--name", "adapted", "--device", "cpu"]
    said = [
        CliRunner().invoke(app, [*start, *more]).output
        for more in (
            ["--for", "mask, blur"],
            ["--conditions", str(tmp_path / "own.toml")],
            ["--for", "mask", "--conditions", str(tmp_path / "own.toml")],
        )
    ]
    assert given == [conditions_for(["mask", "blur"]), ConditionConfig(grey=0.5)]
    assert "can't be used together" in said[2]


def test_widths_are_fourteen_and_no_wider_than_the_original() -> None:
    assert read_widths(",".join(map(str, WIDTHS))) == list(WIDTHS)
    for text in ("8", "a," * 13 + "8", ",".join(["2048"] * 14)):
        with pytest.raises(InvalidInput):
            read_widths(text)


@pytest.mark.long
def test_adapt_makes_a_package_that_the_service_loads(tmp_path: Path) -> None:
    models = Path("models").resolve()
    photos = photos_in(tmp_path / "photos", 4)
    target = tmp_path / "models"
    target.mkdir()
    (target / "sface-slim").symlink_to(models / "sface-slim")
    arguments = ["adapt", "sface-slim", "--photos", photos, "--name", "adapted", "--steps", "2"]
    arguments += ["--batch", "2", "--models", str(target), "--out", str(tmp_path / "run"), "--device", "cpu"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 2
    package = load_package(target / "adapted")
    crops = some_crops(3)
    session = open_embedder(package, tmp_path / "cache", device="cpu", threads=1)
    old = open_embedder(load_package(models / "sface-slim"), tmp_path / "cache", device="cpu", threads=1)
    score = (session.run(crops) * old.run(crops)).sum(axis=1).min()
    assert 0.9 < score <= 1.0001
    kept = (target / "adapted" / "model.onnx").read_bytes()
    again = CliRunner().invoke(app, [*arguments[:-3], str(tmp_path / "other run"), *arguments[-2:]])
    assert (again.exit_code, "Choose another --name" in again.output) == (2, True), again.output
    assert (target / "adapted" / "model.onnx").read_bytes() == kept


@pytest.mark.long
def test_prune_makes_a_checkpoint_that_export_takes(tmp_path: Path) -> None:
    out = tmp_path / "slim"
    arguments = ["prune", "sface", "--photos", photos_in(tmp_path / "photos", 3), "--out", str(out), "--steps", "1"]
    arguments += ["--batch", "2", "--device", "cpu", "--widths", "8,8,8,8,16,16,16,16,16,16,16,16,16,16"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    module = checkpoint.trained_embedder(checkpoint.load(checkpoint.resolve(out)))
    vectors = module(torch.from_numpy(some_crops(2)))
    assert vectors.shape == (2, 128)
