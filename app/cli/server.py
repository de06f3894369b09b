"""serve, status: the server itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import options, output
from app.machine import pause_collector

if TYPE_CHECKING:
    from likeness_client import Client

    from app.config import Settings

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


@dataclass(frozen=True, slots=True)
class Status:
    """The answer of `likeness status`. ``health`` is `ok`, a state of the server, or `not running`."""

    health: str
    warnings: Sequence[str] = ()
    server: str | None = None
    version: str | None = None
    data_folder: str | None = None
    models: Sequence[str] = ()
    skipped: Sequence[str] = ()
    galleries: Sequence[str] = ()


@commands.command(epilog="Examples: likeness status\n\nlikeness status --server https://faces.example.org --json")
def status(server: options.Server = None, key: options.Key = None, as_json: options.AsJson = False) -> None:
    """Show the server, data folder, models, galleries and health. Exit code 1: no server runs, or it isn't ready."""
    from app.cli.connect import answering, find_server, has_data, missing  # noqa: PLC0415 - `serve` does without
    from app.config import load_settings  # noqa: PLC0415 - slow to import

    running = find_server(server, key)
    if running is not None:
        with answering(running) as client:
            found = _of_server(client, None if server else load_settings())
    else:
        settings = load_settings()
        if not has_data(settings):
            raise missing(settings)
        found = _of_data_folder(settings)
    if as_json:
        output.say_json(asdict(found))
    else:
        _say(found)
    raise typer.Exit(output.Exit.DONE if found.health == "ok" else output.Exit.NO)


def _of_server(client: Client, settings: Settings | None) -> Status:
    from likeness_client import ApiError  # noqa: PLC0415 - `serve` does without

    about = client.version()
    url, number, folder = client.url, about.version, str(settings.data_dir.absolute()) if settings else None
    try:
        ready = client.ready()
    except ApiError:  # 503: starting, stopping, or without Milvus
        return Status("not ready", server=url, version=number, data_folder=folder)
    models = client.models()
    return Status(
        health=ready.status,
        warnings=ready.warnings,
        server=url,
        version=number,
        data_folder=folder,
        models=[f"{one.id} ({one.task}, {one.device or 'not loaded'})" for one in models.models],
        skipped=[f"{one.folder}: {one.problem}" for one in models.skipped],
        galleries=[f"{one.id} ({one.subjects} people, {one.faces} faces)" for one in client.all_galleries()],
    )


def _of_data_folder(settings: Settings) -> Status:
    """Read what is there, without a server and without changing anything."""
    from app.db.inspection import inspect  # noqa: PLC0415 - slow to import
    from app.inference.package import scan_packages  # noqa: PLC0415 - slow to import

    packages, database = (
        scan_packages(settings.models_dir, settings.data_dir),
        inspect(settings.data_dir, settings.database),
    )
    return Status(
        health="not running" if not database.problem else f"not running, database unreadable ({database.problem})",
        data_folder=str(settings.data_dir.absolute()),
        models=[f"{one.id} ({one.manifest.task})" for one in packages.packages.values()],
        skipped=[f"{one.folder}: {one.problem}" for one in packages.skipped],
        galleries=[f"{need.galleries} with templates of {need.package}" for need in database.needs],
    )


def _say(found: Status) -> None:
    server = f"{found.server} (Likeness {found.version})" if found.server else "none: start one with `likeness serve`"
    rows: list[tuple[str, Any]] = [
        ("server", server),
        ("data folder", found.data_folder or "on the server"),
        *_listed("models", found.models),
        *_listed("skipped", found.skipped),
        *_listed("galleries", found.galleries),
        ("health", ", ".join([found.health, *found.warnings])),
    ]
    for name, value in rows:
        output.say(f"{name:12} {value}")


def _listed(name: str, values: Sequence[str]) -> list[tuple[str, str]]:
    if not values:
        return [] if name == "skipped" else [(name, "none")]
    return [(name if number == 0 else "", value) for number, value in enumerate(values)]
