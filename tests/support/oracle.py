"""Import pytorch-metric-learning only in the tests that compare with it.

The import takes a second of processor time, and every worker of a test run imports every file of tests."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def oracle(part: str) -> Any:
    """Return a part of pytorch-metric-learning, such as `losses`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own import warnings do not matter here
        return importlib.import_module(f"pytorch_metric_learning.{part}")
