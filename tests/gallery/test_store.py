"""The store returns what was written, refuses without a trace, and deletes completely."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import Connection

from app.db.pagination import encode_cursor
from app.db.schema import CROPS, FACES, GALLERIES, SUBJECTS
from app.errors import Conflict, InvalidInput, LikenessError, NotFound, Overloaded
from app.features.bulk.rows import BulkSubject, write_many
from app.features.transfers import rename_subject
from app.gallery.records import Candidate, Gallery, Metadata, StoredFace
from app.gallery.store import Store, _count
from app.gallery.subjects import create_subject, delete_face, delete_subject, edit_subject
from app.gallery.text import HIDDEN, MAX_METADATA_DEPTH, check_visible, unnamed_id
from app.search.types import Match
from app.types import Box, Quality, Reason, Template
from tests.support.changing import written
from tests.support.following import engine_of
from tests.support.stores import DIMENSION, PACKAGE, enroll, face


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(database_url)
    yield store
    store.close()


@pytest.fixture
def gallery(store: Store) -> Gallery:
    return store.create_gallery("staff", PACKAGE, DIMENSION)


def count(url: str, table: sa.Table) -> int:
    engine = engine_of(url)
    with engine.connect() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def test_counting_the_only_gallery_looks_at_no_row(tmp_path: Path) -> None:
    """SQLite counts a whole table by the page; the rows of one gallery among others it counts one by one."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with closing(Store(f"sqlite:///{tmp_path / 'likeness.db'}")) as store:
        gallery = store.create_gallery("staff", PACKAGE, DIMENSION)
        write(store, gallery, 500)
        with store.database.read() as connection:
            cast("sqlite3.Connection", connection.connection.driver_connection).set_progress_handler(step, 1)
            _count(connection, gallery)
        assert 0 < steps < 500


def write(store: Store, gallery: Gallery, people: int) -> None:
    with store.change(gallery) as change:
        write_many(change, gallery.embedder, [BulkSubject(f"person-{number}") for number in range(people)], [])


def test_each_gallery_counts_its_own(store: Store) -> None:
    """Also the first and the last of several, and the one that is left."""
    galleries = [store.create_gallery(f"gallery-{number}", PACKAGE, DIMENSION) for number in range(3)]
    for people, gallery in enumerate(galleries, start=1):
        write(store, gallery, people)
    assert [store.counts(gallery).subjects for gallery in galleries] == [1, 2, 3]
    for gallery in galleries[:2]:
        store.delete_gallery(gallery)
    assert store.counts(galleries[2]).subjects == 3
    store.delete_gallery(galleries[2])
    assert store.counts(store.create_gallery("another", PACKAGE, DIMENSION)).subjects == 0


PLAIN_TEXT = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Z"], include_characters=" "), min_size=1, max_size=255
).filter(lambda text: text not in {".", ".."} and text == text.strip() and not HIDDEN.search(text))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)
JSON_OBJECTS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.just("k"), inner), max_leaves=10),
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    subject_id=PLAIN_TEXT,
    name=st.none() | PLAIN_TEXT,
    metadata=JSON_OBJECTS,
    numbers=st.lists(st.floats(-1, 1, width=32), min_size=DIMENSION, max_size=DIMENSION).filter(
        lambda numbers: float(np.linalg.norm(numbers)) > 0.01
    ),
    box=st.builds(Box, *[st.floats(-1e6, 1e6)] * 4),
    quality=st.builds(Quality, st.floats(0, 100), st.lists(st.sampled_from(Reason), unique=True).map(tuple)),
    crop=st.none() | st.binary().map(b"\x89PNG".__add__),
)
def test_what_is_enrolled_comes_back_the_same(
    store: Store,
    *,
    subject_id: str,
    name: str | None,
    metadata: Metadata,
    numbers: list[float],
    box: Box,
    quality: Quality,
    crop: bytes | None,
) -> None:
    galleries = store.galleries().items
    gallery = galleries[0] if galleries else store.create_gallery("any", PACKAGE, DIMENSION)
    vector = np.array(numbers, np.float32) / np.float32(np.linalg.norm(numbers))
    new = StoredFace("", Template(vector, PACKAGE), quality, box)
    enrolled = enroll(store, gallery, subject_id, [new], crops=[crop], name=name, metadata=metadata)
    found = store.subject(gallery, subject_id)
    assert found.id == enrolled.subject
    assert (found.name or name) == found.name
    assert found.metadata == metadata
    row = store.face(gallery, enrolled.faces[0].face_id, subject_id)
    assert (row.quality, row.box, row.crop, row.template.package) == (quality, box, crop, PACKAGE)
    assert np.array_equal(row.template.vector, vector.astype("<f4"))
    written(store, gallery, delete_subject, subject_id)
    assert store.counts(gallery).faces == 0


