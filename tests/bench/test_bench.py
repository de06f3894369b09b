"""The benchmark compares what ran side by side, and its load generator can't be fooled by a server that stalls."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from app.errors import InvalidInput, Unusable
from app.models.commands import sample_photos
from bench import __main__ as command
from bench.contenders import searching
from bench.figures import PEER, Goal, compared
from bench.galleries import create, enroll_photos, people, probes
from bench.load import Load, Target, closed_loop, open_loop
from bench.parts import PARTS
from bench.parts import latency as latency_part
from bench.parts.device import searched_on
from bench.parts.tails import first_come
from bench.run import Effort, Run
from bench.stages import Stages, open_stages
from tests.conftest import PROJECT
from tests.support.cpu_gpu import CpuGpu
from tests.support.live import LiveServer
from tests.support.ready import fill_cache, give_models
from training.evaluation.speed import Speeds, Spread, contest
from training.recipe import load_recipe

pytestmark = pytest.mark.long

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_each_contender_has_its_turn_in_every_round() -> None:
    turns: list[str] = []

    def player(name: str, items: int) -> int:
        turns.append(name)
        time.sleep(0.001)
        return items

    speeds = contest({"a": lambda: player("a", 30), "b": lambda: player("b", 10)}, 3, shortest_s=0.0005)
    assert turns == ["a", "b", "b", "a", "a", "b", "b", "a"]  # the first round warms up
    assert [len(values) for values in speeds.rounds.values()] == [3, 3]


def test_a_ratio_is_taken_within_each_round() -> None:
    """A machine that gets ten times slower doesn't change it."""
    speeds = Speeds({"ours": np.array([200.0, 20.0, 2.0]), "theirs": np.array([100.0, 10.0, 1.0])})
    assert speeds.ratio("ours", "theirs") == Spread(2.0, 2.0, 2.0)
    assert speeds.against("ours", 2.0) == Spread(10.0, 5.5, 55.0)
    assert speeds.times("ours", 2.0).ratio("ours", "theirs").median == 4.0
    figure = compared("part", "work", speeds, "ours", "theirs", unit="x/s", goal=Goal(2.0))
    assert (figure.ours, figure.details["theirs"], figure.reached) == (20.0, 10.0, True)


class Slow(threading.Thread):
    """A server that answers each request at once, but for one stall of all of them."""

    def __init__(self, stall_after: int, stall_s: float) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.left, self.stall_s = stall_after, stall_s
        self.lock = threading.Lock()

    @property
    def target(self) -> Target:
        return Target("127.0.0.1", self.listener.getsockname()[1], "key")

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection:
            while connection.recv(65536):
                with self.lock:
                    self.left -= 1
                    if self.left == 0:
                        time.sleep(self.stall_s)
                connection.sendall(OK)


@pytest.fixture
def slow() -> Iterator[Slow]:
    server = Slow(stall_after=40, stall_s=0.5)
    server.start()
    yield server
    server.listener.close()


def test_a_stall_counts_for_every_request_that_was_due_meanwhile(slow: Slow) -> None:
    """At 100 a second for a second, a stall of half a second is felt by some 50 of them; clients who wait for their
    answers would tell of one."""
    load = open_loop(slow.target, [slow.target.request("GET", "/")], rate=100, seconds=1.0)
    assert load.statuses == {200: 100}
    assert sum(seconds > 0.1 for seconds in load.seconds) > 20


def test_clients_wait_for_their_answers(slow: Slow) -> None:
    def requests(_client: int) -> Iterator[bytes]:
        for _ in range(30):
            yield slow.target.request("GET", "/")

    load = closed_loop(slow.target, requests, clients=2, seconds=60)
    assert load.statuses == {200: 60}
    assert load.elapsed_s > max(load.seconds) > 0.5
    assert load.rate == 60 / load.elapsed_s
    assert sum(load.seconds) < 2 * load.elapsed_s, "a client had two requests under way"


def test_no_answer_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = Target("127.0.0.1", listener.getsockname()[1], "key")

        def hang_up() -> None:
            listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(Unusable, match="no answer"):
            open_loop(target, [target.request("GET", "/")], rate=10, seconds=0.1)


def test_a_slow_hundredth_counts_against_the_idle_server() -> None:
    """Two rounds in which the machine's speed differs threefold: the ratio of each is the same."""
    loads = [Load([0.01] * 95 + [0.02] * 5), Load([0.03] * 95 + [0.06] * 5)]
    figure = latency_part.figure(0.8, np.array([0.01, 0.03]), np.array([90.0, 30.0]), loads)
    assert figure.ratio is not None
    assert figure.ratio.median == pytest.approx(2.0)
    assert figure.details["requests"] == 200
    assert figure.reached is True


