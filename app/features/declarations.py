"""Describe the first error in a file that an operator wrote."""

from __future__ import annotations

from pydantic import ValidationError

from app.wording import found_wrong


def first_wrong(error: ValidationError) -> str:
    """Return place and description of the first of pydantic's errors, without the value in the file."""
    first = error.errors(include_input=False)[0]
    place, what = ".".join(str(part) for part in first["loc"]), found_wrong(first)
    return f"{place}: {what}" if place else what
