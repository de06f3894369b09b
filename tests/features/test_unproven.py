"""Bodies without a checked key or signature have room of their own, and leave others theirs."""

from __future__ import annotations

import anyio
import pytest

from app.concurrency.admission import CALLER_SHARE, Admission
from app.errors import Overloaded
from app.features.unproven import UNPROVEN, UNPROVEN_EACH, UNPROVEN_SHARE, UnprovenBodies
from tests.support.waiting import PATIENCE_S


@pytest.mark.anyio
async def test_the_oldest_unproven_request_of_the_greediest_address_gives_way() -> None:
    admission = Admission(queue_limit=4)
    unproven = UnprovenBodies(admission)
    ended: list[str] = []

    async def hold(name: str, key_id: str | None = None) -> None:
        try:
            async with unproven.admit(f"@{name}", key_id):
                await anyio.sleep_forever()
        except Overloaded:
            ended.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(hold, "honest")
        for address in range(20):
            for _ in range(UNPROVEN_EACH + 2):
                group.start_soon(hold, str(address))
        with anyio.fail_after(PATIENCE_S):
            while len(ended) < 20 * (UNPROVEN_EACH + 2) + 1 - UNPROVEN - admission.limit:
                await anyio.sleep(0.01)
        assert "honest" not in ended
        assert unproven.receiving == UNPROVEN + admission.limit
        group.start_soon(hold, "late")
        await anyio.sleep(0.1)
        assert not {"late", "honest"} & set(ended)
        group.cancel_scope.cancel()
    assert unproven.receiving == 0


@pytest.mark.anyio
async def test_unproven_bodies_have_room_beside_each_other_and_leave_the_rest() -> None:
    admission = Admission(queue_limit=4, byte_limit=3_000)
    unproven = UnprovenBodies(admission)
    ended: list[str] = []

    async def hold(name: str, size: int) -> None:
        try:
            async with unproven.admit(f"@{name}") as count_bytes:
                count_bytes(size)
                await anyio.sleep_forever()
        except Overloaded:
            ended.append(name)

    most = int(3_000 * UNPROVEN_SHARE)
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(hold, str(number), most // 2)
            await anyio.sleep(0.1)
        group.start_soon(hold, "too large", most + 1)
        await anyio.sleep(0.1)
        assert ended == ["0", "too large"]
        with admission.admit("key", "@0"):
            admission.count_bytes(int(CALLER_SHARE * admission.byte_limit))
        group.cancel_scope.cancel()
    assert admission.bytes == 0
