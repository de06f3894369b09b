"""Starts the server: its models are opened while everything else is still imported, for ONNX Runtime opens them without
Python's lock. That takes some 0.15 s off its start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from app.api import logs
from app.config import Settings
from app.memory import share_arenas
from app.server.data_folder import prepare_data_dir
from app.server.models import open_models


def serve(settings: Settings) -> None:
    """Until it is told to stop. Raises Unusable as `app.main.serve` does, and where the models can't be opened."""
    share_arenas()
    logs.configure(settings.log_level)
    prepare_data_dir(settings.data_dir)
    with ThreadPoolExecutor(1, "models") as aside:
        models = aside.submit(open_models, settings)
        from app import main  # noqa: PLC0415 - most of the start, while the models open

        main.serve(settings, models)
