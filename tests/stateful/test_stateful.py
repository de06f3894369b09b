"""Any order of everything that can be done to galleries leaves the service as the model is: a few dozen steps of it.

`make stateful` goes on for an hour, with other histories each time.
"""

from __future__ import annotations

import time
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.machine import Machine
from tests.support.postgres import new_database

SHORT = hypothesis.settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=2,
    stateful_step_count=16,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
LONG = hypothesis.settings(SHORT, derandomize=False, max_examples=10, stateful_step_count=50)


def look(machine: type[Machine], config: pytest.Config) -> None:
    end = time.monotonic() + 60 * config.getoption("minutes", 0.0)
    run_state_machine_as_test(machine, settings=SHORT)
    seed = config.getoption("seed", None) or time.time_ns() % 1_000_000
    while time.monotonic() < end:
        print(f"seed {seed}")  # noqa: T201 - for --seed
        run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=LONG)
        seed += 1


@pytest.mark.long
def test_galleries_on_sqlite(pytestconfig: pytest.Config) -> None:
    look(Machine, pytestconfig)


@pytest.mark.long
def test_galleries_on_postgresql(postgresql: Path, first_postgresql: str, pytestconfig: pytest.Config) -> None:
    class OnPostgreSQL(Machine):
        database = staticmethod(lambda: new_database(postgresql, f"TEMPLATE {first_postgresql}"))

    look(OnPostgreSQL, pytestconfig)
