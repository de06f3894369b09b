"""Fixtures of the tests of watching."""

from __future__ import annotations

import pytest

from tests.support.receiver import Receiver


@pytest.fixture
def receiver(port: int) -> Receiver:
    """A receiver of webhooks that does not listen yet."""
    return Receiver(port)
