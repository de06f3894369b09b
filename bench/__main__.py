"""`python -m bench`: measure the speed of this machine, next to the raw limit and simpler ways to do the same work."""

from __future__ import annotations

import sys
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from app.cli import output
from app.config import PROJECT, load_settings
from app.errors import InvalidInput, LikenessError

if TYPE_CHECKING:
    from bench.run import Effort, Run

WIDTH = 190
"""Columns of the table if the output is not a terminal."""
LFW = PROJECT.parent / "shared" / "data" / "lfw" / "lfw-deepfunneled.tar"
"""Labeled Faces in the Wild, if it is beside the project."""
PARTS = "embed", "detect", "search", "serve", "peers", "enroll", "latency", "start", "growth"
ON_REQUEST = "device", "card", "cost", "cores", "tails", "watch", "page"
"""Parts that run only if named, since they need a GPU (two), another checkout or package, many cores, PyAV, or
Chromium."""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Parts = Annotated[
    list[str] | None,
    typer.Argument(
        help=f"{', '.join(PARTS)}: all of them by default; device, card: --device cuda; cost: --beside, --package; "
        "cores; tails: --beside; watch; page."
    ),
]


@app.command()
def bench(
    parts: Parts = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and shorter: a few minutes for everything.")] = False,
    device: Annotated[
        str, typer.Option(help="`cuda`: the parts `device`, `card` and `search` on a GPU, these three by default.")
    ] = "cpu",
    photos: Annotated[
        Path | None,
        typer.Option(help="Folder or tar of photos with faces; by default LFW beside the project, else its own."),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=LABEL", help="Another checkout, whose cost of a request is measured in turns."),
    ] = None,
    package: Annotated[
        list[str] | None, typer.Option(help="An installed model package, whose cost of a request is measured in turns.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = PROJECT / "bench" / "results",
    rounds: Annotated[int | None, typer.Option(min=2, help="Rounds of each comparison.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Seconds of each load on the server.")] = None,
    faces: Annotated[int | None, typer.Option(min=1_000, help="Faces in the largest index.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="cost: clients that send at once, 1 by default.")] = None,
) -> None:
    """Measure speed next to the raw limit and the simple ways to do the same work; write a table and JSON.

    Run nothing else meanwhile. Everything takes about 25 minutes on two cores. docs/explanation/performance.md explains
    the figures and the method.
    """
    from app.models.commands.sample_photos import SAMPLES  # noqa: PLC0415 (the other commands start quicker without)
    from bench import report  # noqa: PLC0415 (the same)
    from bench.run import QUICK, WHOLE, Run  # noqa: PLC0415 (the same)
    from bench.stages import open_stages  # noqa: PLC0415 (the same)

    known = (*PARTS, *ON_REQUEST)
    chosen = list(parts or (PARTS if device == "cpu" else ("device", "card", "search")))
    if unknown := [part for part in chosen if part not in known]:
        raise InvalidInput(f"{unknown[0]} is no part: {', '.join(known)}", code="unknown_part")
    effort = _scaled(QUICK if quick else WHOLE, rounds, seconds, faces, clients)
    settings, console = load_settings(), Console(width=None if sys.stdout.isatty() else WIDTH)
    source = photos or (LFW if LFW.is_file() else SAMPLES)
    cache = settings.data_dir / "models"
    with open_stages(settings.models_dir, cache, source, effort.photos, embedder=settings.embedder) as stages:
        run = Run(stages, effort, device, beside=_checkouts(beside or []), packages=package or ())
        path = report.path_for(out)
        asked = {
            "parts": chosen,
            "device": device,
            "effort": asdict(effort),
            "photos": len(stages.photos),
            "faces": len(stages.crops),
        }
        failed = []
        for part in chosen:
            failed += [] if _measured(part, run, console) else [part]
            report.write(path, run.findings, asked)  # so that a later failure loses nothing
    report.show(run.findings, console)
    console.print(f"Written to {path}", highlight=False)
    if failed:
        raise typer.Exit(1)


def _checkouts(beside: list[str]) -> dict[str, Path]:
    """Return the folders of other checkouts by their labels. Raises InvalidInput ``invalid_checkout``."""
    found = {label: Path(path).resolve() for path, _, label in (option.partition("=") for option in beside)}
    if wrong := [f"{path}={label}" for label, path in found.items() if not label or not (path / "app").is_dir()]:
        raise InvalidInput(f"{wrong[0]}: name a checkout and its label, PATH=LABEL", code="invalid_checkout")
    return found


def _scaled(
    effort: Effort, rounds: int | None, seconds: float | None, faces: int | None, clients: int | None
) -> Effort:
    given = {"rounds": rounds, "seconds": seconds, "faces": faces, "clients": clients}
    changed = replace(effort, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]  # names and types as above
    if faces is None:
        return changed
    return replace(changed, growth=tuple(size for size in changed.growth if size <= faces))


def _measured(part: str, run: Run, console: Console) -> bool:
    """Measure one part and show its steps. If it fails, add a note and return False; the other parts still run."""
    from bench.parts import PARTS as MEASURES  # noqa: PLC0415 (the other commands start quicker without)

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(part)
        telling = replace(run, say=lambda what: bar.update(task, description=f"{part}: {what}"))
        try:
            MEASURES[part](telling)
        except LikenessError as error:
            run.note(f"{part}: {error.message}")
            return False
        except Exception:  # noqa: BLE001 - a part's edge: it is reported, and the others go on
            run.note(f"{part}: {traceback.format_exc()}")
            return False
        console.print(f"{part}: {bar.tasks[0].elapsed or 0:.0f} s")
    return True


def main() -> None:
    """Run `python -m bench`."""
    from bench.rates import app as rates  # noqa: PLC0415 (the benchmark starts quicker without)

    try:
        if sys.argv[1:2] == ["rates"]:
            rates(sys.argv[2:])
        else:
            app()
    except LikenessError as error:
        output.complain(error)
        sys.exit(output.exit_code(error))


if __name__ == "__main__":
    main()