def test_a_probe_is_like_somebody_or_like_nobody() -> None:
    enrolled = people(500, 128)
    asked = probes(enrolled, 40)
    assert np.allclose(np.linalg.norm(asked, axis=1), 1, atol=1e-5)
    best = (asked @ enrolled.T).max(axis=1)
    assert best[::2].mean() == pytest.approx(0.6, abs=0.05)
    assert best[1::2].max() < best[::2].min()


def test_the_exact_answer_is_float64s() -> None:
    vectors, queries = people(300, 32), people(5, 32, seed=2)
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    assert (searching.exact(vectors, queries) == np.argsort(-scores, axis=1)[:, : searching.LIMIT]).all()


def test_photos_come_from_folders_and_tars_one_of_each_person(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "a/2.jpg", "b/1.jpg", "c/.hidden.jpg", "c/notes.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode())
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(tmp_path / "in", "in")
    for source in (tmp_path / "in", tmp_path / "photos.tar"):
        assert sample_photos.load(source, 2) == [b"a/1.jpg", b"b/1.jpg"]
        assert sample_photos.load(source, 9) == [b"a/1.jpg", b"a/2.jpg", b"b/1.jpg"]
    with pytest.raises(InvalidInput, match="neither"):
        sample_photos.load(tmp_path / "nothing", 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="no photos"):
        sample_photos.load(tmp_path / "empty", 2)


TINY = Effort(
    rounds=2,
    turn_s=0.01,
    seconds=0.15,
    photos=3,
    gallery=12,
    faces=2_000,
    growth=(10, 20),
    starts=1,
    widths=(160, 320),
    batches=(1, 2),
    clients=2,
)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """As the benchmark opens them, with three small packaged photos."""
    folder = tmp_path_factory.mktemp("photos")
    for number, photo in enumerate(sample_photos.load(sample_photos.SAMPLES, 9)[-3:]):
        (folder / f"{number}.jpg").write_bytes(photo)
    fill_cache(cache := tmp_path_factory.mktemp("cache"))
    with open_stages(PROJECT / "models", cache, folder, TINY.photos) as opened:
        yield opened


LONG = {"card", "cores", "enroll", "latency", "peers", "start", "tails"}
"""What others have in common with them is enough in most runs."""


@pytest.mark.parametrize("part", list(PARTS))
def test_each_part_measures(part: str, stages: Stages, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny: what the figures are worth is nothing, that they are there is something."""
    if part in LONG and not full:
        pytest.skip("each part of the benchmark on a server of its own: with --full")
    if not full:
        monkeypatch.setattr("bench.parts.growth.AT_A_TIME", 2)
    beside, packages = ({"itself": PROJECT}, ["sface-slim"]) if part == "cost" else ({}, [])
    if part == "peers":  # which take no face of less than 64 pixels
        stages = replace(stages, photos=tuple(sample_photos.load(sample_photos.SAMPLES, 2)))
    run = Run(stages, TINY, beside=beside, packages=packages)
    PARTS[part](run)
    assert run.findings.figures
    for figure in run.findings.figures:
        assert figure.part == part
        assert np.isfinite(figure.ours)
        assert figure.ratio is None or figure.ratio.low <= figure.ratio.median <= figure.ratio.high
        if figure.against == PEER:
            assert figure.ratio is not None
            assert figure.ratio.median * float(str(figure.details["theirs"])) == pytest.approx(figure.ours)
    if part == "cost":
        assert {figure.details["clients"] for figure in run.findings.figures} == {TINY.clients}
        assert all(int(str(figure.details["requests"])) >= TINY.clients for figure in run.findings.figures)
    if part == "growth":
        memory = [figure for figure in run.findings.figures if figure.work.startswith("memory")]
        when = [figure.work.rpartition(", ")[2] for figure in memory]
        assert when == ["right after the imports", "started from snapshots"]
        assert [str(figure.goal) for figure in memory] == ["≤ 0.25"] * 2


def test_an_ideal_queue_serves_who_came_first_on_every_core() -> None:
    due, work = np.array([0.0, 0.1, 0.2, 5.0]), np.array([1.0, 2.0])
    assert first_come(due, work, 1) == pytest.approx([1.0, 2.9, 3.8, 2.0])
    assert first_come(due, work, 2) == pytest.approx([1.0, 2.0, 1.8, 2.0])


def test_photos_of_several_people_are_enrolled_too(shared_server: LiveServer) -> None:
    """Some of LFW's show others beside whom they are of, as large as them."""
    hopper = Image.open(PROJECT / "docs" / "samples" / "hopper.jpg")
    both = Image.new("RGB", (2 * hopper.width, hopper.height))
    both.paste(hopper)
    both.paste(hopper, (hopper.width, 0))
    both.save(photo := io.BytesIO(), "JPEG")
    with shared_server.client() as client:
        create(client, "bench-several")
        enroll_photos(client, "bench-several", [photo.getvalue()])
        found = client.get("/v1/galleries/bench-several").raise_for_status().json()
    assert (found["subjects"], found["faces"]) == (1, 1)


def test_search_on_a_gpu_is_measured_as_a_gallery_searches_there(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.search.index.QUICK_NUMBERS", 0)
    run, gpu, product = Run(stages, TINY), CpuGpu(), CpuGpu(search="product")
    searched_on(run, gpu, product, people(2_000, 16), "int8")
    assert (gpu.made, product.made) == (2, 1)
    *speeds, ours, by_product = run.findings.figures
    assert [figure.against for figure in speeds] == ["FAISS alone"] * 6
    assert {(same.ours, same.unit) for same in (ours, by_product)} == {(100, "%")}
    gpu.close()
    product.close()


def test_a_part_on_a_card_that_fails_is_told_and_the_others_run(tmp_path: Path) -> None:
    """With a Python that notes what it is asked for, and fails to search."""
    python, out = tmp_path / "python", tmp_path / "out"
    python.write_text('#!/bin/sh\necho "$@"\ncase "$*" in *search*) exit 3;; esac\n')
    python.chmod(0o755)
    run = subprocess.run(
        ["bash", PROJECT / "bench" / "card.sh"],
        env=os.environ | {"PYTHON": str(python), "OUT": str(out)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    told = [json.loads(line) for line in run.stdout.splitlines()]
    assert [(entry["part"], entry["status"]) for entry in told] == [
        ("servers", 0),
        ("search", 3),
        *((name, 0) for name in ("canvases", "adapt", "iresnet", "vit")),
    ]
    assert run.returncode == 1
    assert (out / "parts.jsonl").read_text() == run.stdout
    asked = {entry["part"]: (out / f"{entry['part']}.log").read_text().split() for entry in told}
    for part in ("servers", "search", "canvases"):
        assert asked[part][2] in PARTS
        assert {"--device", "cuda"} < set(asked[part])
    for part in ("iresnet", "vit"):
        *_, recipe = (PROJECT / word for word in asked[part] if word.endswith(".toml"))
        changes = [word for before, word in pairwise(asked[part]) if before == "--set"]
        read = load_recipe(recipe, changes)
        assert read.data.source.startswith("procedural:")
        assert not read.evaluate.packs, "the machine has no such files"


def test_the_command_knows_every_part() -> None:
    assert tuple(PARTS) == (*command.PARTS, *command.ON_REQUEST)


def test_a_part_is_measured_shown_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_models(tmp_path / "data")
    monkeypatch.setenv("LIKENESS_DATA_DIR", str(tmp_path / "data"))
    asked = ["search", "--quick", "--faces", "2000", "--rounds", "2", "--out", str(tmp_path / "out")]
    run = CliRunner().invoke(command.app, [*asked, "--photos", str(sample_photos.SAMPLES)])
    assert run.exit_code == 0, run.output
    (written,) = (tmp_path / "out").glob("*.json")
    document = json.loads(written.read_text())
    assert document["machine"]["cores"] >= 1
    assert document["asked"]["effort"]["faces"] == 2000
    assert {figure["against"] for figure in document["figures"]} >= {"one query at a time"}
    assert all(figure["work"] in run.output for figure in document["figures"])


def test_a_part_that_fails_costs_only_its_own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_run: Run) -> None:
        raise Unusable("the machine melted", code="bench_failed")

    give_models(tmp_path / "data")
    monkeypatch.setenv("LIKENESS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setitem(PARTS, "serve", broken)
    asked = ["serve", "search", "--quick", "--faces", "2000", "--rounds", "2", "--out", str(tmp_path / "out")]
    run = CliRunner().invoke(command.app, [*asked, "--photos", str(sample_photos.SAMPLES)])
    assert run.exit_code == 1
    (written,) = (tmp_path / "out").glob("*.json")
    document = json.loads(written.read_text())
    assert document["not_measured"] == ["serve: the machine melted"]
    assert {figure["part"] for figure in document["figures"]} == {"search"}
