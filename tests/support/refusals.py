"""Check refusals by the error code that a caller would get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.errors import LikenessError


@contextmanager
def refused(code: str, error: type[LikenessError] = LikenessError) -> Iterator[None]:
    """Check that the block raises this error, with this code."""
    with pytest.raises(error) as caught:
        yield
    assert caught.value.code == code
