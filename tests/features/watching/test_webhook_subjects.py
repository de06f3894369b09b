"""Webhooks of some people: they get what is about those people, follow them, and never widen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from app.choices import EventKind
from app.db.schema import EVENTS, SIGHTINGS, WEBHOOK_SUBJECTS, WEBHOOKS
from app.features.watching.events import last_number, write_event
from app.features.watching.webhooks import Webhooks
from app.gallery.store import Store
from app.gallery.subjects import create_subject, delete_subject
from app.types import utc_now
from tests.support.following import engine_of, let_expire
from tests.support.receiver import Receiver
from tests.support.service import AGAIN, COLLINS, HOPPER, enrolled, error_of, running
from tests.support.sighted import HOME, make_home, told
from tests.support.waiting import until

EILEEN, GRACE = ({"gallery": "home", "subject": name} for name in ("eileen", "grace"))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[httpx.Client]:
    with running(tmp_path / "data", watching="on", webhook_networks=("127.0.0.0/8",), expiry_seconds=0.2) as api:
        make_home(api, eileen=COLLINS, grace=HOPPER)
        yield api


def hook(api: httpx.Client, receiver: Receiver, *subjects: dict[str, str], **asked: Any) -> str:
    wanted = {"url": receiver.url, "subjects": list(subjects)} | asked
    return str(api.post("/v1/webhooks", json=wanted).raise_for_status().json()["id"])


def subjects_of(api: httpx.Client, webhook: str) -> list[str] | None:
    found = api.get(f"/v1/webhooks/{webhook}").raise_for_status().json()["subjects"]
    return None if found is None else [one["subject"] for one in found]


def settled(api: httpx.Client, webhook: str) -> int:
    """The number of the last event that the webhook is done with."""
    return int(api.get(f"/v1/webhooks/{webhook}").raise_for_status().json()["cursor"])


def heard(receiver: Receiver) -> list[tuple[str, str | None]]:
    return [(event["event"], event["subject"]) for event in receiver.events]


def test_it_gets_what_is_about_its_people_alone(home: httpx.Client, receiver: Receiver) -> None:
    mine = hook(home, receiver, EILEEN, kinds=["person_seen", "unknown_seen"])
    with receiver.listening():
        told(home, HOPPER)
        told(home, AGAIN)
        until(lambda: settled(home, mine) == 2)
    assert heard(receiver) == [("person_seen", "eileen")]


def test_a_name_that_is_taken_back_is_said_without_the_other_name(home: httpx.Client, receiver: Receiver) -> None:
    """Whoever opened for Eileen hears that it was not her, and not who it was."""
    mine, hers = hook(home, receiver, EILEEN), hook(home, receiver, GRACE, kinds=["name_changed"])
    with receiver.listening():
        seen = told(home, AGAIN)
        home.post(f"{HOME}/sightings/{seen['id']}/who", json={"subject": "grace"}).raise_for_status()
        until(lambda: settled(home, mine) == settled(home, hers) == 2)
    changed = [(event["subject"], event["name"]) for event in receiver.events if event["event"] == "name_changed"]
    assert sorted(changed, key=str) == [("grace", None), (None, None)]
    assert heard(receiver).count(("person_seen", "eileen")) == 1


def test_it_follows_a_changed_id_and_a_merge(home: httpx.Client, receiver: Receiver) -> None:
    mine = hook(home, receiver, EILEEN, kinds=["person_seen"])
    home.patch(f"{HOME}/subjects/eileen", json={"id": "collins"}).raise_for_status()
    assert subjects_of(home, mine) == ["collins"]
    home.post(f"{HOME}/subjects/collins/merge", json={"into": "grace"}).raise_for_status()
    assert subjects_of(home, mine) == ["grace"]
    with receiver.listening():
        told(home, AGAIN)
        until(lambda: receiver.taken)
    assert heard(receiver) == [("person_seen", "grace")]


def test_two_who_become_one_are_named_once(home: httpx.Client, receiver: Receiver) -> None:
    both, other = hook(home, receiver, EILEEN, GRACE), hook(home, receiver, GRACE)
    home.post(f"{HOME}/subjects/eileen/merge", json={"into": "grace"}).raise_for_status()
    assert (subjects_of(home, both), subjects_of(home, other)) == (["grace"], ["grace"])


@pytest.mark.parametrize("how", ["delete", "erase", "expire", "gallery"])
def test_without_its_people_it_gets_nothing_and_keeps_no_id(
    home: httpx.Client, receiver: Receiver, tmp_path: Path, how: str
) -> None:
    url = f"sqlite:///{tmp_path / 'data' / 'likeness.db'}"
    mine, everybody = hook(home, receiver, EILEEN), hook(home, receiver, kinds=["unknown_seen"], subjects=None)
    if how == "gallery":
        home.delete(HOME).raise_for_status()
        make_home(home)
    elif how == "expire":
        let_expire(url, "eileen")
    elif how == "erase":
        home.post(f"{HOME}/subjects/eileen/erase").raise_for_status()
    else:
        home.delete(f"{HOME}/subjects/eileen").raise_for_status()
    until(lambda: subjects_of(home, mine) == [])
    assert subjects_of(home, everybody) is None
    until(lambda: not rows(url))
    enrolled(home, HOME, "eileen", COLLINS)  # another one of this id
    with receiver.listening():
        told(home, AGAIN)
        told(home, COLLINS, COLLINS, camera="garden")
        until(lambda: settled(home, mine) >= 2)
    assert receiver.taken == []
    assert subjects_of(home, mine) == []


def rows(url: str) -> list[Any]:
    with engine_of(url).connect() as connection:
        return list(connection.execute(sa.select(WEBHOOK_SUBJECTS)))


def test_only_people_that_there_are_can_be_asked_for(home: httpx.Client, receiver: Receiver, tmp_path: Path) -> None:
    for subject, code in (
        ({"gallery": "home", "subject": "nobody"}, "subject_not_found"),
        ({"gallery": "elsewhere", "subject": "eileen"}, "gallery_not_found"),
    ):
        error_of(home.post("/v1/webhooks", json={"url": receiver.url, "subjects": [subject]}), 404, code)
    empty = home.post("/v1/webhooks", json={"url": receiver.url, "subjects": []})
    error_of(empty, 422, "invalid_request")
    assert home.get("/v1/webhooks").json() == {"webhooks": []}
    with closing(sa.create_engine(f"sqlite:///{tmp_path / 'data' / 'likeness.db'}").connect()) as connection:
        assert not connection.exec_driver_sql("SELECT name FROM secrets WHERE name LIKE 'webhook/%'").all()


PEOPLE = ("ada", "bea", "cleo")
NAMED = st.sampled_from([*PEOPLE, None])


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Webhooks]]:
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('matching') / 'likeness.db'}")
    store.create_gallery("home", "sface@1", 128)
    yield store, Webhooks(store.database, None, ())  # type: ignore[arg-type]  # no secret is needed
    store.close()


@given(
    tracks=st.lists(st.lists(NAMED, min_size=1, max_size=3), min_size=1, max_size=5),
    wanted=st.sets(st.sampled_from(PEOPLE), min_size=1),
    gone=st.sets(st.sampled_from(PEOPLE)),
    kinds=st.sets(st.sampled_from(get_args(EventKind)), min_size=1),
)
def test_a_webhook_gets_what_its_rule_says(
    database: tuple[Store, Webhooks],
    tracks: list[list[str | None]],
    wanted: set[str],
    gone: set[str],
    kinds: set[str],
) -> None:
    """Each track is who it was said to be, one after the other; some people are deleted in the end."""
    store, webhooks = database
    with store.database.write() as connection:
        for table in (WEBHOOKS, EVENTS, SIGHTINGS):
            connection.execute(sa.delete(table))
    gallery = store.gallery("home")
    with store.change(gallery) as change:
        connection = change.connection
        for row in connection.execute(sa.text("SELECT id FROM subjects")).scalars().all():
            delete_subject(change, row)
        keys: dict[str | None, int | None] = {name: create_subject(change, name).key for name in PEOPLE} | {None: None}
        first = last_number(connection)
        said: list[tuple[str, str | None, set[str | None]]] = []
        for number, names in enumerate(tracks):
            sighting = f"{number:032x}"
            insert = sa.insert(SIGHTINGS).values(row_of(sighting, gallery.key)).returning(SIGHTINGS.c.key)
            key = connection.execute(insert).scalar_one()
            for place, name in enumerate(names):
                kind: Any = "name_changed" if place else "person_seen" if name else "unknown_seen"
                write_event(change, key, keys[name], kind, {"camera": "door", "sighting": sighting})
                said.append((kind, name, set(names[:place])))
        values = {"id": "0" * 32, "url": "http://example.org", "kinds": "[]", "personal": True, "state": "active"}
        values |= {"cursor": 0, "not_before": utc_now(), "created_at": utc_now()}
        hook_key = connection.execute(sa.insert(WEBHOOKS).values(values).returning(WEBHOOKS.c.key)).scalar_one()
        for name in wanted:
            row = {"webhook_key": hook_key, "subject_key": keys[name]}
            connection.execute(sa.insert(WEBHOOK_SUBJECTS).values(row))
        for name in gone:
            delete_subject(change, name)
    webhook = webhooks.find("0" * 32).model_copy(update={"kinds": list(kinds), "cursor": first})
    left = wanted - gone
    assert webhook.subjects is not None
    assert {one.subject for one in webhook.subjects} == left
    expected = [
        (kind, name if name in left else None)
        for kind, name, before in said
        if kind in kinds and (name in left or (kind == "name_changed" and before & left))
    ]
    assert [(event["event"], event["subject"]) for event in webhooks._next(webhook)] == expected


def row_of(sighting: str, gallery: int) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("first_at", "last_at", "heard_at", "expires_at"), utc_now())
    decided = {"camera": "door", "decision": "known", "threshold": 0.5, "fpir": 0.01, "frames": 2, "quality": 50.0}
    return row | decided | {"id": sighting, "gallery_key": gallery, "package": "sface@1"}
