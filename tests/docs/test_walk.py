"""The walk of one enrollment, in docs/how-to/change-the-code.md, goes where a request goes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import PROJECT
from tests.support.trace import Trace, room_of, traced

PAGE = PROJECT / "docs" / "how-to" / "change-the-code.md"
MOST = {"enroll": (38, 335), "identify": (33, 248)}
"""No request should see more files and functions than this (37 and 333 now, 32 and 246, comprehensions among them; a
few more where threads overlap): see which change made the way longer."""


def check_way(name: str, trace: Trace) -> None:
    files, functions = MOST[name]
    assert len(trace.files) <= files, trace.files
    assert len(trace.calls) <= functions
    one_way = {"recognition", "gallery", "pipeline"}
    back = [pair for pair in trace.upward if {room_of(function) for function in pair} <= one_way]
    assert not back, "recognition, gallery and pipeline call each other in one direction"


def test_the_walk_of_one_enrollment_is_the_one_that_a_request_takes(tmp_path: Path) -> None:
    walk = PAGE.read_text().partition("## The walk")[2]
    named = re.findall(r"`app/([\w/]+\.py)`", walk)
    trace = traced("enroll", tmp_path)
    assert set(named) <= set(trace.files), "the page names files that the request does not see"
    rooms = {file.partition("/")[0] for file in trace.files if "/" in file}
    shown = {name.partition("/")[0] for name in named} | set(re.findall(r"`app/(\w+)`", walk))
    assert {"api", "access", "concurrency", "db", "face", "gallery", "inference", "recognition", "search"} <= shown
    assert rooms <= shown, "the request goes through rooms that the page does not name"
    check_way("enroll", trace)


def test_an_identification_takes_a_way_no_longer_than_it_did(tmp_path: Path) -> None:
    check_way("identify", traced("identify", tmp_path))
