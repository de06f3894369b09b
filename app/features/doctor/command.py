"""`likeness doctor`: check everything that the server needs without changing anything, and say how to repair it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, replace
from importlib import import_module
from typing import Annotated, TypeAlias

import typer

from app.cli import options, output
from app.config import Settings, load_settings
from app.errors import LikenessError
from app.features.doctor.results import REMEDIES, CheckResult

commands = typer.Typer()

CHECKS = {
    "python": "environment",
    "packages": "environment",
    "models": "models",
    "device": "models",
    "liveness": "models",
    "data": "storage",
    "key": "storage",
    "database": "storage",
    "galleries": "models",
    "index": "storage",
    "vault": "storage",
    "disk": "environment",
    "port": "environment",
    "tls": "environment",
    "limits": "environment",
    "workers": "environment",
    "clock": "environment",
}
"""The names of the checks, in order, and the module of each one's function `check_NAME`. The module is imported when
the check runs, so that a broken package is reported as a result."""


EXAMPLES = (
    "Examples: likeness doctor\n\nlikeness doctor --json | jq 'select(.verdict != \"ok\")'\n\n"
    "likeness doctor --upgrade-from 0.1.0"
)
UpgradeFrom: TypeAlias = Annotated[
    str | None,
    typer.Option("--upgrade-from", metavar="VERSION", help="List what an upgrade from this version requires."),
]


@commands.command(epilog=EXAMPLES)
def doctor(upgrade_from: UpgradeFrom = None, as_json: options.AsJson = False) -> None:
    """Check the installation: packages, models, device, data folder, key, database, galleries, disk, port, TLS, photo
    workers, clock.

    Changes nothing. Exit code 0: no failures (there may be warnings), 1: something failed.
    """
    findings = list(examine(load_settings()) if upgrade_from is None else walk_upgrade(upgrade_from))
    for finding in findings:
        if as_json:
            output.say_json({"check": finding.check, **asdict(finding)})
        else:
            output.say(f"{finding.verdict:8} {finding.check:10} {finding.found}")
            if finding.remedy:
                output.say(f"{'':19} → {finding.remedy}")
    if any(finding.verdict == "failed" for finding in findings):
        raise typer.Exit(output.Exit.NO)


def walk_upgrade(since: str) -> Iterator[CheckResult]:
    """Yield what to do for an upgrade from the version ``since``. Raises BadParameter if this is not a version."""
    upgrade = import_module("app.features.doctor.upgrade")  # imported when needed, as the checks are
    if refused := list(upgrade.removed(os.environ)):
        yield from refused  # the settings can't be read while these are set
        return
    try:
        yield from upgrade.walk(since, load_settings())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--upgrade-from") from None


def examine(settings: Settings, only: Collection[str] | None = None) -> Iterator[CheckResult]:
    """Yield the results of every check, or of ``only`` these, in the order in which to repair things.

    A check that raises an error has a failed result.
    """
    for name, module in CHECKS.items():
        if only is not None and name not in only:
            continue
        try:
            check: Callable[[Settings], Iterator[CheckResult]] = getattr(
                import_module(f"app.features.doctor.{module}"), f"check_{name}"
            )
            for finding in check(settings):
                yield replace(finding, check=finding.check or name)
        except ImportError as error:
            yield CheckResult("failed", str(error), "Repair what the check of packages finds.", check=name)
        except LikenessError as error:
            yield CheckResult("failed", error.message, REMEDIES[name], check=name)
        except OSError as error:
            message = f"{error.filename or name}: {error.strerror or error}"
            yield CheckResult("failed", message, "Correct its permissions.", check=name)