def test_what_another_process_changes_is_seen_at_once(database_url: str, store: Store, gallery: Gallery) -> None:
    """However often it was asked for before."""
    other = Store(database_url)
    try:
        assert store.counts(store.gallery("staff")).subjects == 0
        written(other, gallery, create_subject, "ada", "Ada")
        assert store.counts(gallery).subjects == 1
        assert store.subject(gallery, "ada").name == "Ada"
        written(other, gallery, edit_subject, "ada", None)
        assert store.subject(gallery, "ada").name is None
        other.update_gallery(gallery, {"search": "int8"})
        assert store.gallery("staff").search == "int8"
        other.delete_gallery(gallery)
        with pytest.raises(NotFound):
            store.gallery("staff")
        again = other.create_gallery("staff", PACKAGE, DIMENSION)
        assert store.gallery("staff").key == again.key != gallery.key
    finally:
        other.close()


def test_ids_are_exact(store: Store, gallery: Gallery) -> None:
    ids = ["a", "A", "a a", "a  a", "á", "%", "_", "a_", "a%", "\\", "'", '"', "a/b", "á\u200db", "ß", "ss", "SS", "İ"]
    ids += ["😀", "👩‍👩‍👧", "日本", "ﬁ", "fi", "١", "1", "٠", "/", "...", "a" * 255, "😀" * 255]
    for subject_id in ids:
        written(store, gallery, create_subject, subject_id, name=f"<{len(subject_id)}>")
    assert [subject.id for subject in store.subjects(gallery).items] == ids
    for subject_id in ids:
        assert store.subject(gallery, subject_id).id == subject_id


def test_ids_written_differently_are_one_in_nfc(store: Store, gallery: Gallery) -> None:
    written(store, gallery, create_subject, "e\u0301")
    assert store.subject(gallery, "\u00e9").id == "\u00e9"
    with pytest.raises(Conflict):
        written(store, gallery, create_subject, "\u00e9")
    long = written(store, gallery, create_subject, "e\u0301" * 255)
    assert len(long.id) == 255


HIDING = ["ad\u200ba", "\u202eada", "ada\u2069", "ada\u200d", "ada️", "ada\U000e0061", "\xadada", "adaㅤ", "\ufeffada"]


@pytest.mark.parametrize("chosen", ["~" + "x" * 32, "~" + "A" * 32, "~ " + "0" * 31])
def test_a_chosen_id_does_not_pass_for_that_of_an_unnamed_subject(chosen: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_visible(chosen, "subject id")
    assert caught.value.code == "invalid_id"
    check_visible(unnamed_id(), "subject id")
    for other in ("~x", "~" + "x" * 31, "x" * 33):
        check_visible(other, "subject id")


def test_new_ids_hold_nothing_invisible(store: Store, gallery: Gallery) -> None:
    written(store, gallery, create_subject, "ada")
    creating: list[Callable[[str], object]] = [
        lambda hidden: store.create_gallery(hidden, PACKAGE, DIMENSION),
        lambda hidden: written(store, gallery, create_subject, hidden),
        lambda hidden: enroll(store, gallery, hidden, [face()]),
        lambda hidden: written(store, gallery, rename_subject, "ada", hidden),
    ]
    for hidden, create in product(HIDING, creating):
        with pytest.raises(InvalidInput) as caught:
            create(hidden)
        assert caught.value.code == "invalid_id"
        with pytest.raises(NotFound):
            store.subject(gallery, hidden)


@pytest.mark.parametrize("older", ["ad\u200ba", "ada ", "a\u00a0da"])
def test_what_is_not_seen_of_an_older_id_keeps_working(store: Store, gallery: Gallery, older: str) -> None:
    written(store, gallery, create_subject, "ada")
    with store.database.write() as connection:
        connection.execute(sa.update(SUBJECTS).values(id=older))
    enroll(store, gallery, older, [face()])
    assert written(store, gallery, delete_subject, older).face_count == 1


def test_scripts_and_emoji_are_written_as_they_need_it(store: Store, gallery: Gallery) -> None:
    persian = "\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    for name in (persian, "\U0001f469\u200d\U0001f680", "1\ufe0f\u20e3", "\u2764\ufe0f"):
        assert written(store, gallery, create_subject, name).id == name


UNFIT = ("", ".", "..", "a\0b", "a\nb", "\x7f", "\x85", "\ud800", "a\u2028", "x" * 256, "x" * 100_000)


def test_unfit_ids_and_names_are_refused(store: Store, gallery: Gallery) -> None:
    using: list[Callable[[str], object]] = [
        lambda bad: store.create_gallery(bad, PACKAGE, DIMENSION),
        store.gallery,
        lambda bad: written(store, gallery, create_subject, bad),
        lambda bad: store.subject(gallery, bad),
        lambda bad: enroll(store, gallery, bad, [face()]),
    ]
    for bad, use in product(UNFIT, using):
        with pytest.raises(InvalidInput) as caught:
            use(bad)
        assert caught.value.code == "invalid_id"
    for name in {*UNFIT, "Ann\u202e", "\u200bAnn", "An\u00adn"} - {".", ".."}:
        with pytest.raises(InvalidInput) as caught:
            written(store, gallery, create_subject, "fine", name=name)
        assert caught.value.code == "invalid_name"
    assert store.subjects(gallery).items == ()


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth - 1):
        value = {"k": value}
    return value


