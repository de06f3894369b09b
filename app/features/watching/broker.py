"""Connect to an MQTT broker by its URL."""

from __future__ import annotations

import uuid
from typing import Final
from urllib.parse import unquote, urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from app.errors import InvalidSetting

RECONNECT_S: Final = (1, 20)
"""The shortest and the longest wait, in seconds, before the next attempt to reach the broker."""


def broker_client(url: str, setting: str, name: str) -> paho.Client:
    """Return a client that connects to the broker at ``url`` once its loop runs; the client's id begins with ``name``.

    Raises InvalidSetting, which names the ``setting``, if the URL is not of the form `mqtt://` or `mqtts://`.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is none, or half an IPv6 address
        host, port = None, None
    if not host or parts.scheme not in {"mqtt", "mqtts"}:
        raise InvalidSetting(f"{setting} is an address such as mqtt://user:password@host:1883.")
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{name}-{uuid.uuid4().hex[:12]}")
    if parts.username:
        client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
    if parts.scheme == "mqtts":
        client.tls_set()
    client.reconnect_delay_set(*RECONNECT_S)
    client.connect_async(host, port or (8883 if parts.scheme == "mqtts" else 1883))
    return client
