"""Create or update the keys that the file of LIKENESS_KEYS_FILE declares, at each start."""

from __future__ import annotations

import os
from pathlib import Path

from app.api.components import Components
from app.api.feature import Feature, Part
from app.features.issued_keys import declare_keys


def _start(core: Components, keys_file: Path | None) -> Part:
    """Apply the file's declarations, if there is a file. Raises Unusable ``keys_file_invalid``."""
    if keys_file is not None:
        from app.features.keys_file.reading import read_declared_keys  # noqa: PLC0415 - needs YAML, which few servers do

        declare_keys(core.keys, read_declared_keys(keys_file, os.environ))
    return Part()


FEATURE = Feature(start=_start, settings=("keys_file",))
