"""`likeness serve`: start the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.machine import pause_collector

commands = typer.Typer()


@commands.command(epilog="Examples: likeness serve\n\nlikeness serve --host 0.0.0.0 --port 9000 --data /srv/likeness")
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: LIKENESS_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on, 0 for a free one. Default: LIKENESS_PORT.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Data folder. Default: LIKENESS_DATA_DIR.")] = None,
) -> None:
    """Start the server. Its other settings come from the environment (LIKENESS_...)."""
    pause_collector()  # `app.server.run` resumes it when the server is ready
    from app.config import load_settings  # noqa: PLC0415 - slow to import
    from app.serve import serve as run_server  # noqa: PLC0415 - slow to import

    given = {"host": host, "port": port, "data_dir": data}
    run_server(load_settings(**{name: value for name, value in given.items() if value is not None}))
