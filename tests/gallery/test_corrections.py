"""Recorded wrong probes decide who is not the answer, are bounded, expire, and follow their subjects and galleries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from app.db.encryption import Sealer, new_key
from app.db.schema import CORRECTIONS
from app.db.sealed_columns import Blobs
from app.errors import InvalidInput, NotFound
from app.features import corrected
from app.features.corrected import MOST, Correction
from app.features.erasure.erasing import Erasures, drop_like, erase_subject
from app.features.signatures import Signer
from app.features.transfers import merge_subjects
from app.features.vault.reseal import census, reseal
from app.gallery.corrections import Wrong, wrong_probes
from app.gallery.records import Candidate, StoredFace
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.recognition.decisions import cosine, rule_out
from app.types import Box, Pixels, Quality, Template, utc_now
from tests.support.changing import changed
from tests.support.following import engine_of, let_expire
from tests.support.galleries import DIMENSION, PACKAGE, at, enroll, face, staff, template

CROP: Pixels = np.full((112, 112, 3), 90, np.uint8)
angles = st.floats(0, 360, allow_nan=False, width=32)


@pytest.fixture
def galleries(database_url: str) -> Iterator[Galleries]:
    found = Galleries(Store(database_url, blobs=Blobs(Sealer([new_key()]))))
    found.create_gallery("staff", PACKAGE, DIMENSION)
    enroll(found, "ann", 1, 2)
    enroll(found, "bob", 3)
    yield found
    found.close()


def ids_of(galleries: Galleries, subject: str) -> list[str]:
    return [correction.id for correction in corrected.corrections_of(galleries.store, staff(galleries), subject)]


def add(store: Store, subject: str, probe: StoredFace, expires_at: str | None = None) -> Correction:
    ends = expires_at or utc_now(timedelta(days=365))
    return corrected.add_correction(store, store.gallery("staff"), subject, probe, ends)


@given(
    mine=st.lists(angles, min_size=1, max_size=4),
    others=st.lists(angles, min_size=1, max_size=4),
    wrong=st.lists(angles, max_size=4),
    face=angles,
)
def test_a_candidate_is_ruled_out_where_every_pair_says_so(
    mine: list[float], others: list[float], wrong: list[float], face: float
) -> None:
    scores = {
        name: max(cosine(at(face), at(angle)) for angle in faces) for name, faces in (("ann", mine), ("bob", others))
    }
    ranking = [Candidate(name, None, name, score, score) for name, score in sorted(scores.items(), key=lambda x: -x[1])]
    nearest = max((cosine(at(face), at(angle)) for angle in wrong), default=-2.0)
    if abs(nearest - scores["ann"]) < 1e-5:
        return  # float32 against float64
    known = {"ann": Wrong(tuple(map(str, wrong)), np.stack([at(angle).vector for angle in wrong]))} if wrong else {}
    kept, out = rule_out(at(face), ranking, known, floor=0.3)
    expected = nearest > scores["ann"] and scores["ann"] >= 0.3
    assert [ruled_out.subject for ruled_out in out] == (["ann"] if expected else [])
    assert [candidate.subject for candidate in kept] == [
        candidate.subject for candidate in ranking if not (expected and candidate.subject == "ann")
    ]


def test_what_is_recorded_is_found_until_it_is_deleted(galleries: Galleries) -> None:
    assert not staff(galleries).corrected
    assert wrong_probes(galleries.store, staff(galleries), PACKAGE, ["ann"]) == {}
    made = add(galleries.store, "ann", face(9, crop=CROP))
    assert staff(galleries).corrected
    assert corrected.corrections_of(galleries.store, staff(galleries), "ann") == [made]
    assert (made.has_crop, made.package) == (True, PACKAGE)
    found = wrong_probes(galleries.store, staff(galleries), PACKAGE, ["ann", "bob"])
    assert list(found) == ["ann"]
    assert found["ann"].ids == (made.id,)
    np.testing.assert_array_equal(found["ann"].vectors, [template(9).vector])
    with pytest.raises(NotFound) as caught:
        corrected.delete_correction(galleries.store, staff(galleries), "bob", made.id)
    assert caught.value.code == "correction_not_found"
    corrected.delete_correction(galleries.store, staff(galleries), "ann", made.id)
    assert corrected.corrections_of(galleries.store, staff(galleries), "ann") == []
    assert not staff(galleries).corrected


def test_the_newest_of_a_subject_stay(galleries: Galleries) -> None:
    made = [add(galleries.store, "ann", face(seed)).id for seed in range(MOST + 3)]
    kept = add(galleries.store, "bob", face(1)).id
    assert ids_of(galleries, "ann") == made[3:]
    assert ids_of(galleries, "bob") == [kept]


def test_they_expire(galleries: Galleries, database_url: str) -> None:
    with pytest.raises(InvalidInput):
        add(galleries.store, "ann", face(9), utc_now(timedelta(seconds=-1)))
    add(galleries.store, "ann", face(9), utc_now(timedelta(days=1)))
    late = add(galleries.store, "ann", face(8))
    assert late.expires_at[:4] > utc_now()[:4]
    with engine_of(database_url).begin() as connection:
        old = CORRECTIONS.c.id != late.id
        connection.execute(sa.update(CORRECTIONS).where(old).values(expires_at="2026-01-01T00:00:00.000000Z"))
    assert ids_of(galleries, "ann") == [late.id]
    assert wrong_probes(galleries.store, staff(galleries), PACKAGE, ["ann"])["ann"].ids == (late.id,)
    assert corrected.prune_corrections(galleries.store) == 1


def test_they_go_with_their_subject_and_with_a_merge(galleries: Galleries) -> None:
    for subject in ("ann", "bob"):
        add(galleries.store, subject, face(9))
    changed(galleries, "staff", merge_subjects, "ann", "bob")
    assert corrected.corrections_of(galleries.store, staff(galleries), "bob") == []
    add(galleries.store, "bob", face(9))
    changed(galleries, "staff", erase_subject, "bob")
    assert not staff(galleries).corrected
    with pytest.raises(NotFound):
        add(galleries.store, "bob", face(9))


def test_others_that_may_show_the_erased_go_with_them_and_are_counted(galleries: Galleries) -> None:
    """Ann's second face, taken for Bob, and a look-alike of hers; not who only looks like Bob."""
    near = template(2).vector + 0.4 * template(3).vector
    like = Template((near / np.linalg.norm(near)).astype(np.float32), PACKAGE)
    for vector in (template(2), like, template(3)):
        add(galleries.store, "bob", StoredFace("", vector, Quality(50, ()), Box(0, 0, 1, 1)))
    kept = corrected.corrections_of(galleries.store, staff(galleries), "bob")[2].id
    receipt = Erasures(galleries, Signer(bytes(32)), least=lambda _: 0.99).erase("staff", "ann")
    assert receipt["erased"]["corrections"] == 2
    assert ids_of(galleries, "bob") == [kept]
    strict = add(galleries.store, "bob", face(3)).id
    enroll(galleries, "cid", 3)
    with galleries.change(galleries.store.gallery("staff")) as change:
        assert drop_like(change, "cid", lambda _: None) == 0, "no more like him than like Bob"
        assert drop_like(change, "cid", lambda _: 0.5) == 2
    assert strict not in ids_of(galleries, "bob")


