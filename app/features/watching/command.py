"""`likeness watch`: watch cameras or films, and tell the service who is there."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from likeness_client import ApiError, Client

from app.cli import output
from app.cli.options import CliSession, command
from app.errors import InvalidInput, Unusable
from app.features.call_commands import switched_on
from app.types import utc_now

if TYPE_CHECKING:
    from app.features.watching.watcher.cameras import CameraConfig, Eyes
    from app.features.watching.watcher.frigate import Frigate
    from app.features.watching.watcher.looks import Looker
    from app.features.watching.watcher.reporter import Report, Reporter
    from app.features.watching.watcher.timeline import Timeline
    from app.features.watching.watcher.watch import Watcher

commands = typer.Typer()
TOLD_S = 3600.0
"""Maximum seconds to wait after the end of a film until the service has accepted all reports."""
SIGNAL_S = 0.5
"""Seconds between checks whether a signal has arrived."""


@command(
    commands,
    "watch",
    epilog="Example: likeness watch rtsp://camera.local/stream --gallery staff\n\n"
    "Example: likeness watch film.mp4 --gallery staff --timeline out.json",
)
def watch(
    session: CliSession,
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="Films, devices (/dev/video0), or addresses: rtsp://, http:// (MJPEG, HLS, a JPEG)."),
    ] = None,
    gallery: Annotated[str, typer.Option("--gallery", help="The gallery of people to look for.")] = "",
    cameras: Annotated[Path | None, typer.Option(help="YAML file of cameras, in place of sources.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="A camera's name, in the order of the sources.")] = None,
    fps: Annotated[float, typer.Option(min=0.1, max=60, help="Frames looked at in a second.")] = 5.0,
    roi: Annotated[str | None, typer.Option(help="Part to look at: left,top,right,bottom as shares, 0-1.")] = None,
    min_face: Annotated[int, typer.Option(min=10, max=1000, help="Narrowest face to look for, in pixels.")] = 24,
    rotate: Annotated[int, typer.Option(help="Degrees to turn pictures clockwise: 90, 180 or 270.")] = 0,
    timeline: Annotated[Path | None, typer.Option(help="Write who is in films: .json, .csv or .html.")] = None,
    frigate: Annotated[str | None, typer.Option(help="In place of sources: Frigate, such as http://host:5000.")] = None,
    mqtt: Annotated[str | None, typer.Option(help="Frigate's broker: mqtt://user:password@host:1883.")] = None,
    go2rtc: Annotated[str | None, typer.Option(help="Frigate's live frames, such as http://host:1984.")] = None,
) -> None:
    """Watch cameras or films, and tell the service who is there.

    The server needs LIKENESS_WATCHING=on, the key the scope `watch`. Cameras are watched until Ctrl-C.
    """
    from app.config import load_settings  # noqa: PLC0415 - slow to import

    try:
        from app.features.watching.watcher import cameras as configured  # noqa: PLC0415 - needs PyAV
    except ModuleNotFoundError as error:
        message = "Watching needs PyAV: pip install 'likeness-server[video]'."
        raise Unusable(message, code="unusable") from error
    if not gallery:
        raise InvalidInput("Name the gallery of people to look for: --gallery.", code="invalid_source")
    if bool(sources) + (cameras is not None) + (frigate is not None) != 1 or (frigate is None) != (mqtt is None):
        message = "Give sources, or a file of --cameras, or --frigate and --mqtt."
        raise InvalidInput(message, code="invalid_source")
    wanted = []
    if cameras is not None:
        wanted = configured.read_cameras(cameras)
    elif sources:
        wanted = configured.read_options(sources, name or [], roi, fps=fps, min_face=min_face, rotate=rotate)
    settings = load_settings()
    cache = settings.data_dir / "models" if settings.data_dir.is_dir() else Path.home() / ".cache" / "likeness"
    cache.mkdir(parents=True, exist_ok=True)
    folders = settings.models_dir, settings.data_dir, cache
    with configured.open_eyes(*folders, settings.detector, settings.embedder) as eyes:
        if frigate is not None and mqtt is not None:
            _follow_frigate(session, gallery, eyes.looker(min_face), mqtt, frigate, go2rtc)
        else:
            _watch(session, gallery, wanted, eyes, timeline)


def _watch(session: CliSession, gallery: str, wanted: Sequence[CameraConfig], eyes: Eyes, path: Path | None) -> None:
    from app.features.watching.watcher.camera import Camera, is_film  # noqa: PLC0415 - needs PyAV
    from app.features.watching.watcher.cameras import names  # noqa: PLC0415
    from app.features.watching.watcher.reporter import Reporter  # noqa: PLC0415
    from app.features.watching.watcher.timeline import Timeline  # noqa: PLC0415
    from app.features.watching.watcher.watch import Watcher  # noqa: PLC0415

    labelled = list(zip(names(wanted), wanted, strict=True))
    films = [(label, camera) for label, camera in labelled if is_film(camera.source)]
    live = [(label, camera) for label, camera in labelled if not is_film(camera.source)]
    timeline = Timeline()
    client = _client(session, gallery)

    def answered(report: Report, sighting: Any) -> None:
        timeline.answered(report, sighting)
        if sighting.decision != "unknown" or sighting.frames > 1 or report.ended:
            session.say(sighting, _line(sighting))

    reporter, watcher = Reporter(client, gallery, answered), Watcher()
    try:
        watches = {label: eyes.watch(label, camera, reporter) for label, camera in live}
        for label, camera in live:
            watcher.add(Camera(camera.source, camera.fps), watches[label])
        if live:
            _follow(client, gallery, watcher, f"Watching {', '.join(label for label, _ in live)}")
            for shown in watcher.reports():
                counts = ", ".join(f"{shown[name]} {name}" for name in ("frames", "faces", "usable"))
                output.say(f"{shown['name']}: {watches[shown['name']].frames} pictures; the last hour: {counts}")
        for label, camera in films:
            _play(label, camera, eyes, reporter, timeline)
    finally:
        reporter.close(TOLD_S if films and not live else 10.0)
    if path is not None:
        timeline.write(path)
        output.say(f"{path}: {len(timeline.visits())} visits")


def _play(label: str, camera: CameraConfig, eyes: Eyes, reporter: Reporter, timeline: Timeline) -> None:
    from app.features.watching.watcher.camera import read_film  # noqa: PLC0415 - needs PyAV

    began = time.time()
    timeline.begin(label, began)
    watching = eyes.watch(label, camera, reporter, began)
    for frame in read_film(camera.source, camera.fps):
        watching.see(frame)
    watching.finish()
    reporter.wait(TOLD_S)


def _follow_frigate(session: CliSession, gallery: str, looker: Looker, broker: str, api: str, live: str | None) -> None:
    """Report the people whom Frigate sees until SIGINT or SIGTERM."""
    from app.features.watching.watcher.reporter import Reporter  # noqa: PLC0415 - slow to import

    try:
        from app.features.watching.watcher.frigate import Frigate  # noqa: PLC0415 - needs paho-mqtt
    except ModuleNotFoundError as error:
        message = "Frigate needs paho-mqtt: pip install 'likeness-server[mqtt]'."
        raise Unusable(message, code="unusable") from error
    source = Frigate(broker, api, looker, go2rtc=live)
    client = _client(session, gallery)

    def answered(report: Report, sighting: Any) -> None:
        source.answered(report, sighting)
        session.say(sighting, _line(sighting))

    reporter = Reporter(client, gallery, answered)
    source.start(reporter)
    _follow(client, gallery, source, f"Following {api}")
    reporter.close()


def _client(session: CliSession, gallery: str) -> Client:
    """Return a client, after checking that its key may report tracks. Raises ApiError, Unreachable."""
    client = session.client()
    try:
        with switched_on("LIKENESS_WATCHING"):
            client.hear_sighting(gallery, uuid.uuid4().hex, {"last_at": utc_now()})
    except ApiError as error:
        if error.code != "sighting_not_found":
            raise
    return client


def _follow(client: Client, gallery: str, source: Watcher | Frigate, ready: str) -> None:
    """Print ``ready``, report the source's cameras to the service until SIGINT or SIGTERM, and close the source."""
    from app.features.watching.watcher.tally import telling  # noqa: PLC0415 - slow to import

    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    told = telling(client, gallery, source.reports)
    output.say(ready)
    while not stopped.wait(SIGNAL_S):  # signal handlers run in this thread, so it must not wait for ever
        pass
    told.close()
    source.close()


def _line(sighting: Any) -> str:
    named = sighting.name or sighting.subject or sighting.stranger
    who = f": {named}" if named else ""
    score = "" if sighting.score is None else f", score {sighting.score:.2f}"
    left = ", has left" if sighting.ended else ""
    return f"{sighting.camera}: {sighting.decision}{who}{score}, {sighting.frames} frames{left}"
