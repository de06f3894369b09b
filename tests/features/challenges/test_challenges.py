"""Challenges over REST, with drawn heads that turn: met by following the steps, and by nothing else tried here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.features.challenges import tokens
from tests.support import turning
from tests.support.service import BOTH, COLLINS, error_of, running

CHALLENGES = "/v1/galleries/staff/challenges"
ANSWER = f"{CHALLENGES}/answer"
FACES = "/v1/galleries/staff/subjects/somebody/faces"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("challenges") / "data"


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with running(folder) as found:
        for gallery in ("staff", "other"):
            found.post("/v1/galleries", json={"id": gallery}).raise_for_status()
        found.post(FACES, files={"images": turning.frame("ahead")}).raise_for_status()
        yield found


def ask(client: httpx.Client, operation: str = "identify", subject: str | None = None) -> dict[str, Any]:
    made = client.post(CHALLENGES, json={"operation": operation} | ({"subject": subject} if subject else {}))
    found: dict[str, Any] = made.raise_for_status().json()
    return found


def answer(client: httpx.Client, challenge: str, frames: Sequence[bytes], where: str = ANSWER) -> httpx.Response:
    return client.post(where, data={"challenge": challenge}, files=[("images", frame) for frame in frames])


def follow(made: dict[str, Any], **others: bytes) -> list[bytes]:
    """A frame for each step; ``others`` replace those of some steps."""
    return [others.get(step) or turning.frame(step) for step in made["steps"]]


def test_whoever_follows_the_steps_is_identified_verified_or_enrolled(client: httpx.Client) -> None:
    made = ask(client)
    assert (made["steps"][0], sorted(made["steps"][1:])) == ("ahead", ["left", "nearer", "right"])
    found = answer(client, made["challenge"], follow(made)).raise_for_status().json()
    assert (found["operation"], found["verify"], found["enroll"]) == ("identify", None, None)
    (face,) = found["identify"]["faces"]
    assert (face["decision"], face["candidates"][0]["subject"]) == ("known", "somebody")
    made = ask(client, "verify", "somebody")
    assert answer(client, made["challenge"], follow(made)).raise_for_status().json()["verify"]["match"]
    made = ask(client, "enroll", "new")
    found = answer(client, made["challenge"], follow(made)).raise_for_status().json()
    assert (found["enroll"]["subject"], found["enroll"]["created"]) == ("new", True)
    assert client.get("/v1/galleries/staff/subjects/new").json()["face_count"] == 1


def test_the_order_is_drawn_anew(client: httpx.Client) -> None:
    orders = {tuple(ask(client)["steps"]) for _ in range(60)}
    assert len(orders) > 3  # of six; by chance fewer in 1 of 10^17 runs


def test_a_photo_held_up_fails_at_the_first_turn(client: httpx.Client) -> None:
    """As it is, and tilted and brought nearer as the steps ask."""
    made = ask(client)
    details = error_of(answer(client, made["challenge"], [COLLINS] * 4), 422, "challenge_failed")
    assert (details["index"], details["step"]) == (1, made["steps"][1])
    made = ask(client)
    frames = [turning.held_up(step) for step in made["steps"]]
    details = error_of(answer(client, made["challenge"], frames), 422, "challenge_failed")
    assert (details["reason"], details["step"]) == (
        "not_turned",
        next(step for step in made["steps"] if step in {"left", "right"}),
    )


def test_a_photo_turned_in_its_plane_is_no_turned_head(client: httpx.Client) -> None:
    made = ask(client)
    frames = [turning.rolled(step) for step in made["steps"]]
    details = error_of(answer(client, made["challenge"], frames), 422, "challenge_failed")
    first_turn = next(step for step in made["steps"] if step in {"left", "right"})
    assert (details["reason"], details["step"]) == ("tilted", first_turn)


def test_a_wrong_order_fails_at_the_step_that_is_not_shown(client: httpx.Client) -> None:
    made = ask(client)
    frames = follow(made)
    first, second, third, fourth = frames
    details = error_of(answer(client, made["challenge"], [first, third, second, fourth]), 422, "challenge_failed")
    assert (details["index"], details["step"]) == (1, made["steps"][1])
    made = ask(client)
    swapped = follow(made, left=turning.frame("right"), right=turning.frame("left"))
    details = error_of(answer(client, made["challenge"], swapped), 422, "challenge_failed")
    assert details["reason"] == "not_turned"


@pytest.mark.parametrize("step", ["left", "right", "nearer"])
def test_another_person_midway_fails(client: httpx.Client, step: str) -> None:
    made = ask(client)
    frames = follow(made, **{step: turning.frame(step, turning.ANOTHER)})
    details = error_of(answer(client, made["challenge"], frames), 422, "challenge_failed")
    assert details == {"index": made["steps"].index(step), "step": step, "reason": "other_person"}


def test_a_head_that_is_turned_from_the_start_fails(client: httpx.Client) -> None:
    made = ask(client)
    frames = follow(made, ahead=turning.frame("left"))
    details = error_of(answer(client, made["challenge"], frames), 422, "challenge_failed")
    assert details == {"index": 0, "step": "ahead", "reason": "not_ahead"}


def test_frames_without_one_prominent_face_fail(client: httpx.Client) -> None:
    made = ask(client)
    empty = turning.blank()
    details = error_of(answer(client, made["challenge"], follow(made, left=empty)), 422, "challenge_failed")
    assert (details["step"], details["reason"]) == ("left", "no_face")
    made = ask(client)
    details = error_of(answer(client, made["challenge"], follow(made, nearer=BOTH)), 422, "challenge_failed")
    assert details["reason"] in {"several_faces", "not_nearer"}


def test_a_challenge_is_answered_once_also_after_a_restart(folder: Path, client: httpx.Client) -> None:
    met, failed, kept = ask(client), ask(client), ask(client)
    answer(client, met["challenge"], follow(met)).raise_for_status()
    error_of(answer(client, failed["challenge"], [COLLINS] * 4), 422, "challenge_failed")
    with running(folder) as restarted:  # and a second server of the same database
        for made in (met, failed):
            details = error_of(answer(restarted, made["challenge"], follow(made)), 422, "wrong_challenge")
            assert details["reason"] == "used"
        answer(restarted, kept["challenge"], follow(kept)).raise_for_status()
    assert error_of(answer(client, kept["challenge"], follow(kept)), 422, "wrong_challenge")["reason"] == "used"


def test_a_challenge_expires(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ask(client)
    monkeypatch.setattr(tokens, "CHALLENGE_VALID_S", -1.0)
    assert error_of(answer(client, made["challenge"], follow(made)), 422, "wrong_challenge")["reason"] == "expired"


def test_a_challenge_is_bound_to_its_key_and_gallery(client: httpx.Client) -> None:
    made = ask(client)
    elsewhere = answer(client, made["challenge"], follow(made), "/v1/galleries/other/challenges/answer")
    assert error_of(elsewhere, 422, "wrong_challenge")["reason"] == "other_request"
    key = client.post("/v1/keys", json={"scopes": ["recognize"]}).raise_for_status().json()["secret"]
    frames = [("images", frame) for frame in follow(made)]
    for sent, reason in ((made["challenge"], "other_request"), ("AAAA", "unreadable"), ("ü\0", "unreadable")):
        found = client.post(ANSWER, data={"challenge": sent}, files=frames, headers={"x-api-key": key})
        assert error_of(found, 422, "wrong_challenge")["reason"] == reason
    answer(client, made["challenge"], follow(made)).raise_for_status()  # nothing of this used it up


def test_enrolling_needs_the_scope_for_it(client: httpx.Client) -> None:
    key = client.post("/v1/keys", json={"scopes": ["recognize"]}).raise_for_status().json()["secret"]
    found = client.post(CHALLENGES, json={"operation": "enroll", "subject": "x"}, headers={"x-api-key": key})
    assert error_of(found, 403, "missing_scope")["scope"] == "enroll"


def test_a_subject_is_given_where_there_is_one(client: httpx.Client) -> None:
    for asked in ({"operation": "identify", "subject": "somebody"}, {"operation": "verify"}, {"operation": "delete"}):
        error_of(client.post(CHALLENGES, json=asked), 422, "invalid_request")
    error_of(client.post(CHALLENGES, json={"operation": "verify", "subject": ".."}), 422, "invalid_id")
    error_of(client.post("/v1/galleries/none/challenges", json={"operation": "identify"}), 404, "gallery_not_found")


def test_bad_frames_have_codes_of_their_own(client: httpx.Client) -> None:
    made = ask(client)
    frames = follow(made)
    for some in (frames[:1], frames[:3], [*frames, frames[0]]):
        assert error_of(answer(client, made["challenge"], some), 422, "invalid_request")["expected"] == 4
    error_of(answer(client, made["challenge"], frames * 13), 422, "too_many_images")
    error_of(answer(client, made["challenge"], [frames[0], b"x" * 11_000_000]), 413, "payload_too_large")
    damaged = [*frames[:2], frames[2][:2000], frames[3]]
    assert error_of(answer(client, made["challenge"], damaged), 422, "invalid_image")["index"] == 2


def test_nothing_of_the_frames_is_kept(folder: Path, client: httpx.Client) -> None:
    """Only the digest of the used token, in the audit log who asked for what, and nothing in the gallery."""
    made = ask(client, "verify", "somebody")
    before = client.get("/v1/galleries/staff").json()
    answer(client, made["challenge"], follow(made)).raise_for_status()
    assert client.get("/v1/galleries/staff").json() == before
    entry = client.get("/v1/audit", params={"operation": "answer_challenge", "limit": 1}).json()["entries"][0]
    assert (entry["gallery"], entry["subject"], entry["status"]) == ("staff", "somebody", 200)
    data = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert made["challenge"].encode() not in data
