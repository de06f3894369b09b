"""An address that is no broker's is refused when the server starts, not when it connects."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import InvalidSetting
from tests.support.service import running

pytest.importorskip("paho.mqtt.client", reason="the extra mqtt brings paho-mqtt")
from app.features.watching.broker import broker_client

WRONG = (
    "127.0.0.1",
    "127.0.0.1:1883",
    "http://broker",
    "mqtt://",
    "mqtt://broker:x",
    "mqtt://broker:99999",
    "mqtt://[::1",
)


@pytest.mark.parametrize("address", WRONG)
def test_what_is_no_address_of_a_broker_is_answered_with_the_form_that_is_wanted(address: str) -> None:
    with pytest.raises(InvalidSetting, match=r"^LIKENESS_MQTT is an address such as mqtt://user:password@host:1883"):
        broker_client(address, "LIKENESS_MQTT", "likeness")


def test_the_server_does_not_start_with_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="LIKENESS_MQTT"), running(tmp_path, watching="on", mqtt="mqtt://broker:x"):
        pass
