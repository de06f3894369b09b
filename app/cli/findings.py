"""What `likeness doctor` says of one thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what was found, and what to do where it is not well."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""
