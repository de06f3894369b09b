"""Run what makes the documentation."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.conftest import PROJECT


def load(name: str) -> ModuleType:
    """Import a script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, PROJECT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module
