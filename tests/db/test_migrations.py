"""The schema is migrated when a database is opened, by one process at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import make_url

from app.db.migrations import MIGRATIONS, VERSION, is_current
from app.db.schema import METADATA
from app.errors import Unusable
from app.gallery.store import Store
from app.gallery.subjects import create_subject
from tests.support.changing import written
from tests.support.following import engine_of
from tests.support.postgres import new_database
from tests.support.version_0_1_0 import make_0_1_0


def alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config


@pytest.mark.parametrize("earlier", [None, "0012", "0024"])
def test_new_and_earlier_databases_get_the_tables_that_the_program_expects(
    empty_database_url: str, earlier: str | None
) -> None:
    Store(empty_database_url).close()
    if earlier is not None:
        make_0_1_0(empty_database_url)
        with engine_of(empty_database_url).begin() as connection:
            config = alembic()
            config.attributes["connection"] = connection
            command.upgrade(config, earlier)
        Store(empty_database_url).close()
    with engine_of(empty_database_url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
        assert context.get_current_revision() is not None


def test_a_schema_that_is_current_is_known_without_alembic(empty_database_url: str) -> None:
    """Each of its revisions but the last is brought up to date by it."""
    Store(empty_database_url).close()
    head = ScriptDirectory.from_config(alembic()).get_current_head()
    with engine_of(empty_database_url).begin() as connection:
        assert connection.execute(sa.select(VERSION.c.version_num)).scalars().all() == [head]
        assert is_current(connection)
    make_0_1_0(empty_database_url)
    with engine_of(empty_database_url).connect() as connection:
        assert not is_current(connection)
    Store(empty_database_url).close()
    with engine_of(empty_database_url).connect() as connection:
        assert is_current(connection)


def test_opening_again_keeps_what_is_there(empty_database_url: str) -> None:
    store = Store(empty_database_url)
    made = store.create_gallery("staff", "sface@1", 128)
    store.close()
    again = Store(empty_database_url)
    assert again.gallery("staff") == made
    again.close()


def test_processes_that_start_together_make_the_schema_once(empty_database_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: Store(empty_database_url), range(4)))
    stores[0].create_gallery("staff", "sface@1", 128)
    assert {store.gallery("staff").id for store in stores} == {"staff"}
    for store in stores:
        store.close()


@pytest.mark.parametrize("revision", ["from_the_future", "0017", "0025"])
def test_a_database_of_a_newer_or_unreleased_version_is_refused_and_left_alone(
    empty_database_url: str, revision: str
) -> None:
    Store(empty_database_url).close()
    with engine_of(empty_database_url).begin() as connection:
        connection.execute(sa.update(VERSION).values(version_num=revision))
    with pytest.raises(Unusable, match=f"newer version of this program, or an unreleased one.*{revision}") as caught:
        Store(empty_database_url)
    assert caught.value.code == "database_too_new"
    with engine_of(empty_database_url).connect() as connection:
        assert connection.execute(sa.select(VERSION.c.version_num)).scalar() == revision


def test_names_are_folded_anew_and_removed_kinds_of_search_become_int8(empty_database_url: str) -> None:
    store = Store(empty_database_url)
    kinds = {"fp32": "fp32", "fp16": "int8", "int8": "int8", "approximate": "int8"}
    gallery, *_ = [store.create_gallery(kind, "sface@1", 128) for kind in kinds]
    for number in range(3):
        written(store, gallery, create_subject, f"Tony_Blair_{number}", "Zoë")
    store.close()
    folded = sa.text("SELECT folded FROM subjects ORDER BY key")
    with engine_of(empty_database_url).connect() as connection:
        new = connection.execute(folded).scalars().all()
    make_0_1_0(empty_database_url)
    with engine_of(empty_database_url).begin() as connection:
        assert connection.execute(folded).scalars().all() == [f"tony_blair_{number}\nzoë" for number in range(3)]
        connection.execute(sa.text("UPDATE galleries SET search = id"))
    again = Store(empty_database_url)
    assert {gallery.id: gallery.search for gallery in again.galleries().items} == kinds
    again.close()
    with engine_of(empty_database_url).connect() as connection:
        assert connection.execute(folded).scalars().all() == new == [f"tony blair {n}\nzoe" for n in range(3)]


def test_postgresql_must_be_utf8(postgresql: Path) -> None:
    with pytest.raises(Unusable, match="UTF8, not SQL_ASCII"):
        Store(new_database(postgresql, "ENCODING 'SQL_ASCII' TEMPLATE template0"))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/name", "nonsense"])
def test_databases_that_cannot_serve_are_refused(url: str) -> None:
    with pytest.raises(Unusable) as caught:
        Store(url)
    assert caught.value.code == "database_unsupported"


def test_postgres_is_postgresql_as_other_programs_write_it(postgresql: Path) -> None:
    url = make_url(new_database(postgresql)).set(drivername="postgres")
    store = Store(url.render_as_string(hide_password=False))
    assert not store.galleries().items
    store.close()


def test_a_database_that_cannot_be_opened_is_said_so(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}", f"postgresql://nobody@/nothing?host={tmp_path}"):
        with pytest.raises(Unusable) as caught:
            Store(url)
        assert caught.value.code == "database_unavailable"


def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "likeness.db").write_text("something else entirely " * 100)
    with pytest.raises(Unusable) as caught:
        Store(f"sqlite:///{tmp_path / 'likeness.db'}")
    assert caught.value.code == "database_unavailable"
