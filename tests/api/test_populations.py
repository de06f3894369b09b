"""Declared populations: answers carry warnings where a stated rate was seen not to hold for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from likeness_client import Client

from app.api import schemas
from tests.support.commands import Done, run
from tests.support.live import LiveServer, serving
from tests.support.packages import models_with_a_card
from tests.support.service import AGAIN, COLLINS, SAMPLES, error_of, running

PAIR = {"image1": COLLINS, "image2": AGAIN}
EXCEEDED, UNMEASURED = "population_rate_exceeded", "population_not_measured"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("populations")
    with serving(folder / "data", {"MODELS_DIR": models_with_a_card(folder / "models")}) as started:
        yield started


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("populations")
    with running(folder / "data", models_dir=models_with_a_card(folder / "models")) as client:
        people(client)
        yield client


def people(api: httpx.Client) -> None:
    for gallery in ("plain", "school"):
        api.post("/v1/galleries", json={"id": gallery}).raise_for_status()
        api.post(f"/v1/galleries/{gallery}/subjects/e/faces", files={"images": COLLINS}).raise_for_status()


def declare(api: httpx.Client, *population: str) -> list[str]:
    changed = api.patch("/v1/galleries/school", json={"population": population}).raise_for_status().json()
    assert api.get("/v1/galleries/school").json() == changed
    found: list[str] = changed["population"]
    return found


def answers(api: httpx.Client, gallery: str, **params: Any) -> list[dict[str, Any]]:
    """The answers of both operations on a gallery."""
    path = f"/v1/galleries/{gallery}"
    calls = (f"{path}/identify", f"{path}/subjects/e/verify")
    return [api.post(call, files={"image": AGAIN}, params=params).raise_for_status().json() for call in calls]


def codes(answer: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in answer["warnings"]]


def test_answers_are_as_before_where_nothing_is_declared(api: httpx.Client) -> None:
    declare(api)
    for gallery in ("plain", "school"):
        assert all("warnings" not in answer for answer in answers(api, gallery))
    assert "warnings" not in api.post("/v1/verify", files=PAIR).json()


def test_a_gallery_declares_whom_it_is_for(api: httpx.Client) -> None:
    assert declare(api, "children", "adults") == ["children", "adults"]
    for answer in answers(api, "school"):
        (warning,) = answer["warnings"]
        assert (warning["code"], warning["population"]) == (EXCEEDED, "children")
        figures = [warning[name] for name in ("fmr_found_low", "fmr_found", "fmr_found_high")]
        assert figures == pytest.approx([0.18, 0.2, 0.22])
        assert "20 % (18 to 22)" in warning["message"]
        assert "does not hold for children" in warning["message"]
    assert declare(api, "adults") == ["adults"]
    assert [codes(answer) for answer in answers(api, "school")] == [[], []]
    assert api.patch("/v1/galleries/school", json={"search": "fp32"}).json()["population"] == ["adults"]
    assert declare(api) == []
    made = api.post("/v1/galleries", json={"id": "new", "population": ["children"]}).json()
    assert made["population"] == ["children"]


def test_a_call_declares_whom_its_photo_shows(api: httpx.Client) -> None:
    declare(api, "adults")
    for gallery in ("plain", "school"):
        assert [codes(answer) for answer in answers(api, gallery, population="children")] == [[EXCEEDED]] * 2
    declared = {"population": "children"}
    for answer in (
        api.post("/v1/verify", files=PAIR, params=declared).json(),
        api.post("/v1/verify", files=PAIR, data=declared).json(),
    ):
        assert codes(schemas.VerifyAnswer.model_validate(answer).model_dump()) == [EXCEEDED]
    assert codes(api.post("/v1/verify", files=PAIR, params={"population": "adults"}).json()) == []


def test_what_was_not_measured_is_not_passed_over(api: httpx.Client) -> None:
    for params in ({"population": "elderly"}, {"population": "children", "model": "sface-slim"}):
        answer = api.post("/v1/verify", files=PAIR, params=params).json()
        assert codes(answer) == [UNMEASURED]
    answer = api.post("/v1/verify", files=PAIR, params={"population": "elderly"}).json()
    assert "there are figures of children, adults" in answer["warnings"][0]["message"]
    assert answer["warnings"][0]["fmr_found"] is None
    error_of(api.post("/v1/verify", files=PAIR, params={"population": "No name"}), 422, "invalid_request")
    error_of(api.patch("/v1/galleries/school", json={"population": "children"}), 422, "invalid_request")


def test_a_threshold_above_all_that_was_measured_gives_no_warning(api: httpx.Client) -> None:
    answer = api.post("/v1/verify", files=PAIR, params={"population": "children", "fmr": 1e-6}).json()
    assert (answer["threshold"] > 0.4411, answer["warnings"]) == (True, [])
    answer = api.post("/v1/verify", files=PAIR, params={"population": "children", "fmr": 1e-3}).json()
    assert codes(answer) == [EXCEEDED], "what passes 0.441 passes the lower threshold of FMR 1e-3 too"


def test_models_show_their_card(api: httpx.Client) -> None:
    (sface,) = (model for model in api.get("/v1/models").json()["models"] if model["name"] == "sface")
    shown = schemas.Model.model_validate(sface).bias_card
    assert shown is not None
    assert [group.name for group in shown.groups] == ["children", "adults"]
    assert shown.groups[0].rates[1].found == 0.2


@pytest.mark.long
def test_commands_say_it(server: LiveServer) -> None:
    with server.client() as api:
        people(api)
        declare(api, "children")
    photos = [SAMPLES / name for name in ("collins.jpg", "collins_again.jpg")]

    def likeness(*words: object) -> Done:
        return run(server.data_dir, *words, MODELS_DIR=server.data_dir.with_name("models"))

    said = likeness("verify", *photos, "--population", "children")
    assert (said.returncode, "does not hold for children" in said.stderr) == (0, True), said.stderr
    said = likeness("identify", "school", *photos)
    assert said.stderr.count("does not hold for children") == 1
    made = likeness("galleries", "create", "club", "--population", "children", "--json")
    assert made.rows[0]["population"] == ["children"], made.stderr
    changed = likeness("galleries", "update", "club", "--no-population", "--json")
    assert changed.rows[0]["population"] == []
    assert "1 of 2 above" in likeness("models", "list").stdout
    assert "* 0.2 (0.18-0.22)" in likeness("models", "show", "sface").stdout
    assert likeness("models", "show", "nobody").returncode == 4


@pytest.mark.long
def test_the_client_declares_it(server: LiveServer) -> None:
    with Client(server.url, server.key) as client:
        assert client.create_gallery("declared", population=["children"]).population == ["children"]
        assert client.update_gallery("declared", {"population": []}).population == []
        client.delete_gallery("declared")
        answer = client.verify(COLLINS, AGAIN, population="nobody-knows")
    assert [warning.code for warning in answer.warnings or ()] == [UNMEASURED]