def cyclic() -> dict[str, object]:
    value: dict[str, object] = {}
    value["self"] = value
    return value


UNFIT_METADATA: dict[str, object] = {
    "NaN": {"k": math.nan},
    "Infinity": {"k": [math.inf]},
    "a lone surrogate": {"k": "\ud800"},
    "a lone surrogate as key": {"\ud800": 1},
    "NUL": {"k": "\0"},
    "NUL as key": {"\0": 1},
    "a key that is no string": {1: "one"},
    "bytes": {"k": b"bytes"},
    "a number of 5000 digits": {"k": 10**5000},
    "too many characters": {"k": "x" * 16 * 1024},
    "too many bytes": {"k": "é" * 8 * 1024},
    "10,000 keys": {f"key{number}": None for number in range(10_000)},
    "one level too many": nested(MAX_METADATA_DEPTH + 1),
    "10,000 levels": nested(10_000),
    "a cycle": cyclic(),
    "a list": ["no", "object"],
    "null": None,
}


def test_unfit_metadata_is_refused(store: Store, gallery: Gallery) -> None:
    written(store, gallery, create_subject, "fine", metadata={"k": 1})
    for what, bad in UNFIT_METADATA.items():
        with pytest.raises(InvalidInput) as caught:
            written(store, gallery, edit_subject, "fine", metadata=cast("Metadata", bad))
        assert caught.value.code == "invalid_metadata", what
    assert store.subject(gallery, "fine").metadata == {"k": 1}


def test_metadata_up_to_the_limits_is_kept(database_url: str) -> None:
    store = Store(database_url, max_metadata_bytes=1000)
    gallery = store.create_gallery("staff", PACKAGE, DIMENSION, metadata=nested(MAX_METADATA_DEPTH))
    assert store.gallery("staff") == gallery
    assert written(store, gallery, create_subject, metadata={"k": "x" * (1000 - len('{"k":""}'))}).metadata
    with pytest.raises(InvalidInput):
        written(store, gallery, create_subject, metadata={"k": "x" * 1000})
    store.close()


def test_a_face_is_found_under_its_own_subject_and_gallery_only(store: Store, gallery: Gallery) -> None:
    other = store.create_gallery("other", PACKAGE, DIMENSION)
    face_id = enroll(store, gallery, "a", [face()]).faces[0].face_id
    written(store, gallery, create_subject, "b")
    written(store, other, create_subject, "a")
    for where, subject_id in ((gallery, "b"), (other, "a")):
        with pytest.raises(NotFound):
            store.face(where, face_id, subject_id)
        with pytest.raises(NotFound):
            written(store, where, delete_face, subject_id, face_id)
    assert store.face(gallery, face_id, "a").face_id == face_id


