"""Write messages about wrong requests: what is wrong, and which name was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

RATES = ("fmr", "fpir")
"""The error rates by which callers choose thresholds."""
_RATE_WORDS = ("threshold", "score", "similarity", "confidence", "distance", "probability")
"""Words in other services' parameter names for a threshold."""

_RATE_NAMES = {*RATES, "apcer", "bpcer"}
_A_RATE = "Give a rate {}, such as 0.0001 (one in ten thousand; 1 % is 0.01)"
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
    "Input should be greater than or equal to ": "Give at least ",
    "Input should be less than or equal to ": "Give at most ",
    "Input should be (?=')": "Give ",
    "Field required$": "This is required",
    "Value should have (.*) item": r"Text should have \1 character",
    ", unable to .*| after validation, .*": "",
    "(appear to be an IPv4 or IPv6 network)": r"\1, such as 192.168.1.0/24",
}
"""Patterns of what pydantic and Python say, and the advice to show in its place. Numbers in JSON have no quotes."""
_ADDRESS = re.compile(rb"\s*(?:https?|ftp|file|s3|gs|rtsp)://\S+\s*", re.IGNORECASE)
_FILE_NAME = re.compile(rb"\s*[@~\w ./\\-]{1,255}\.(?:jpe?g|png|webp|bmp|tiff?|gif|hei[cf]|avif)\s*", re.IGNORECASE)
_LONGEST_NAME = 2048
"""Maximum bytes of an address or a file's name; photos are longer."""


def found_wrong(problem: Mapping[str, Any]) -> str:
    """Return one of pydantic's messages as advice on what to write, without words about the library and Python."""
    if problem.get("type") == "extra_forbidden":
        return _NO_SUCH.format("field")
    said = str(problem["msg"])
    if said.startswith("Input should be ") and (problem.get("loc") or [None])[-1] in _RATE_NAMES:
        most = problem["ctx"]["le"] if problem.get("type") == "less_than_equal" else None
        return _A_RATE.format("between 0 and 1" if most is None else f"of at most {most:g}")
    for found, better in _SAYS.items():
        said = re.sub(found, better, said)
    return said


def unknown_name(name: str, known: Collection[str], what: str, image: str | None = None) -> str:
    """Return the message about a ``name`` that is not ``known``, with the one that is probably meant.

    ``what``: "field" or "parameter". ``image``: the fields of photos that are required but missing.
    """
    there_is_none = _NO_SUCH.format(what)
    if by_rate := meant_rate(name, known):
        return f"{there_is_none}: {by_rate}"
    if image is not None:
        return f"{there_is_none}: the {'photos go' if ' and ' in image else 'photo goes'} into {image}"
    if nearest := nearest_name(name, known):
        return f"{there_is_none}. Did you mean {nearest}?"
    return f"{there_is_none}; there are {', '.join(known)}" if known else f"{there_is_none}: it takes none"


def meant_rate(name: str, known: Collection[str]) -> str | None:
    """Return advice if ``name`` asks for a threshold and error rates are among the ``known`` names; else None."""
    rates = [option for rate in RATES for option in known if option.lstrip("-") == rate]
    if not rates or not any(word in name.lower() for word in _RATE_WORDS):
        return None
    return f"a threshold is asked for by its error rate, as {' or '.join(rates)}"


def nearest_name(name: str, known: Collection[str]) -> str | None:
    """Return the ``known`` name that is similar to ``name`` or has all of its words, ignoring case; or None."""
    asked, lower = name[:100].lower(), {word.lower(): word for word in known}
    words = {*re.split("[ _-]", asked)}
    found = difflib.get_close_matches(asked, lower, n=1) or [one for one in lower if words <= {*re.split("[ _-]", one)}]
    return lower[found[0]] if found else None


def what_it_is(content: bytes | memoryview | str) -> str | None:
    """Return a sentence if ``content`` is an address or a file's name in place of a photo; else None."""
    if len(content) > _LONGEST_NAME:
        return None
    data = content.encode(errors="replace") if isinstance(content, str) else bytes(content)
    if _ADDRESS.fullmatch(data):
        return "This is an address, not a photo, and nothing is fetched: send the photo itself."
    if _FILE_NAME.fullmatch(data):
        return "This is a file's name, not a photo: send its content (curl: image=@photo.jpg, with an @)."
    return None
