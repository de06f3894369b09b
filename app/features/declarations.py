"""Say what is wrong in a file that an operator wrote."""

from __future__ import annotations

from pydantic import ValidationError

from app.wording import found_wrong


def first_wrong(error: ValidationError) -> str:
    """Return where the first of pydantic's errors is and what is wrong there, without the given value."""
    first = error.errors(include_input=False)[0]
    place, what = ".".join(str(part) for part in first["loc"]), found_wrong(first)
    return f"{place}: {what}" if place else what
