"""Messages about what was asked wrongly: what a library found, and which name was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

RATES = ("fmr", "fpir")
"""How thresholds are asked for."""
_RATE_WORDS = ("threshold", "score", "similarity", "confidence", "distance", "probability")
"""Words in the names of parameters by which other services take a threshold."""

_RATE_NAMES = {*RATES, "apcer", "bpcer"}
_A_RATE = "Give a rate between 0 and 1, such as 0.0001 (one in ten thousand; 1 % is 0.01)"
_NO_SUCH = "There is no such {}"
_SAYS = {
    "^Value error, ": "",
    "Input should be a (?:valid|finite) number$": "Give a number without quotes, such as 0.5",
    "Input should be a valid number, .*": "Give a number, such as 0.5",
    "Input should be a valid integer$": "Give a whole number without quotes, such as 10",
    "Input should be a valid integer, .*": "Give a whole number, such as 10",
    "Input should be a valid boolean$": "Give true or false, without quotes",
    "Input should be a valid boolean, .*": "Give true or false",
    "Input should be a valid date.*": "Give a time, such as 2026-01-31T12:00:00Z",
    "Input should be a valid list": 'Give a list in brackets, such as ["a", "b"]',
    "Input should be a valid string": "Give a text, in double quotes",
    r"a valid dictionary(?: or instance of \w+)?": "an object",
    r"String should match pattern '\^https\?.*": "Give an address that begins with http:// or https://",
    r"String should match pattern '\^\[0-9a-f\]\{(\d+)\}.*": r"Give \1 digits of 0-9 and a-f",
    r"String should match pattern '\^\[a-z0-9\]\(.*": "Use a-z, 0-9 and inner hyphens, such as front-door",
    r"String should match pattern '\^\[a-z0-9\]\[.*": "Use a-z and 0-9, behind the first also the signs . _ and -",
    "Value should have (.*) item": r"Text should have \1 character",
    ", unable to .*| after validation, .*": "",
    "(appear to be an IPv4 or IPv6 network)": r"\1, such as 192.168.1.0/24",
}
"""What pydantic and Python say, and what to write, which is said in its place. Strictly typed JSON knows no quotes."""
_ADDRESS = re.compile(rb"\s*(?:https?|ftp|file|s3|gs|rtsp)://\S+\s*", re.IGNORECASE)
_FILE_NAME = re.compile(rb"\s*[@~\w ./\\-]{1,255}\.(?:jpe?g|png|webp|bmp|tiff?|gif|hei[cf]|avif)\s*", re.IGNORECASE)
_LONGEST_NAME = 2048
"""Bytes of an address or a file's name; no photo is as short."""


def found_wrong(problem: Mapping[str, Any]) -> str:
    """Return the message of one of pydantic's errors as what to write, without words about the library and Python."""
    if problem.get("type") == "extra_forbidden":
        return _NO_SUCH.format("field")
    said = str(problem["msg"])
    if said.startswith("Input should be ") and (problem.get("loc") or [None])[-1] in _RATE_NAMES:
        return _A_RATE
    for found, better in _SAYS.items():
        said = re.sub(found, better, said)
    return said


def first_wrong(error: ValidationError) -> str:
    """Return where the first of pydantic's errors is, and what is wrong there, without what was given."""
    first = error.errors(include_input=False)[0]
    place, what = ".".join(str(part) for part in first["loc"]), found_wrong(first)
    return f"{place}: {what}" if place else what


def unknown_name(name: str, known: Collection[str], what: str, image: str | None = None) -> str:
    """Return what is wrong with a ``name`` that is none of the ``known`` ones, and which one is probably meant.

    ``what`` it is: "field" or "parameter". ``image`` is the field of the photo, if a photo is wanted and not given.
    """
    there_is_none = _NO_SUCH.format(what)
    if by_rate := meant_rate(name, known):
        return f"{there_is_none}: {by_rate}"
    if image is not None:
        return f"{there_is_none}: the photo goes into {image}"
    if nearest := near(name, known):
        return f"{there_is_none}. Did you mean {nearest}?"
    return f"{there_is_none}; there are {', '.join(known)}" if known else f"{there_is_none}: it takes none"


def meant_rate(name: str, known: Collection[str]) -> str | None:
    """Return how to ask for what ``name`` asks for, if that is a threshold, and error rates are among the ``known``."""
    rates = [one for rate in RATES for one in known if one.lstrip("-") == rate]
    if not rates or not any(word in name.lower() for word in _RATE_WORDS):
        return None
    return f"a threshold is asked for by its error rate, as {' or '.join(rates)}"


def near(name: str, known: Collection[str]) -> str | None:
    """Return the one of the ``known`` names that is almost ``name``, case aside; None if there is none."""
    lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name[:100].lower(), lower, n=1)
    return lower[found[0]] if found else None


def what_it_is(content: bytes | memoryview | str) -> str | None:
    """Return a sentence if an address or a file's name came in place of a photo; None for anything else."""
    if len(content) > _LONGEST_NAME:
        return None
    data = content.encode(errors="replace") if isinstance(content, str) else bytes(content)
    if _ADDRESS.fullmatch(data):
        return "This is an address, not a photo, and nothing is fetched: send the photo itself."
    if _FILE_NAME.fullmatch(data):
        return "This is a file's name, not a photo: send its content (curl: image=@photo.jpg, with an @)."
    return None
