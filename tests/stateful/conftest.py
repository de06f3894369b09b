"""Add the options that say how long to search, and from which seed."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=0.0, help="look for new histories for so long, on each database")
    parser.addoption("--seed", type=int, help="of the first histories, to repeat them")
