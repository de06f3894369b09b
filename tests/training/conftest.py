"""Fixtures of the trainer's tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Let every test draw the same numbers, whichever tests its process ran before."""
    torch.manual_seed(0)
