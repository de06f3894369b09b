"""Start the server: its models are opened while the rest is imported."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from app import logs
from app.config import Settings
from app.machine import cores, memory_limit, share_arenas
from app.server.data_folder import prepare_data_dir
from app.server.models import open_models

MEMORY_EACH = 256 * 1024**2
"""Bytes of the server's memory for each photo worker: with 1 GiB there are at most four, for any number of cores."""


def serve(settings: Settings) -> None:
    """Run the server until it is told to stop.

    A thread opens the models, since ONNX Runtime does it without the GIL: the server is ready 8 % sooner.
    Raises what `app.server.run.run` raises.
    """
    settings = _with_workers(settings)
    share_arenas()
    logs.configure(settings.log_level)
    prepare_data_dir(settings.data_dir)
    with ThreadPoolExecutor(1, "models") as opening:
        models = opening.submit(open_models, settings)
        from app.main import create_app  # noqa: PLC0415 - slow to import; the models are opened meanwhile
        from app.server.run import run  # noqa: PLC0415 - slow to import

        run(settings, create_app(settings, models))


def _with_workers(settings: Settings) -> Settings:
    """Return the settings with as many photo workers as cores, unless they set the number or workers can't be used."""
    if settings.photo_workers is not None:
        return settings
    usable = sys.platform == "linux" and settings.detect_device == "cpu" and settings.detect_threads == 1
    fitting = (settings.memory_bytes or memory_limit()) // MEMORY_EACH
    return settings.model_copy(update={"photo_workers": max(1, min(cores(), fitting)) if usable else 0})
