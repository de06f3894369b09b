"""Refusals by the code that a caller would be answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.errors import LikenessError


@contextmanager
def refused(code: str, error: type[LikenessError] = LikenessError) -> Iterator[None]:
    """Make sure that the block raises this error, with this code."""
    with pytest.raises(error) as caught:
        yield
    assert caught.value.code == code
