"""Every reason to come again is a row of one table."""

from __future__ import annotations

import pytest

from app.api.wire import answer_problem
from app.concurrency.overload import Why
from app.error_codes import BY_CODE


@pytest.mark.parametrize("why", Why, ids=lambda why: why.name)
def test_each_reason_has_a_code_and_says_when_to_come_again(why: Why) -> None:
    answer = answer_problem(why.error(2.2), "id")
    assert answer.status == BY_CODE[why.code].status == (503 if why in (Why.STOPPING, Why.CONNECTIONS) else 429)
    assert answer.headers["retry-after"] == "3"
    assert answer.body.error.message == why.message
