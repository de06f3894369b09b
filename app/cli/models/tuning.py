"""tune: how the models run best on this machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli import output
from app.config import PREFIX, PROJECT, load_settings
from app.errors import InvalidInput

if TYPE_CHECKING:
    from app.tuning.contest import Speeds

TUNE_PHOTOS = 100
"""Photos that are measured with, drawn evenly from the folder."""
commands = typer.Typer()


@commands.command(epilog="Examples: likeness tune\n\nlikeness tune --photos camera/ --dry-run")
def tune(
    *,
    device: Annotated[
        Literal["cpu", "cuda", "auto"] | None, typer.Option(help="Device of the models. Default: LIKENESS_DEVICE.")
    ] = None,
    photos: Annotated[Path, typer.Option(help="Folder or tar of photos with faces, best like yours.")] = PROJECT
    / "docs"
    / "samples",
    rounds: Annotated[int, typer.Option(min=2, max=1000, help="Rounds; each measures every way once.")] = 7,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only; write nothing.")] = False,
) -> None:
    """Measure ways of running the models, and store the fastest in the data folder.

    Leave the machine idle meanwhile. The server uses the result from its next start.
    """
    from rich.console import Console  # noqa: PLC0415 - slow to import

    from app.inference.package import find_packages, select  # noqa: PLC0415 - slow to import
    from app.inference.session import resolve_device  # noqa: PLC0415 - slow to import
    from app.machine import cores  # noqa: PLC0415 - slow to import
    from app.tuning import tuned  # noqa: PLC0415 - slow to import
    from app.tuning.measure import Setting  # noqa: PLC0415 - slow to import
    from app.tuning.measure import tune as measure  # noqa: PLC0415 - slow to import
    from app.tuning.sample_photos import load  # noqa: PLC0415 - slow to import

    given = {} if device is None else {"device": device}
    settings = load_settings(**given)
    packages = find_packages(settings.models_dir)
    embedder, detector = select(packages, settings.embedder), select(packages, settings.detector)
    target = resolve_device(settings.device)
    found = load(photos, TUNE_PHOTOS)
    setting = Setting(embedder, detector, settings.data_dir / "models", target, cores())
    with Console(stderr=True).status("measuring") as status:
        try:
            tried = measure(setting, found, rounds, say=status.update)
        except ValueError as error:
            raise InvalidInput(f"{photos}: {error}.", code="no_face") from error
    output.say(f"{embedder.id} and {detector.id} on {target}, {setting.cores} cores, {rounds} rounds\n")
    _show("faces/s", tried.faces, str(tried.embedding))
    _show("photos/s", tried.photos, str(tried.photo))
    for name, value in tried.choice:
        output.say(f"{PREFIX}{name.upper()}={value}")
    if dry_run:
        return
    where = tuned.here(target, embedder.id, detector.id)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    path = tuned.write(settings.data_dir, tuned.Tuned(measured_at=now, where=where, choice=tried.choice))
    output.say(f"Written to {path}; the server uses it from its next start. Settings made by hand take precedence.")


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
                "chosen" if name == best else "",
            ]
        )
    output.say_table(["way", unit, "middle half", "ratio to the fastest", "middle half", ""], rows)
    output.say("")
