"""Fixtures that several test files share."""

from __future__ import annotations

import compileall
import functools
import gc
import importlib
import os
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import hypothesis
import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray

from app.api import page_files
from app.db.engine import Database
from tests.support.compiled import Compiled
from tests.support.live import LiveServer, serving
from training.service import reserved_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from app.gallery.service import Galleries
    from tests.support.browsing import Visitor
from tests.support import ready
from tests.support.postgres import cluster, empty, new_database

PROJECT = Path(__file__).resolve().parent.parent
OFF_BY_DEFAULT: dict[str, Any] = {
    name: "on" for name in ("deepstack", "immich", "watching") if (PROJECT / "app" / "features" / name).is_dir()
}
"""What switches such features on, but for those that `tests/test_features.py` has taken out."""
MODULES = ("app", "training", "bench", "clients", "tests")
"""Folders of the modules that the workers compile."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Environment for PyTorch, which reads it when it is loaded. Several tests run at once, and threads that wait for each
other on few cores make small trainings ten times slower. A test that needs more threads sets them itself."""
COMPILED = {"compiled_cache": Compiled()}
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a place for folders that `tempfile` makes
FILES_BYTES = 4 * 2**30
"""Free space for the files of a run, about one GB, and of other runs at the same time."""
LONGEST_FIRST = (
    "kill",
    "portable",
    "models",
    "add",
    "strangers_path",
    "features",
    "browser_people",
    "bench",
    "people",
    "memory",
    "browser",
    "workers",
    "rekognition",
    "serving",
    "openapi",
    "trainer",
    "access",
    "commands",
    "sightings",
    "reembedding",
    "import",
    "pipeline",
    "webhooks",
    "review",
    "snapshots",
    "gallery_archive",
    "encryption_at_rest",
    "api_recognition",
    "api_server",
)
"""Files that start first: if one started last, its worker would keep the run waiting."""
FIRST_ON_POSTGRESQL = ("store", "jobs", "gallery", "change", "following", "migrations", "usage", "clock", "keys")
"""Files whose tests run on both kinds of database in the first stage: SQL of each kind, locks, and followers. Tests of
the features run on SQLite in the first stage, and on PostgreSQL in the second."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="the long versions of tests that have a short one: two minutes of load, two folds of LFW over HTTP, "
        "the demo's training",
    )


def pytest_configure(config: pytest.Config) -> None:
    # The time to draw and to test an example depends on the machine and its other work.
    full = config.getoption("--full")
    hypothesis.settings.register_profile(
        "patient",
        deadline=None,
        max_examples=100 if full else 25,
        derandomize=not full,  # the same examples at each run: what passes here passes elsewhere
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("patient")
    os.environ |= ONE_THREAD
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers use what their parent process has made
        keep_files_in_memory()
        ready.begin()


def keep_files_in_memory() -> None:
    """Keep temporary files in /dev/shm if it has room: on a disk, thousands of commits would each wait for it."""
    if "TMPDIR" in os.environ or not SHARED_MEMORY.is_dir():
        return
    place = os.statvfs(SHARED_MEMORY)
    if place.f_bavail * place.f_frsize > FILES_BYTES and not place.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(SHARED_MEMORY)
        tempfile.tempdir = None  # tempfile then looks it up again


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector, which would take half the time and find nothing."""
    gc.disable()
    try:
        if (worker := getattr(session.config, "workerinput", None)) is not None and not sys.dont_write_bytecode:
            compile_share(int(worker["workerid"].removeprefix("gw")), worker["workercount"])
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(50_000)  # Python's own 700 takes 8 % of the processor time, 10,000 takes 4 %


