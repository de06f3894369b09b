# A camera to try with: docker/camera.py on GStreamer's RTSP server, of Debian's own packages.
ARG DEBIAN_IMAGE=debian:trixie-slim

FROM ${DEBIAN_IMAGE}
RUN python3 -c "import gi; gi.require_version('GstRtspServer', '1.0')" 2>/dev/null || (apt-get update \
    && apt-get install -y --no-install-recommends python3-gi gir1.2-gst-rtsp-server-1.0 \
    gstreamer1.0-plugins-base gstreamer1.0-plugins-good && rm -rf /var/lib/apt/lists/*)
COPY camera.py /camera.py
USER 10001:10001
ENTRYPOINT ["python3", "-u", "/camera.py"]
