"""Serve photos in turn, or a film (MP4 of H.264), by RTSP, as a camera for trials: `python3 camera.py PORT FILE…`.

Needs Debian's python3-gi, gir1.2-gst-rtsp-server-1.0, gstreamer1.0-plugins-base and gstreamer1.0-plugins-good, but
nothing of Likeness. Photos are repeated without end, as JPEG; a film is sent to each client once, as H.264.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gi  # type: ignore[import-not-found]  # Debian's

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # type: ignore[import-not-found]  # noqa: E402 - after their versions

EACH_S = 3
FPS = 10
SIZE = "width=640,height=480"


def pipeline(files: list[Path], folder: Path) -> str:
    """Return the pipeline that plays the files. Creates links to the photos in the folder."""
    if files[0].suffix == ".mp4":
        return f'( filesrc location="{files[0]}" ! qtdemux ! rtph264pay name=pay0 )'
    for number, photo in enumerate(files):
        (folder / f"{number:04d}.jpg").symlink_to(photo.resolve())
    return (
        f'( multifilesrc location="{folder}/%04d.jpg" loop=true caps=image/jpeg,framerate=1/{EACH_S} ! jpegdec'
        f" ! videoconvert ! videoscale add-borders=true ! video/x-raw,{SIZE},pixel-aspect-ratio=1/1"
        f" ! videorate ! video/x-raw,framerate={FPS}/1 ! jpegenc ! rtpjpegpay name=pay0 )"
    )


def main() -> None:
    port, *names = sys.argv[1:]
    Gst.init()
    with tempfile.TemporaryDirectory() as folder:
        factory = GstRtspServer.RTSPMediaFactory()
        factory.set_launch(pipeline([Path(name) for name in names], Path(folder)))
        server = GstRtspServer.RTSPServer()
        server.set_service(port)
        server.get_mount_points().add_factory("/camera", factory)
        if not server.attach(None):
            sys.exit(f"port {port} is taken")
        sys.stdout.write(f"rtsp://127.0.0.1:{port}/camera\n")
        sys.stdout.flush()
        GLib.MainLoop().run()


main()