def test_pages_give_everything_once_while_others_come_and_go(store: Store, gallery: Gallery) -> None:
    for number in range(10):
        written(store, gallery, create_subject, f"s{number}")
    seen: list[str] = []
    cursor = None
    while True:
        page = store.subjects(gallery, cursor, limit=3)
        seen += [subject.id for subject in page.items]
        if len(seen) == 3:
            written(store, gallery, delete_subject, "s0")
            written(store, gallery, delete_subject, "s2")
            written(store, gallery, create_subject, "late")
        if (cursor := page.next_cursor) is None:
            break
    assert seen == [*(f"s{number}" for number in range(10)), "late"]


def test_a_last_page_that_is_full_says_that_it_is_the_last(store: Store, gallery: Gallery) -> None:
    rows = enroll(store, gallery, "a", [face(n) for n in range(4)]).faces
    first = store.faces(gallery, "a", limit=2)
    second = store.faces(gallery, "a", first.next_cursor, limit=2)
    assert [row.face_id for row in (*first.items, *second.items)] == [row.face_id for row in rows]
    assert first.next_cursor
    assert second.next_cursor is None


def test_changed_and_strange_cursors_are_refused(store: Store, gallery: Gallery) -> None:
    for number in range(3):
        written(store, gallery, create_subject, f"s{number}")
    cursor = store.subjects(gallery, limit=1).next_cursor
    assert cursor
    for place in range(len(cursor)):
        changed = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
        with pytest.raises(InvalidInput):
            store.subjects(gallery, changed)
    for strange in (cursor[:-1], cursor + "A", encode_cursor("galleries", 1), cursor + "=", " " + cursor):
        with pytest.raises(InvalidInput):
            store.subjects(gallery, strange)


def test_search_looks_into_ids_and_names_without_case_accents_and_underscores(store: Store, gallery: Gallery) -> None:
    for subject_id, name in {
        "u1": "Ångström",
        "u2": "STRASSE",
        "u_3": "100%",
        "Ω": None,
        "u5": "Ångström's son",
        "Tony_Blair": None,
        "j-p": "Jean-Paul Šakić",
    }.items():
        written(store, gallery, create_subject, subject_id, name)

    def found(text: str) -> list[str]:
        return [subject.id for subject in store.subjects(gallery, search=text).items]

    assert found("ÅNGSTRÖM") == found("a\u030angstro\u0308m") == found("angstrom") == ["u1", "u5"]
    assert found("straße") == ["u2"]
    assert found("%") == ["u_3"]
    assert found("tony blair") == found("tony_blair") == found("Tony-Blair") == ["Tony_Blair"]
    assert found("jean paul sakic") == ["j-p"]
    assert found("U 3") == found("u_3") == ["u_3"]
    assert found("ω") == ["Ω"]
    assert found("u") == ["u1", "u2", "u_3", "u5", "j-p"]
    assert found("1ångström") == []  # not across id and name
    assert found("") == ["u1", "u2", "u_3", "Ω", "u5", "Tony_Blair", "j-p"]
    written(store, gallery, edit_subject, "u2", name="Platz")
    assert (found("strasse"), found("platz")) == ([], ["u2"])
    page = store.subjects(gallery, search="ångström", limit=1)
    assert [s.id for s in store.subjects(gallery, page.next_cursor, search="ångström").items] == ["u5"]
    for bad in ("\0", "\ud800", "x" * 256):
        with pytest.raises(InvalidInput) as caught:
            found(bad)
        assert caught.value.code == "invalid_search"


@pytest.mark.parametrize("covered", [0, 1])
def test_covers_are_written_where_some_subjects_have_none(store: Store, gallery: Gallery, covered: int) -> None:
    faces = [StoredFace(subject, face().template, Quality(50, ())) for subject in ("a", "b")]
    covers = [stored.face_id if place == covered else None for place, stored in enumerate(faces)]
    people = [BulkSubject(stored.subject, cover=cover) for stored, cover in zip(faces, covers, strict=True)]
    written(store, gallery, write_many, gallery.embedder, people, faces)
    assert [subject.cover for subject in store.subjects(gallery).items] == covers