def compile_share(number: int, count: int) -> None:
    """Compile one part in ``count`` of all modules, and import those with tests, whose assertions pytest rewrites.

    All workers begin at once and need every module: in a fresh clone each would compile them all, for ten seconds of
    processor time.
    """
    ours = [file for folder in MODULES for file in sorted((PROJECT / folder).rglob("*.py"))]
    tests = [file for file in ours if file.name.startswith("test_")]
    for file in sorted({*ours} - {*tests})[number::count]:
        compileall.compile_file(file, quiet=2)
    for file in tests[number::count]:
        with suppress(Exception, pytest.skip.Exception):  # collecting reports the error
            importlib.import_module(".".join(file.relative_to(PROJECT).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order whole files, as `make test` distributes them, and move tests on PostgreSQL to the second stage.

    The tests of FIRST_ON_POSTGRESQL stay in the first.
    """
    for item in items:
        if item.path.stem.removeprefix("test_") not in FIRST_ON_POSTGRESQL and "postgresql" in parameters_of(item):
            item.add_marker(pytest.mark.long)
    order = {f"test_{name}": place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


def parameters_of(item: pytest.Item) -> set[str]:
    """Return the test's parameters that are text."""
    callspec = getattr(item, "callspec", None)
    return {value for value in callspec.params.values() if isinstance(value, str)} if callspec else set()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why a test was run again: it may not fail again for weeks."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first run of {report.nodeid}")
        terminalreporter.line(report.longreprtext)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        ready.end()


@pytest.fixture(scope="session", autouse=True)
def _services_start_quickly() -> Iterator[None]:
    """Share the opened models, the page's files and compiled SQL between all services of this process.

    Servers in processes of their own do not share them.
    """
    with pytest.MonkeyPatch.context() as changed:
        read_once = functools.cache(page_files.served_files)
        changed.setattr(sa, "create_engine", functools.partial(sa.create_engine, execution_options=COMPILED))
        changed.setattr("app.main.open_models", ready.open_models)
        changed.setattr("app.api.page.served_files", lambda added=(): read_once(tuple(added)))
        yield


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether a test with a short and a long version runs the long one."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real faces for measuring; skips the test if this machine does not have it."""
    folder = PROJECT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the research data in ../shared/data, which is not on this machine")
    return folder


@pytest.fixture(scope="session")
def astronaut() -> NDArray[np.uint8]:
    """(512, 512, 3) uint8 RGB: Eileen Collins, one frontal face (NASA, public domain)."""
    skimage_data = pytest.importorskip("skimage.data", reason="the dev extra brings scikit-image's photo")
    photo: NDArray[np.uint8] = skimage_data.astronaut()
    return photo


@pytest.fixture(scope="session")
def yunet() -> Path:
    """The prepared file of YuNet."""
    return ready.ready("yunet")


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests marked `anyio`: the server's."""
    return "asyncio"


@pytest.fixture
def port() -> Iterator[int]:
    """A port of 127.0.0.1, reserved for the test."""
    with reserved_port() as number:
        yield number


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server process of its own, with an empty data folder."""
    with serving(tmp_path_factory.mktemp("live") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server process that tests share. Each makes its own galleries, and none changes what all of them see."""
    with serving(tmp_path_factory.mktemp("shared") / "data", {"FAILED_KEYS": "100000/s"}, remembering=True) as server:
        yield server


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A real browser whose camera shows docs/samples/both.jpg and, if this machine has their photos, two strangers."""
    from tests.support.browsing import browser, camera, film, scenes  # noqa: PLC0415 - most tests do without

    folder = tmp_path_factory.mktemp("film")
    with browser(*camera(film(folder / "film.mjpeg", scenes(folder)))) as started:
        yield started


@pytest.fixture
def visitor(chromium: Browser, live_server: LiveServer) -> Iterator[Visitor]:
    """A person at a desk who uses the module's own server with that browser."""
    from tests.support.browsing import DESK, visiting  # noqa: PLC0415 - most tests do without

    with visiting(chromium, live_server, viewport=DESK) as found:
        yield found


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of one service in this process, which tests share: each makes its own galleries."""
    from tests.support.service import running  # noqa: PLC0415 (which needs this module's PROJECT)

    # All tests share an address, and many send wrong keys.
    with running(tmp_path_factory.mktemp("service"), failed_keys="100000/s", **OFF_BY_DEFAULT) as client:
        yield client


@pytest.fixture
def gallery(api: httpx.Client) -> Iterator[str]:
    """The path of an empty gallery, which is deleted after the test."""
    made = api.post("/v1/galleries", json={"id": f"gallery-{uuid.uuid4().hex}"}).raise_for_status().json()
    path = f"/v1/galleries/{made['id']}"
    yield path
    api.delete(path)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Path]:
    """The socket folder of a PostgreSQL server that runs for the tests; its superuser is ``postgres``."""
    with cluster() as made:
        yield made.folder


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'likeness.db'}"
    return new_database(request.getfixturevalue("postgresql"))


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For tests whose SQL statements other tests run on both kinds of database."""
later_on_postgresql = pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True
)
"""For long tests, if other tests try the same on both kinds of database in the first stage."""


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database of each kind in turn. It is a copy of an opened one, which is faster than opening one."""
    if request.param == "sqlite":
        ready.give_database(tmp_path)
        yield f"sqlite:///{tmp_path / 'likeness.db'}"
        return
    emptied: list[str] = request.getfixturevalue("emptied_postgresql")
    template: str = request.getfixturevalue("first_postgresql")
    cluster_folder: Path = request.getfixturevalue("postgresql")
    url = emptied.pop() if emptied else new_database(cluster_folder, f"TEMPLATE {template}")
    yield url
    if empty(url):
        emptied.append(url)


@pytest.fixture
def pair(database_url: str) -> Iterator[tuple[Galleries, Galleries]]:
    """The galleries of two processes, with one gallery, `staff`. They follow each other only when called."""
    from tests.support.following import quiet  # noqa: PLC0415 - most tests do without
    from tests.support.galleries import DIMENSION, PACKAGE  # noqa: PLC0415 - the same

    both = quiet(database_url), quiet(database_url)
    both[0].create_gallery("staff", PACKAGE, DIMENSION)
    yield both
    for galleries in both:
        galleries.close()


@pytest.fixture(scope="session")
def emptied_postgresql() -> list[str]:
    """URLs of emptied PostgreSQL databases of earlier tests: making another copy would take ten times as long."""
    return []


@pytest.fixture(scope="session")
def first_postgresql(postgresql: Path) -> str:
    """The name of a PostgreSQL database that has been opened once, to copy."""
    url = new_database(postgresql)
    Database(url).close()
    return str(sa.make_url(url).database)