def test_who_has_expired_takes_none(galleries: Galleries, database_url: str) -> None:
    let_expire(database_url, "ann")
    with pytest.raises(NotFound):
        add(galleries.store, "ann", face(9))


def test_they_are_sealed_and_follow_the_key(database_url: str) -> None:
    keys = [new_key(), new_key()]
    plain = Galleries(Store(database_url))
    plain.create_gallery("staff", PACKAGE, DIMENSION)
    enroll(plain, "ann", 1)
    made = add(plain.store, "ann", face(9, crop=CROP))
    stored = [stored_probe(database_url)]
    for ring in ([keys[0]], [keys[1], keys[0]]):
        blobs = Blobs(Sealer(ring))
        list(reseal(plain.store.database, blobs))
        assert census(plain.store.database)[str(blobs.key_id)]["correction"] == 1
        stored.append(stored_probe(database_url))
    plain.close()
    assert [template(9).vector.tobytes() in content for content in stored] == [True, False, False]
    later = Store(database_url, blobs=Blobs(Sealer([keys[1]])))
    found = wrong_probes(later, later.gallery("staff"), PACKAGE, ["ann"])
    assert found["ann"].ids == (made.id,)
    later.close()


def stored_probe(url: str) -> bytes:
    with engine_of(url).connect() as connection:
        return bytes(connection.execute(sa.select(CORRECTIONS.c.probe)).scalar_one())


def test_a_gallery_on_its_way_to_another_package_takes_them_along(galleries: Galleries) -> None:
    with_crop = add(galleries.store, "ann", face(9, crop=CROP))
    add(galleries.store, "ann", face(8))
    other = "other@1"

    def embed(crops: object) -> list[Template | None]:
        return [template(7, other) for _ in list(crops)]  # type: ignore[call-overload]

    assert corrected.reembed_corrections(galleries.store, staff(galleries), other, embed) == (1, 1)
    assert corrected.reembed_corrections(galleries.store, staff(galleries), other, embed) == (0, 1), (
        "none is made twice"
    )
    assert wrong_probes(galleries.store, staff(galleries), other, ["ann"])["ann"].ids == (with_crop.id,)
    assert len(wrong_probes(galleries.store, staff(galleries), PACKAGE, ["ann"])["ann"].ids) == 2
    corrected.drop_other_packages(galleries.store, staff(galleries), other)
    assert wrong_probes(galleries.store, staff(galleries), PACKAGE, ["ann"]) == {}
    assert len(wrong_probes(galleries.store, staff(galleries), other, ["ann"])["ann"].ids) == 1


def test_what_is_exported_comes_back_once(galleries: Galleries) -> None:
    add(galleries.store, "ann", face(9, crop=CROP))
    add(galleries.store, "bob", face(8))
    written = list(corrected.read_corrections(galleries.store, staff(galleries), crops=True))
    assert [correction.crop is not None for correction in written] == [True, False]
    corrected.restore_corrections(galleries.store, staff(galleries), written, lambda _: None)
    assert len(list(corrected.read_corrections(galleries.store, staff(galleries), crops=True))) == 2
    copy = galleries.create_gallery("copy", PACKAGE, DIMENSION)
    enroll(galleries, "ann", 1, gallery="copy")
    for _ in range(2):
        corrected.restore_corrections(galleries.store, copy, written, lambda _: None)
    (moved,) = corrected.read_corrections(galleries.store, galleries.store.gallery("copy"), crops=True)
    assert (moved.subject, moved.template, moved.crop) == ("ann", written[0].template, written[0].crop)
    assert moved.id != written[0].id
    past = Correction("f" * 32, "ann", PACKAGE, written[0].template, None, "2025", "2026-01-01T00:00:00.000000Z")
    corrected.restore_corrections(galleries.store, copy, [past], lambda _: None)
    assert len(list(corrected.read_corrections(galleries.store, galleries.store.gallery("copy"), crops=True))) == 1
