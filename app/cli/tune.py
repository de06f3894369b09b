"""`likeness tune`: measure how the models run best on this machine, and keep it for the server."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from app.cli import output
from app.config import PREFIX, PROJECT, load_settings
from app.errors import InvalidInput

if TYPE_CHECKING:
    from app.tuning.contest import Speeds

PHOTOS = 100
"""Photos that are taken from the folder, from all over it."""


def tune(
    *,
    device: Annotated[
        Literal["cpu", "cuda", "auto"] | None, typer.Option(help="Where models run; the server's setting by default.")
    ] = None,
    photos: Annotated[Path, typer.Option(help="Folder or tar of photos with faces, best like your own.")] = PROJECT
    / "docs"
    / "samples",
    rounds: Annotated[int, typer.Option(min=2, max=1000, help="Rounds; in each every way has its turn.")] = 7,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only measure: write nothing.")] = False,
) -> None:
    """Measure ways of running the models here, and write the best into the data folder, where the server finds it.

    Run it while nothing else does; a running server takes the result at its next start.
    """
    from app.inference import tuned  # noqa: PLC0415 (the other commands start quicker without)
    from app.inference.package import find_packages, select  # noqa: PLC0415 (the same)
    from app.inference.session import resolve_device  # noqa: PLC0415 (the same)
    from app.machine import cores  # noqa: PLC0415 (the same)
    from app.tuning.measure import Setting  # noqa: PLC0415 (the same)
    from app.tuning.measure import tune as measure  # noqa: PLC0415 (the same)
    from app.tuning.sample_photos import load  # noqa: PLC0415 (the same)

    given = {} if device is None else {"device": device}
    settings = load_settings(**given)
    packages = find_packages(settings.models_dir)
    embedder, detector = select(packages, settings.embedder), select(packages, settings.detector)
    target = resolve_device(settings.device)
    found = load(photos, PHOTOS)
    setting = Setting(embedder, detector, settings.data_dir / "models", target, cores())
    with Console(stderr=True).status("measuring") as status:
        try:
            tried = measure(setting, found, rounds, say=status.update)
        except ValueError as error:
            raise InvalidInput(f"{photos}: {error}.", code="no_face") from error
    output.say(f"{embedder.id} and {detector.id} on {target}, {setting.cores} cores, {rounds} rounds in turns\n")
    _show("faces/s", tried.faces, str(tried.embedding))
    _show("photos/s", tried.photos, str(tried.photo))
    for name, value in tried.choice:
        output.say(f"{PREFIX}{name.upper()}={value}")
    if dry_run:
        return
    where = tuned.here(target, embedder.id, detector.id)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    path = tuned.write(settings.data_dir, tuned.Tuned(measured_at=now, where=where, choice=tried.choice))
    output.say(f"Written to {path}; the server takes it at its next start, except for what is set by hand.")


def _show(unit: str, speeds: Speeds, best: str) -> None:
    rows = []
    for name in speeds.rounds:
        speed, ratio = speeds.of(name), speeds.ratio(name, best)
        rows.append(
            [
                name,
                f"{speed.median:.1f}",
                f"{speed.low:.1f}-{speed.high:.1f}",
                f"{ratio.median:.2f}",
                f"{ratio.low:.2f}-{ratio.high:.2f}",
                "taken" if name == best else "",
            ]
        )
    output.say_table(["way", unit, "middle half", "to the one taken", "middle half", ""], rows)
    output.say("")
