"""Preparing a run's data before its ranks join: the first rank of each machine does it, the others wait for its word.

A process group that existed already would meet its own time limits while a large set is indexed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from app.errors import Unusable
from training.recipe import Recipe

POLL_S = 0.2
REMIND_S = 60.0


def prepare_in_turn(
    recipe: Recipe, prepare: Callable[[], object], console: Console, environ: Mapping[str, str] = os.environ
) -> None:
    """Run `prepare` on this machine's first rank; return on the others when it is done. Alone, do nothing.

    `environ` is what torchrun sets.

    Ranks of other machines do the same by themselves, unless they share the folder. Raises Unusable
    (`preparation_timeout`).
    """
    if int(environ.get("WORLD_SIZE", "1")) == 1:
        return
    done = Path(recipe.data.indexes) / f"prepared-{_run_key(environ)}"
    if int(environ.get("LOCAL_RANK", "0")) == 0:
        prepare()
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
        return
    start = reminded = time.monotonic()
    while not done.exists():
        now = time.monotonic()
        what = f"the first rank of this machine to prepare {recipe.data.source} in {recipe.data.indexes}"
        if now - start > recipe.data.prepare_timeout:
            message = f"Waited {now - start:.0f} s for {what}. Raise data.prepare_timeout, or prepare the data first."
            raise Unusable(message, code="preparation_timeout")
        if now - reminded > REMIND_S:
            reminded = now
            console.print(f"waiting for {what}: {(now - start) / 60:.0f} minutes")
        time.sleep(POLL_S)


def _run_key(environ: Mapping[str, str]) -> str:
    """Return 16 hex digits that this machine's ranks of one start of the run have in common, and no others."""
    words = (environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "GROUP_RANK"))
    text = " ".join((*words, environ.get("TORCHELASTIC_RESTART_COUNT", ""), str(os.getppid()), _boot_id()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""
