"""`pytest --processes 4`: tests run in processes that are forked from the one that has collected them.

Each worker of pytest-xdist imports and collects everything again, which takes ten seconds of processor time. Here a
process takes one file after another, in the order of collection, and sends its reports to the first process, which
shows them as if it had run the tests itself. Fixtures of the session are made once for each process.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

Location = tuple[str, int | None, str]
MADE_ONCE = "shared_server"
"""A fixture of the session that takes long to make: one process runs all files that ask for it, as if they were one."""
NUMBER_BYTES = 2
"""Of a file's number in the queue. Reads and writes of so few bytes of a pipe are atomic."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="how many processes run tests, forked after collection")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the files in so many processes; return None where pytest itself runs them, or says what was not collected."""
    count = session.config.getoption("--processes")
    if not count or session.testsfailed or session.config.option.collectonly:
        return None
    asking = {item.path for item in session.items if MADE_ONCE in getattr(item, "fixturenames", ())}
    files: dict[object, list[pytest.Item]] = {}
    for item in session.items:
        files.setdefault(MADE_ONCE if item.path in asking else item.path, []).append(item)
    queue = _queue(len(files))
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # one folder, removed at the end
    if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):
        reporter.showfspath = False  # files are reported in turns
    context = multiprocessing.get_context("fork")
    running: dict[Connection, BaseProcess] = {}
    for _ in range(min(count, len(files))):
        reports, sent = context.Pipe(duplex=False)
        process: BaseProcess = context.Process(target=_work, args=(session, list(files.values()), queue, sent))
        process.start()
        sent.close()
        running[reports] = process
    try:
        _show(session, running)
    finally:
        for process in running.values():
            process.terminate()
        os.close(queue)
    return True


def _queue(count: int) -> int:
    """Return a pipe that holds the numbers below ``count``. Whoever reads one has taken that file."""
    taken, waiting = os.pipe()
    os.write(waiting, b"".join(number.to_bytes(NUMBER_BYTES, "big") for number in range(count)))
    os.close(waiting)
    return taken


def _show(session: pytest.Session, running: dict[Connection, BaseProcess]) -> None:
    """Give pytest the reports of all processes until the last has ended."""
    hook = session.config.hook
    begun: dict[Connection, tuple[str, Location]] = {}
    left = len(session.items)
    while running:
        for connection in wait(list(running)):
            assert isinstance(connection, Connection)
            try:
                what, said = connection.recv()
            except EOFError:
                process = running.pop(connection)
                process.join()
                if connection in begun:
                    hook.pytest_runtest_logreport(report=_crashed(*begun.pop(connection), process.exitcode))
                continue
            if what == "begins":
                begun[connection] = said
            elif what == "report":
                report = hook.pytest_report_from_serializable(config=session.config, data=said)
                hook.pytest_runtest_logreport(report=report)
            elif what == "ends":
                left -= 1
                nodeid, location = begun.pop(connection)
                hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
    if left:
        raise session.Failed(f"{left} tests were not run to their end, as their processes have ended")


def _crashed(nodeid: str, location: Location, status: int | None) -> pytest.TestReport:
    message = f"its process ended with {status}, and the tests of its file after this one were not run"
    return pytest.TestReport(nodeid, location, {}, "failed", message, "call")


def _work(session: pytest.Session, files: list[list[pytest.Item]], queue: int, sent: Connection) -> None:
    """Run files as long as there are any."""
    config = session.config
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(Sender(config, sent))
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()  # into files that the processes would share
    capture.start_global_capturing()
    capture.suspend_global_capture()
    items = _items(files, queue)
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following


def _items(files: list[list[pytest.Item]], queue: int) -> Iterator[pytest.Item]:
    while number := os.read(queue, NUMBER_BYTES):
        yield from files[int.from_bytes(number, "big")]


class Sender:
    """Sends what a process reports."""

    def __init__(self, config: pytest.Config, sent: Connection) -> None:
        self._config, self._sent = config, sent

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self._sent.send(("begins", (nodeid, location)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._sent.send(("report", self._config.hook.pytest_report_to_serializable(config=self._config, report=report)))

    def pytest_runtest_logfinish(self) -> None:
        self._sent.send(("ends", None))