def test_a_subject_and_its_faces_may_write_its_id_otherwise(store: Store, gallery: Gallery) -> None:
    faces = [StoredFace("Zoe\u0308", face().template, Quality(50, ()))]
    added = written(store, gallery, write_many, gallery.embedder, [BulkSubject("Zo\u00eb", "Zoë B.")], faces)
    assert (added.subjects, added.faces) == (1, 1)
    (subject,) = store.subjects(gallery).items
    assert (subject.id, subject.name, subject.face_count) == ("Zo\u00eb", "Zoë B.", 1)


def test_a_cover_counts_while_the_face_is_the_subjects(store: Store, gallery: Gallery) -> None:
    (first, second), (strange,) = (
        [row.face_id for row in enroll(store, gallery, subject, faces).faces]
        for subject, faces in (("a", [face(1), face(2)]), ("b", [face(3)]))
    )
    assert store.subject(gallery, "a").cover is None
    assert written(store, gallery, edit_subject, "a", cover=second).cover == second
    assert written(store, gallery, edit_subject, "a", name="Anna").cover == second
    assert [subject.cover for subject in store.subjects(gallery).items] == [second, None]
    with pytest.raises(NotFound) as caught:
        written(store, gallery, edit_subject, "a", cover=strange)
    assert caught.value.code == "face_not_found"
    written(store, gallery, delete_face, "a", second)
    assert store.subject(gallery, "a").cover is None
    assert written(store, gallery, edit_subject, "a", cover=first).cover == first
    assert written(store, gallery, edit_subject, "a", cover=None).cover is None


def test_a_subject_gets_another_id_and_keeps_all_else(store: Store, gallery: Gallery) -> None:
    (face_id,) = (row.face_id for row in enroll(store, gallery, "a", [face(1)]).faces)
    written(store, gallery, edit_subject, "a", name="Anna", metadata={"team": "night"}, cover=face_id)
    enroll(store, gallery, "b", [face(2)])
    before = store.subject(gallery, "a")
    renamed = written(store, gallery, edit_subject, "a", new_id="Zoe\u0308")
    assert (renamed.id, renamed.key, renamed.name, renamed.cover) == ("Zo\u00eb", before.key, "Anna", face_id)
    assert [row.face_id for row in store.faces(gallery, "Zoë").items] == [face_id]
    assert [subject.id for subject in store.subjects(gallery, search="zoe").items] == ["Zoë"]
    with pytest.raises(NotFound):
        store.subject(gallery, "a")
    for taken, code in (("b", "subject_exists"), (" a", "invalid_id"), ("..", "invalid_id")):
        with pytest.raises(LikenessError) as caught:
            written(store, gallery, edit_subject, "Zoë", new_id=taken)
        assert caught.value.code == code
    assert written(store, gallery, edit_subject, "Zoë", new_id="Zoë", name=None).name is None
    assert {subject.id for subject in store.subjects(gallery).items} == {"Zoë", "b"}


def test_a_list_begins_anywhere(store: Store, gallery: Gallery) -> None:
    for number in range(7):
        written(store, gallery, create_subject, f"s{number}")
    page = store.subjects(gallery, limit=2, offset=3)
    assert [subject.id for subject in page.items] == ["s3", "s4"]
    assert [subject.id for subject in store.subjects(gallery, page.next_cursor).items] == ["s5", "s6"]
    assert store.subjects(gallery, offset=7).items == ()
    assert [subject.id for subject in store.subjects(gallery, search="s", limit=1, offset=6).items] == ["s6"]


def test_deleting_takes_everything_below_along(store: Store, gallery: Gallery, database_url: str) -> None:
    def enroll_two(subject_id: str) -> list[str]:
        rows = enroll(store, gallery, subject_id, [face(1), face(2)], crops=[b"jpeg1", b"jpeg2"]).faces
        return [row.face_id for row in rows]

    first, _ = enroll_two("a"), enroll_two("b")
    other = store.create_gallery("other", PACKAGE, DIMENSION)
    enroll(store, other, "a", [face(3)], crops=[b"jpeg3"])
    written(store, gallery, delete_face, "a", first[0])
    assert (count(database_url, FACES), count(database_url, CROPS)) == (4, 4)
    assert store.subject(gallery, "a").face_count == 1
    assert written(store, gallery, delete_subject, "a").face_count == 1
    assert (count(database_url, FACES), count(database_url, CROPS)) == (3, 3)
    deleted = store.delete_gallery(gallery)
    assert (deleted.subjects, deleted.faces) == (1, 2)
    assert [count(database_url, table) for table in (SUBJECTS, FACES, CROPS)] == [1, 1, 1]


