"""A signed-in browser's session serves the page alone: no request that a page of another site can send uses it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from app.features.sign_in.routes import SESSION_COOKIE, SESSION_HEADER
from tests.support.access import OPEN, Ground, access_ground, state
from tests.support.service import running

EVIL = {"origin": "https://evil.example"}
PAGE = {SESSION_HEADER: "page"}
ELSEWHERE: tuple[dict[str, str], ...] = (
    {},
    {"origin": "null"},
    EVIL | {"sec-fetch-site": "cross-site"},
    # As if a browser let another site set the page's header.
    EVIL | PAGE | {"sec-fetch-site": "cross-site"},
    PAGE | {"sec-fetch-site": "same-site"},
    PAGE | {"sec-fetch-site": "none"},
)
"""What browsers add to requests that other sites' pages, and addresses typed or clicked elsewhere, have them send."""
FORMS = {
    "text/plain": b'{"id": "crew", "x": "="}',
    "application/x-www-form-urlencoded": b"id=crew&fmr=1",
    "multipart/form-data; boundary=b": b'--b\r\ncontent-disposition: form-data; name="id"\r\n\r\ncrew\r\n--b--\r\n',
}
"""What a form can send without the browser asking for permission first."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with access_ground(tmp_path_factory.mktemp("cross")) as found:
        yield found


@pytest.fixture(scope="module")
def page(ground: Ground) -> dict[str, str]:
    """The headers of a browser that an admin is signed in with, but the one that only the page can send."""
    cookie = ground.admin("POST", "/v1/session").raise_for_status().headers["set-cookie"].partition(";")[0]
    ground.client.cookies.clear()
    assert cookie.startswith(f"{SESSION_COOKIE}=")
    return {"cookie": cookie, "x-api-key": ""}


def test_what_a_form_or_a_link_elsewhere_sends_is_nobodys(ground: Ground, page: dict[str, str]) -> None:
    ids, operations = ground.inhabit(), [name.split() for name in ground.operations if name not in OPEN]
    before = state(ground.data_dir)
    let_in = []
    for (method, path), elsewhere in product(operations, ELSEWHERE):
        for kind, content in FORMS.items() if method == "POST" else [("", b"")]:
            headers = page | elsewhere | ({"content-type": kind} if kind else {})
            answer = ground.client.request(method, path.format(**ids), headers=headers, content=content)
            if answer.status_code != 401:
                let_in.append((method, path, headers, answer.status_code))
    assert not let_in
    assert state(ground.data_dir) == before


@pytest.mark.long
def test_reading_as_the_page_changes_nothing(ground: Ground, page: dict[str, str]) -> None:
    ids, before = ground.inhabit(), state(ground.data_dir)
    for name in (name for name in ground.operations if name.startswith("GET") and name not in OPEN):
        path = name.split()[1].format(**(ids | ({"job": ids["exported"]} if name.endswith("/result") else {})))
        query = {"seconds": "0"} if path == "/v1/events" else {}
        for method in ("GET", "HEAD"):
            answer = ground.client.request(method, path, headers=page | PAGE, params=query)
            assert answer.status_code not in {401, 403}, name
    assert state(ground.data_dir) == before


def test_no_other_origin_may_send_the_sessions_header(tmp_path: Path) -> None:
    with running(tmp_path / "data", cors_origins=("https://app.example",)) as client:
        asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
        for header, status in (("x-api-key", 200), (SESSION_HEADER, 400)):
            answer = client.options("/v1/galleries", headers=asked | {"access-control-request-headers": header})
            assert answer.status_code == status, header
            assert "access-control-allow-credentials" not in answer.headers
