"""Encrypted templates, crops and snapshots can't be found in any file; keys can be rotated while servers run."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from app.config import Settings
from app.db.encryption import Sealer, encode_key, key_id, new_key
from app.db.engine import Database
from app.db.schema import CROPS, FACES, JOBS
from app.db.sealed_columns import Blobs
from app.errors import Unusable
from app.features.checks.comparing import check_index
from app.features.doctor.command import examine
from app.features.vault.reseal import PLAIN, census, reseal, seal_job_keys
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.gallery.subjects import delete_subject
from app.jobs.store import JobStore
from app.search.follower import LocalBackend
from app.search.snapshots import Snapshots
from tests.conftest import later_on_postgresql
from tests.support.changing import changed
from tests.support.commands import run
from tests.support.following import engine_of, found
from tests.support.galleries import DIMENSION, PACKAGE, face, staff, template
from tests.support.indexes import rebuild
from tests.support.jobs import NOBODYS, job_store
from tests.support.service import COLLINS, running

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
SEEDS = range(12)
PEOPLE = [f"s{seed}" for seed in SEEDS]
NOTHING = dict.fromkeys(("template", "second", "crop", "job", "correction", "sighting", "sighting_crop"), 0)
ALL_SEEDS = NOTHING | {"template": len(SEEDS), "crop": len(SEEDS)}
"""What a census counts of each kind."""


def open_galleries(url: str, *keys: bytes, seals: bool = True, folder: Path | None = None) -> Galleries:
    ring = Sealer(keys) if keys else None
    store = Store(url, blobs=Blobs(ring, seals=seals))
    snapshots = Snapshots(folder, min_faces=1, sealer=ring if seals else None) if folder else None
    return Galleries(store, LocalBackend(store.change_reader, snapshots))


def crop_of(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (112, 112, 3), np.uint8)


def enroll_all(galleries: Galleries, seeds: Iterable[int] = SEEDS) -> None:
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    for seed in seeds:
        galleries.enroll(galleries.store.gallery("staff"), f"s{seed}", [face(seed, crop=crop_of(seed))])


def stored_crops(galleries: Galleries) -> dict[str, bytes]:
    crops = {}
    for name in PEOPLE:
        face_id = galleries.store.faces(staff(galleries), name).items[0].face_id
        crops[name] = galleries.store.face(staff(galleries), face_id, name).crop or b""
    return crops


def traces(paths: Iterable[Path], crops: dict[str, bytes]) -> set[str]:
    """Whose template or crop lies open in the files: pieces of either, wherever a page may end."""
    contents = [path.read_bytes() for path in paths if path.is_file()]
    found = set()
    for seed in SEEDS:
        plain = template(seed).vector.astype("<f4").tobytes()
        pieces = [plain, crops[f"s{seed}"][200:232], crops[f"s{seed}"][-40:-8]]
        if any(piece in content for piece in pieces for content in contents):
            found.add(f"s{seed}")
    return found


@later_on_postgresql
def test_sealed_faces_are_answered_as_plain_ones_and_lie_nowhere_open(database_url: str, tmp_path: Path) -> None:
    galleries = open_galleries(database_url, OLD, folder=tmp_path / "snapshots")
    enroll_all(galleries)
    assert [found(galleries, seed) for seed in SEEDS] == [[name] for name in PEOPLE]
    assert check_index(galleries, galleries.store.gallery("staff")).ok
    crops = stored_crops(galleries)
    assert all(crop.startswith(b"\xff\xd8") for crop in crops.values())
    stored = galleries.store.faces(staff(galleries), "s3").items[0]
    assert np.array_equal(stored.template.vector, template(3).vector)
    files = list(tmp_path.rglob("*"))
    assert traces(files, crops) == set()
    galleries.indexes.save()
    assert list(tmp_path.glob("snapshots/*.snapshot"))
    assert traces(tmp_path.rglob("*"), crops) == set()
    galleries.close()
    again = open_galleries(database_url, NEW, OLD, folder=tmp_path / "snapshots")
    assert [found(again, seed) for seed in SEEDS] == [[name] for name in PEOPLE]
    again.close()


@later_on_postgresql
def test_without_the_right_key_there_is_no_start(database_url: str) -> None:
    galleries = open_galleries(database_url, OLD)
    enroll_all(galleries, [1])
    galleries.close()
    for keys in ((), (NEW,)):
        with pytest.raises(Unusable, match=key_id(OLD).hex()) as caught:
            open_galleries(database_url, *keys)
        assert caught.value.code == "sealed_unreadable"
    open_galleries(database_url, OLD, seals=False).close()


@later_on_postgresql
def test_a_blob_in_another_row_or_altered_is_never_taken(database_url: str) -> None:
    galleries = open_galleries(database_url, OLD)
    enroll_all(galleries)
    with engine_of(database_url).begin() as connection:
        first, second = connection.execute(
            sa.select(FACES.c.key, FACES.c.template).order_by(FACES.c.key).limit(2)
        ).all()
        connection.execute(sa.update(FACES).where(FACES.c.key == first.key).values(template=second.template))
        crop = connection.execute(sa.select(CROPS.c.jpeg).where(CROPS.c.face_key == second.key)).scalar_one()
        changed = bytes(crop[:-1]) + bytes([crop[-1] ^ 1])
        connection.execute(sa.update(CROPS).where(CROPS.c.face_key == second.key).values(jpeg=changed))
    with pytest.raises(Unusable) as caught:
        rebuild(galleries, galleries.store.gallery("staff"))
    assert caught.value.code == "sealed_unreadable"
    home = staff(galleries)
    with pytest.raises(Unusable) as caught:
        galleries.store.face(home, galleries.store.faces(home, "s1").items[0].face_id, "s1")
    assert caught.value.code == "sealed_unreadable"
    galleries.close()


@later_on_postgresql
def test_there_and_back_with_nothing_left_behind(database_url: str, tmp_path: Path) -> None:
    """Plain, sealed, under a new key, plain again; after each step the files hold nothing of the step before."""
    folder = tmp_path / "snapshots"
    is_sqlite = database_url.startswith("sqlite")
    galleries = open_galleries(database_url, folder=folder)
    enroll_all(galleries)
    crops = stored_crops(galleries)
    galleries.close()
    if is_sqlite:
        assert traces(tmp_path.rglob("*"), crops) == set(PEOPLE)
    old_blobs: list[bytes] = []
    for keys in ((OLD,), (NEW, OLD), (NEW,)):
        galleries = open_galleries(database_url, *keys, folder=folder)
        database = galleries.store.database
        changed = sum(reseal(database, Blobs(Sealer(keys)), batch=5))
        assert changed == (0 if keys == (NEW,) else 2 * len(SEEDS))
        assert census(database) == {key_id(keys[0]).hex(): ALL_SEEDS}
        assert database.scrub()
        assert [found(galleries, seed) for seed in SEEDS] == [[name] for name in PEOPLE]
        check_index(galleries, galleries.store.gallery("staff"))
        galleries.close()
        if is_sqlite:
            contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
            assert traces(tmp_path.rglob("*"), crops) == set()
            assert not changed or not [blob for blob in old_blobs for content in contents if blob[5:60] in content]
            if keys != (OLD,):
                assert not any(
                    b"\x01" + key_id(OLD) in content or b"\x02" + key_id(OLD) in content for content in contents
                )
        with engine_of(database_url).connect() as connection:
            old_blobs = [bytes(blob) for blob in connection.execute(sa.select(FACES.c.template)).scalars()]
    galleries = open_galleries(database_url, NEW, seals=False, folder=folder)
    assert sum(reseal(galleries.store.database, Blobs(Sealer([NEW]), seals=False))) == 2 * len(SEEDS)
    assert census(galleries.store.database) == {PLAIN: ALL_SEEDS}
    galleries.close()
    galleries = open_galleries(database_url, folder=folder)
    assert stored_crops(galleries) == crops
    assert [found(galleries, seed) for seed in SEEDS] == [[name] for name in PEOPLE]
    galleries.close()


@later_on_postgresql
def test_sealing_goes_on_where_it_was_stopped(database_url: str) -> None:
    galleries = open_galleries(database_url)
    enroll_all(galleries)
    assert next(iter(reseal(galleries.store.database, Blobs(Sealer([OLD])), batch=3))) == 3
    assert census(galleries.store.database)[PLAIN]["template"] == len(SEEDS) - 3
    assert sum(reseal(galleries.store.database, Blobs(Sealer([OLD])), batch=3)) == 2 * len(SEEDS) - 3
    galleries.close()


@later_on_postgresql
@pytest.mark.long
def test_others_enroll_and_delete_while_a_key_is_replaced(database_url: str) -> None:
    """Two servers, one still sealing with the old key: nothing is lost, and its mark stays as long as it does."""
    first = open_galleries(database_url, OLD, NEW)
    enroll_all(first)
    second = open_galleries(database_url, NEW, OLD)
    second.indexes.load()
    ended = threading.Event()

    def churn() -> None:
        number = 1000
        while not ended.is_set():
            first.enroll(first.store.gallery("staff"), f"x{number}", [face(number)])
            if number % 3 == 0:
                changed(first, "staff", delete_subject, f"x{number}")
            number += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(3):
            sum(reseal(second.store.database, Blobs(Sealer([NEW, OLD])), batch=4))
            time.sleep(0.05)
    finally:
        ended.set()
        thread.join()
    if key_id(OLD).hex() in census(second.store.database):
        with pytest.raises(Unusable):
            open_galleries(database_url, NEW)
    sum(reseal(second.store.database, Blobs(Sealer([NEW, OLD]))))
    last = open_galleries(database_url, NEW)
    for galleries in (first, second, last):
        galleries.indexes.follow()
        assert check_index(galleries, galleries.store.gallery("staff")).ok
        assert [found(galleries, seed) for seed in SEEDS] == [[name] for name in PEOPLE]
        galleries.close()


def test_snapshots_under_another_form_are_removed_and_made_anew(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'likeness.db'}", tmp_path / "snapshots"
    enroll_all(open_galleries(url, folder=folder))
    forms: list[bytes] = []
    for keys in ((), (OLD,), (NEW, OLD)):
        galleries = open_galleries(url, *keys, folder=folder)
        if keys:
            sum(reseal(galleries.store.database, Blobs(Sealer(keys))))
        galleries.indexes.load()
        galleries.indexes.save()
        (path,) = folder.glob("*.snapshot")
        forms.append(path.read_bytes()[:5])
        assert [found(galleries, seed) for seed in SEEDS] == [[name] for name in PEOPLE]
        galleries.close()
    assert forms == [b'{"mag', b"\x02" + key_id(OLD), b"\x02" + key_id(NEW)]


def test_a_sealed_snapshot_that_was_altered_is_left_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url, folder = f"sqlite:///{tmp_path / 'likeness.db'}", tmp_path / "snapshots"
    galleries = open_galleries(url, OLD, folder=folder)
    enroll_all(galleries)
    galleries.close()
    (path,) = folder.glob("*.snapshot")
    whole = path.read_bytes()
    for place in (0, 3, 20, 60, 4000, -1):
        altered = bytearray(whole)
        altered[place] ^= 1
        path.write_bytes(altered)
        caplog.clear()
        galleries = open_galleries(url, OLD, folder=folder)
        assert [found(galleries, seed) for seed in SEEDS] == [[name] for name in PEOPLE]
        galleries.close()
        assert place in {0, 3} or "is skipped" in caplog.text, place


def job_keys(database: Database) -> list[bytes | None]:
    with database.read() as connection:
        return list(connection.execute(sa.select(JOBS.c.secret).order_by(JOBS.c.key)).scalars())


@later_on_postgresql
def test_keys_of_jobs_files_are_sealed_counted_rotated_and_unsealed(database_url: str) -> None:
    plain, secret = Store(database_url), new_key()
    old = JobStore(plain.database).create("import", secret=secret)
    JobStore(plain.database).create("reembed")
    assert job_keys(plain.database) == [secret, None]
    database, blobs = plain.database, Blobs(Sealer([OLD]))
    assert JobStore(database, blobs).secret(old) == secret, "those of earlier versions are still read"
    assert seal_job_keys(database, blobs) == 1
    new = JobStore(database, blobs).create("export", secret=secret)
    assert not any(secret in (stored or b"") for stored in job_keys(database))
    assert census(database) == {key_id(OLD).hex(): NOTHING | {"job": 2}}
    rotated = Blobs(Sealer([NEW, OLD]))
    assert sum(reseal(database, rotated)) == 2
    assert census(database) == {key_id(NEW).hex(): NOTHING | {"job": 2}}
    assert {JobStore(database, rotated).secret(job) for job in (old, new)} == {secret}
    with pytest.raises(Unusable):
        JobStore(database, blobs).secret(old)
    with database.write() as connection:  # a key moved to another job doesn't open there
        first, _, second = job_keys(database)
        connection.execute(sa.update(JOBS).where(JOBS.c.key == new.key).values(secret=first))
    with pytest.raises(Unusable):
        JobStore(database, rotated).secret(new)
    with database.write() as connection:
        connection.execute(sa.update(JOBS).where(JOBS.c.key == new.key).values(secret=second))
    assert sum(reseal(database, Blobs(Sealer([NEW]), seals=False))) == 2
    assert job_keys(database) == [secret, None, secret]
    plain.close()


def test_a_server_with_a_key_seals_the_plain_keys_of_earlier_jobs(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(encode_key(OLD))
    keys.chmod(0o600)
    with running(tmp_path / "data"):
        pass
    with job_store(tmp_path / "data") as (_, jobs):
        jobs.create(NOBODYS, secret=NEW)
    with running(tmp_path / "data", encryption_key_file=keys):
        pass
    store = Store(f"sqlite:///{tmp_path / 'data' / 'likeness.db'}", blobs=Blobs(Sealer([OLD])))
    assert NEW not in job_keys(store.database)
    assert census(store.database) == {key_id(OLD).hex(): NOTHING | {"job": 1}}
    store.close()


def test_a_plain_installation_is_sealed_and_unsealed_by_command(tmp_path: Path) -> None:
    data, keys = tmp_path / "data", tmp_path / "keys"
    with running(data) as client:
        client.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
        faces = "/v1/galleries/crew/subjects/eileen/faces"
        enrolled = client.post(faces, files={"images": COLLINS}).raise_for_status().json()["enrolled"][0]["face_id"]
        crop = client.get(f"{faces}/{enrolled}/crop").content
        signing = client.get("/v1/server-key").json()
    pieces = [crop[300:340], crop[-60:-20]]

    def left() -> list[bool]:
        contents = b"".join(
            path.read_bytes() for path in data.rglob("*") if path.is_file() and path.parent.name != "models"
        )
        return [piece in contents for piece in pieces]

    assert left() == [True, True]
    made = run(data, "vault", "new-key")
    keys.write_text(made.stdout)
    keys.chmod(0o600)
    with_keys: dict[str, object] = {"ENCRYPTION_KEY_FILE": keys}
    assert run(data, "vault", "seal").returncode == 2
    status = run(data, "vault", "status", **with_keys)
    assert status.returncode == 1
    assert "plain     1 templates, 1 crops, 0 job keys, 0 corrections (to be changed" in status.stdout
    sealed = run(data, "vault", "seal", **with_keys)
    expected = r"2 templates, crops and job keys and [12] secrets are now under key"  # the clock's comes with time
    assert re.match(expected, sealed.stdout), sealed.stderr
    assert left() == [False, False]
    assert run(data, "vault", "status", **with_keys).returncode == 0
    (data / "vault.key").unlink()  # with encryption keys it is needed no more
    with running(data, encryption_key_file=keys) as client:
        assert client.get(f"{faces}/{enrolled}/crop").content == crop
        assert client.get("/v1/server-key").json() == signing
        assert client.get("/v1/galleries/crew/check").json()["ok"]
    assert not (data / "vault.key").exists()
    assert verdicts(data, encryption_key_file=keys) == ["ok"]
    (finding,) = examine(Settings(data_dir=data), ["vault"])
    assert (finding.verdict, "no key is set" in finding.found) == ("failed", True), finding.found
    with pytest.raises(Unusable, match="no encryption key is set"), running(data):
        pass
    keys.chmod(0o644)
    assert verdicts(data, encryption_key_file=keys) == ["warning"]
    assert run(data, "vault", "unseal", **with_keys).returncode == 2
    unsealed = run(data, "vault", "unseal", ENCRYPTION="open", **with_keys)
    expected = r"2 templates, crops and job keys and [12] secrets are now plain"
    assert re.match(expected, unsealed.stdout), unsealed.stderr
    with running(data) as client:
        assert client.get(f"{faces}/{enrolled}/crop").content == crop
        assert client.get("/v1/server-key").json() == signing


def verdicts(data: Path, **settings: object) -> list[str]:
    given = Settings.model_validate({"data_dir": data, **settings})
    return [finding.verdict for finding in examine(given, ["vault"])]


def test_keys_come_from_one_place_and_are_shown_nowhere(tmp_path: Path) -> None:
    text = encode_key(OLD)
    assert text not in repr(Settings(data_dir=tmp_path, encryption_key=text))  # type: ignore[arg-type]  # as from outside
    refused = run(tmp_path, "vault", "status", ENCRYPTION_KEY=text, ENCRYPTION_KEY_FILE=tmp_path / "keys")
    assert (refused.returncode, text in refused.stderr) == (2, False)
    refused = run(tmp_path, "vault", "status", ENCRYPTION_KEY=text[:-4])
    assert (refused.returncode, text[:-4] in refused.stderr) == (4, False)