def test_a_deleted_gallery_takes_no_more_even_if_there_is_one_of_its_name_again(
    store: Store, gallery: Gallery, database_url: str
) -> None:
    store.delete_gallery(gallery)
    again = store.create_gallery(gallery.id, PACKAGE, DIMENSION)
    assert again.key != gallery.key
    for attempt in (
        lambda: enroll(store, gallery, "a", [face()]),
        lambda: written(store, gallery, create_subject, "a"),
        lambda: written(store, gallery, edit_subject, "a", name="A"),
        lambda: written(store, gallery, delete_subject, "a"),
        lambda: written(store, gallery, delete_face, "a", "0" * 32),
        lambda: store.delete_gallery(gallery),
    ):
        with pytest.raises(NotFound) as caught:
            attempt()
        assert caught.value.code == "gallery_not_found"
    assert (count(database_url, SUBJECTS), count(database_url, FACES)) == (0, 0)


def test_blocks_hold_all_faces_of_the_gallery_in_order(
    store: Store, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.gallery.store.STREAM_ROWS", 3)
    other = store.create_gallery("other", PACKAGE, DIMENSION)
    expected = {}
    for number in range(8):
        new = face(number, quality=float(number))
        enrolled = enroll(store, gallery, f"s{number % 3}", [new], crops=[b"jpeg"])
        enroll(store, other, "x", [face(100 + number)])
        expected[store.face(gallery, enrolled.faces[0].face_id, f"s{number % 3}").key] = (
            store.subject(gallery, enrolled.subject).key,
            number,
            new.template.vector,
        )
    with store.change_reader.read_all(gallery.index_spec) as (position, moment):
        enroll(store, gallery, "late", [face(9)])
        blocks = list(moment)
    assert position.number == 8
    assert [len(block.faces) for block in blocks] == [3, 3, 2]
    assert [key for block in blocks for key in block.faces] == sorted(expected)
    for block in blocks:
        for key, subject, quality, vector in zip(
            block.faces, block.subjects, block.qualities, block.vectors, strict=True
        ):
            assert (subject, quality) == expected[key][:2]
            np.testing.assert_array_equal(vector, expected[key][2])


def test_matches_are_named_of_the_faces_that_are_left(store: Store, gallery: Gallery) -> None:
    enrolled = enroll(store, gallery, "a", [face(1), face(2)], name="Ann")
    gone, left = (store.face(gallery, new.face_id, "a") for new in enrolled.faces)
    written(store, gallery, delete_face, "a", gone.face_id)
    subject = store.subject(gallery, "a").key
    matches = [Match(subject, kept.key, 0.9, 0.8) for kept in (gone, left)]
    assert store.candidates([matches, []]) == [[Candidate("a", "Ann", left.face_id, 0.9, 0.8)], []]


def test_only_the_names_that_are_not_cached_are_read(store: Store, gallery: Gallery) -> None:
    enrolled = enroll(store, gallery, "a", [face(1), face(2), face(3)])
    keys = [store.face(gallery, new.face_id).key for new in enrolled.faces]
    matches = [Match(store.subject(gallery, "a").key, key, 0.9, 0.8) for key in keys]
    read: list[list[int]] = []

    def statement(_connection: object, _cursor: object, text: str, values: Any, *_: object) -> None:
        if "faces" in text:
            given = values.values() if isinstance(values, dict) else values
            read.append(sorted(value for value in given if isinstance(value, int)))

    store.candidates([matches[:2]])
    sa.event.listen(store.database._engine, "before_cursor_execute", statement)
    try:
        named = store.candidates([matches[1:], matches])
    finally:
        sa.event.remove(store.database._engine, "before_cursor_execute", statement)
    assert [[candidate.face_id for candidate in row] for row in named] == [
        [stored.face_id for stored in enrolled.faces[1:]],
        [stored.face_id for stored in enrolled.faces],
    ]
    assert read == [keys[2:] if store.database.is_sqlite else sorted(keys)]


def test_a_database_held_by_another_process_is_busy_not_broken(tmp_path: Path) -> None:
    path = tmp_path / "likeness.db"
    store = Store(f"sqlite:///{path}", busy_timeout_s=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Overloaded) as caught:
        store.create_gallery("staff", PACKAGE, DIMENSION)
    assert caught.value.code == "database_busy"
    assert store.galleries().items == ()  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    assert store.create_gallery("staff", PACKAGE, DIMENSION)
    store.close()


def test_an_unread_result_of_a_failed_change_holds_up_nobody(store: Store) -> None:
    """As long as the error's traceback is alive, so is the result; its connection is back in the pool all the same."""
    left: list[object] = []
    values = {"id": "lost", "embedder": PACKAGE, "dimension": 1, "store": "none", "metadata": "{}", "created_at": "now"}

    def fail(transaction: AbstractContextManager[Connection], statement: sa.Executable) -> None:
        with transaction as connection:
            left.append(connection.execute(statement))
            raise RuntimeError("before the result was read")

    insert = store.database.insert(GALLERIES).returning(GALLERIES.c.key).values(values)
    for transaction, statement in ((store.database.write(), insert), (store.database.read(), sa.select(GALLERIES))):
        with pytest.raises(RuntimeError, match="before the result was read"):
            fail(transaction, statement)
    for name in ("one", "two", "three"):
        store.create_gallery(name, PACKAGE, DIMENSION)
    assert [gallery.id for gallery in store.galleries().items] == ["one", "two", "three"]
    assert len(left) == 2


def test_nobody_else_may_read_the_files(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'new' / 'likeness.db'}")
    gallery = store.create_gallery("staff", PACKAGE, DIMENSION)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()} == {0o600}
    store.delete_gallery(gallery)
    store.close()


