"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real faces for measuring, where this machine has it."""
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
