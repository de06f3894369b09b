"""A GPU is waited for asleep, where there is its driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.inference import cuda


@dataclass
class Driver:
    """Stands for CUDA's driver; ``devices`` are its GPUs."""

    devices: int
    flags: dict[int, int] = field(default_factory=dict)

    def cuInit(self, _flags: int) -> int:  # noqa: N802 - its name
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = 7
        return 0 if number < self.devices else 101

    def cuDevicePrimaryCtxSetFlags_v2(self, device: ctypes.c_int, flags: int) -> int:  # noqa: N802
        self.flags[device.value] = flags
        return 0


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    cuda.sleep_while_waiting.cache_clear()
    yield
    cuda.sleep_while_waiting.cache_clear()


@pytest.mark.parametrize(("devices", "flags"), [(1, {7: cuda.BLOCKING_SYNC}), (0, {})])
def test_the_first_gpu_is_told_to_let_threads_sleep(
    devices: int, flags: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(devices)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: driver)
    assert cuda.sleep_while_waiting() == bool(flags)
    assert driver.flags == flags


def test_without_a_driver_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "DRIVER", "libno-such-driver.so.1")
    assert not cuda.sleep_while_waiting()