def files_hold(folder: Path, *secrets: bytes) -> list[bool]:
    contents = [path.read_bytes() for path in folder.iterdir()]
    return [any(secret in content for content in contents) for secret in secrets]


def test_nothing_of_what_was_deleted_is_left_in_the_files(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'likeness.db'}")
    gallery = store.create_gallery("staff", PACKAGE, DIMENSION)
    faces = [face(number) for number in range(40)]
    crops = [f"crop-{number:04}-".encode() * 10 for number in range(40)]  # found in one page; stored over many
    templates = [new.template.vector.tobytes() for new in faces]
    for number, (new, crop) in enumerate(zip(faces, crops, strict=True)):
        enroll(store, gallery, f"person-{number:04}", [new], crops=[crop * 100], name=f"Name of {number:04}")
    assert all(files_hold(tmp_path, *templates, *crops))
    for number in range(0, 40, 2):
        written(store, gallery, delete_subject, f"person-{number:04}")
    assert store.database.scrub()
    names = [f"Name of {number:04}".encode() for number in range(40)]
    ids = [f"person-{number:04}".encode() for number in range(40)]
    for secrets in (templates, crops, names, ids):
        assert files_hold(tmp_path, *secrets) == [False, True] * 20
    store.delete_gallery(gallery)
    assert store.database.scrub()
    assert not any(files_hold(tmp_path, *templates, *crops, *names, *ids))
    store.close()


ENROLL_FOR_EVER = """
import sys
from app.gallery.store import Store, _count
from app.gallery.subjects import delete_subject
from tests.support.changing import written
from tests.support.stores import DIMENSION, PACKAGE, enroll, face

store = Store(sys.argv[1])
gallery = store.create_gallery("staff", PACKAGE, DIMENSION)
number = 0
while True:
    enroll(store, gallery, f"s{number}", [face(number)], crops=[b"jpeg"])
    print(f"+s{number}", flush=True)
    if number % 3 == 2:
        written(store, gallery, delete_subject, f"s{number - 1}")
        print(f"-s{number - 1}", flush=True)
    number += 1
"""


@pytest.mark.long
def test_what_was_acknowledged_survives_a_killed_process(database_url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENROLL_FOR_EVER, database_url], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stdout
    said = [process.stdout.readline().strip() for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    said += [line.strip() for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    process.stdout.close()
    process.wait()
    expected = {line[1:] for line in said if line[0] == "+"} - {line[1:] for line in said if line[0] == "-"}
    store = Store(database_url)
    gallery = store.gallery("staff")
    found = {subject.id for subject in store.subjects(gallery, limit=10_000).items}
    assert expected - found <= {f"s{len([x for x in said if x[0] == '+']) - 2}"}  # a deletion not yet said
    assert len(found - expected) <= 1  # an enrollment not yet said
    assert store.counts(gallery).faces == len(found)
    store.close()
