"""Cursors: what a client may make up is refused, whatever number it stands for."""

from __future__ import annotations

import httpx
import pytest

from app.db.pagination import decode_cursor, encode_cursor
from app.errors import InvalidInput
from tests.support.service import error_of

LARGEST = 2**63 - 1
"""What SQLite and PostgreSQL hold."""


def test_a_cursor_is_read_back_up_to_the_largest_key() -> None:
    for key in (0, 1, LARGEST):
        assert decode_cursor("keys", encode_cursor("keys", key)) == key
    for key in (LARGEST + 1, 2**64 - 1):
        with pytest.raises(InvalidInput, match="cursor"):
            decode_cursor("keys", encode_cursor("keys", key))


@pytest.mark.parametrize(
    ("path", "listing"), [("/v1/keys", "keys"), ("/v1/galleries", "galleries"), ("/v1/audit", "audit/True")]
)
def test_made_up_and_forged_cursors_are_refused(api: httpx.Client, path: str, listing: str) -> None:
    for cursor in ("", "A", "=", "////////", "x" * 200, "\N{SNOWMAN}", encode_cursor(listing, 2**64 - 1)):
        error_of(api.get(path, params={"cursor": cursor}), 422, "invalid_cursor")
    assert api.get(path, params={"cursor": encode_cursor(listing, LARGEST)}).status_code == 200
