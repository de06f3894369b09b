"""`likeness status`: show the running server, or what is in the data folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import typer
from likeness_client import ApiError, Client

from app.cli import options, output
from app.cli.connect import answering, find_server, require_data
from app.config import Settings, load_settings
from app.features.doctor.inspection import inspect
from app.package.folders import scan_packages

commands = typer.Typer()


@dataclass(frozen=True, slots=True)
class Status:
    """The answer of `likeness status`. ``health`` is the server's state (`ok`, `not ready` …) or begins with `not
    running`."""

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
    """Show the server, its data folder, models, galleries and health. Exit code 1: no server runs, or it isn't
    ready."""
    running = find_server(server, key)
    if running is not None:
        with answering(running) as client:
            state = _of_server(client, None if server else load_settings())
    else:
        settings = load_settings()
        require_data(settings)
        state = _of_data_folder(settings)
    if as_json:
        output.say_json(asdict(state))
    else:
        _say(state)
    raise typer.Exit(output.Exit.DONE if state.health == "ok" else output.Exit.NO)


def _of_server(client: Client, settings: Settings | None) -> Status:
    about = client.version()
    url, number, folder = client.url, about.version, str(settings.data_dir.absolute()) if settings else None
    try:
        ready = client.ready()
    except ApiError:  # 503: the server is starting or stopping, or can't reach Milvus
        return Status("not ready", server=url, version=number, data_folder=folder)
    models = client.models()
    return Status(
        health=ready.status,
        warnings=ready.warnings,
        server=url,
        version=number,
        data_folder=folder,
        models=[f"{model.id} ({model.task}, {model.device or 'not loaded'})" for model in models.models],
        skipped=[f"{skipped.folder}: {skipped.problem}" for skipped in models.skipped],
        galleries=[f"{row.id} ({row.subjects} people, {row.faces} faces)" for row in client.all_galleries()],
    )


def _of_data_folder(settings: Settings) -> Status:
    """Return the data folder's state, read without a server and without changing anything."""
    installed = scan_packages(settings.models_dir, settings.data_dir)
    database = inspect(settings.data_dir, settings.database)
    return Status(
        health="not running" if not database.problem else f"not running, database unreadable ({database.problem})",
        data_folder=str(settings.data_dir.absolute()),
        models=[f"{package.id} ({package.manifest.task})" for package in installed.packages.values()],
        skipped=[f"{skipped.folder}: {skipped.problem}" for skipped in installed.skipped],
        galleries=[f"{need.galleries} with templates of {need.package}" for need in database.needs],
    )


def _say(state: Status) -> None:
    server = f"{state.server} (Likeness {state.version})" if state.server else "none: start one with `likeness serve`"
    rows = {
        "server": [server],
        "data folder": [state.data_folder or "on the server"],
        "models": state.models or ["none"],
        "skipped": state.skipped,
        "galleries": state.galleries or ["none"],
        "health": [", ".join([state.health, *state.warnings])],
    }
    for name, values in rows.items():
        for place, value in enumerate(values):
            output.say(f"{'' if place else name:12} {value}")
