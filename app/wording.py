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

_NO_SUCH = "There is no such {}"
_DICTIONARY = re.compile(r"a valid dictionary(?: or instance of \w+)?")
_IS_TEXT = re.compile("Value should have at (?:least|most) ").match
"""Of lists pydantic says that a "List should have" so many items."""
_ADDRESS = re.compile(rb"\s*(?:https?|ftp|file|s3|gs|rtsp)://\S+\s*", re.IGNORECASE)
_FILE_NAME = re.compile(rb"\s*[@~\w ./\\-]{1,255}\.(?:jpe?g|png|webp|bmp|tiff?|gif|hei[cf]|avif)\s*", re.IGNORECASE)
_LONGEST_NAME = 2048
"""Bytes of an address or a file's name; no photo is as short."""


def found_wrong(problem: Mapping[str, Any]) -> str:
    """Return the message of one of pydantic's errors without its words about itself and about Python.

    "Value error, " is how it introduces another's message, ", unable to …" what it has tried, " after validation" what
    it has done. A dictionary is an object in JSON, and a text's "items" are characters.
    """
    if problem.get("type") == "extra_forbidden":
        return _NO_SUCH.format("field")
    said = str(problem["msg"]).removeprefix("Value error, ").partition(", unable to ")[0]
    said = _DICTIONARY.sub("an object", said.partition(" after validation, ")[0])
    return said.replace("Value should", "Text should").replace(" item", " character") if _IS_TEXT(said) else said


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
    nearest = near(name, known)
    return f"{there_is_none}. Did you mean {nearest}?" if nearest else there_is_none


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
