"""Check and normalise text from outside: ids, names, notes, metadata and search text."""

from __future__ import annotations

import json
import re
import unicodedata
import uuid
from collections.abc import Mapping
from itertools import pairwise

from app.errors import InvalidInput

MAX_TEXT = 255
"""Maximum characters (code points, after NFC) of an id or a name."""
MAX_CONSENT = 1000
"""Maximum characters of a note of consent."""
MAX_METADATA_BYTES = 16 * 1024
"""Default limit of a metadata object, as compact JSON in UTF-8."""
MAX_METADATA_DEPTH = 16
"""Maximum nesting of objects and lists, including the outermost object."""
_NFC_SHRINKS = 4
"""NFC joins up to this many code points (for example U+1F82), so longer raw text can't fit."""
_MARKS = 30
"""Maximum combining marks in a row; no script needs more (UAX #15, Stream-Safe Text Format)."""
UNNAMED_SIGN = "~"
UNNAMED_LENGTH = 33
"""An unnamed subject's id is UNNAMED_SIGN and 32 hexadecimal digits, 33 characters."""
_UNNAMED = re.compile(f"{UNNAMED_SIGN}[0-9a-f]{{{UNNAMED_LENGTH - 1}}}")
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
"""Control characters (NUL: PostgreSQL can't store it), lone surrogates (no UTF-8), line and paragraph separators."""

HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point, which holds all bidirectional controls, and interlinear annotations."""
_NEEDED = re.compile("[\u200c\u200d\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0020-\U000e007f\U000e0100-\U000e01ef]")
"""The hidden characters that scripts and emoji need: joiners, variation selectors, tags (of flags)."""
_PLAIN_SPACES = " \u3000"
"""The plain space, and the wide one of Chinese and Japanese."""
_SPACES = str.maketrans("_-.", "   ")
_EMOJI_STYLE, _KEYCAPS = "\ufe0f", "0123456789#*"


def clean_id(text: str, what: str) -> str:
    """Return `text` in NFC if it can be the id of a `what` ("gallery", "subject").

    Any script, emoji and slashes are allowed; ids are compared exactly, including case.
    Raises InvalidInput ``invalid_id``.
    """
    cleaned = _clean_text(text, f"{what} id", "invalid_id")
    if cleaned in {".", ".."}:
        raise InvalidInput(f"A {what} id can't be {cleaned!r}: no URL can hold it.", code="invalid_id")
    return cleaned


def check_visible(text: str, what: str, code: str = "invalid_id") -> None:
    """Check that a new `what` ("subject id", "name") can't look like another: no spaces at its ends, no unusual spaces
    or invisible characters, and no id that `is_unnamed` would take for an unnamed subject's.

    Joiners, variation selectors and tags are allowed after letters and emoji that need them. Ids and names that are
    older than this check keep working. Raises InvalidInput `code`.
    """
    if code == "invalid_id" and is_unnamed(text) and not _UNNAMED.fullmatch(text):
        message = f"A {what} of {UNNAMED_LENGTH} characters can't begin with {UNNAMED_SIGN!r}, as unnamed subjects do."
        raise InvalidInput(message, code=code)
    if text != text.strip():
        raise InvalidInput(f"A {what} can't begin or end with a space.", code=code)
    for before, character in pairwise(f" {text}"):
        needed = not before.isascii() or (character == _EMOJI_STYLE and before in _KEYCAPS)
        if unicodedata.category(character) == "Zs" and character not in _PLAIN_SPACES:
            message = f"A {what} can't hold the space U+{ord(character):04X}, which looks like another."
            raise InvalidInput(message, code=code)
        if HIDDEN.match(character) and not (_NEEDED.match(character) and needed):
            message = f"A {what} can't hold the invisible character U+{ord(character):04X} here."
            raise InvalidInput(message, code=code)


def check_characters(text: str, what: str, code: str = "invalid_id") -> None:
    """Check that a text is one line of characters that the databases can store. Raises InvalidInput `code`."""
    if refused := _REFUSED.search(text):
        raise InvalidInput(f"A {what} can't hold the character U+{ord(refused[0]):04X}.", code=code)


def unnamed_id() -> str:
    """Return the id of a new unnamed subject: `~` and 32 hexadecimal digits.

    An unnamed subject stands for one face of an unidentified person. It is deleted when it loses that face.
    """
    return f"{UNNAMED_SIGN}{uuid.uuid4().hex}"


def is_unnamed(subject_id: str) -> bool:
    return subject_id.startswith(UNNAMED_SIGN) and len(subject_id) == UNNAMED_LENGTH


def clean_name(text: str) -> str:
    """Return `text` in NFC, with plain spaces and none at its ends, if it can be a subject's name.

    Raises InvalidInput ``invalid_name``.
    """
    plain = "".join(" " if unicodedata.category(char) == "Zs" and char not in _PLAIN_SPACES else char for char in text)
    cleaned = _clean_text(plain.strip(_PLAIN_SPACES), "name", "invalid_name")
    check_visible(cleaned, "name", "invalid_name")
    return cleaned


def clean_note(text: str) -> str:
    """Return a note of consent in NFC. Raises InvalidInput ``invalid_consent``."""
    return _clean_text(text, "note of consent", "invalid_consent", MAX_CONSENT)


def clean_search(text: str) -> str:
    """Return `text` in NFC if it can be searched for in ids and names. Raises InvalidInput ``invalid_search``."""
    return _clean_text(text, "search text", "invalid_search")


def to_nfc(text: str, longest: int = MAX_TEXT) -> str:
    """Return the text in NFC; unchanged if it can't be valid, too long or with more than 30 marks in a row.

    Sorting marks takes time in the square of their number, and this is called before a key is checked.
    """
    if text.isascii() or len(text) > longest * _NFC_SHRINKS or _piles_marks(text):
        return text
    return unicodedata.normalize("NFC", text)


def _piles_marks(text: str) -> bool:
    in_a_row = 0
    for character in text:
        in_a_row = in_a_row + 1 if unicodedata.combining(character) else 0
        if in_a_row > _MARKS:
            return True
    return False


def _clean_text(text: str, what: str, code: str, longest: int = MAX_TEXT) -> str:
    cleaned = to_nfc(text, longest)
    if not 1 <= len(cleaned) <= longest:
        raise InvalidInput(f"A {what} has 1 to {longest} characters, not {len(cleaned)}.", code=code)
    if not cleaned.isascii() and _piles_marks(cleaned):
        raise InvalidInput(f"A {what} has at most {_MARKS} combining marks in a row.", code=code)
    check_characters(cleaned, what, code)
    return cleaned


def fold(*texts: str | None) -> str:
    """Return the texts, one per line, in the form for substring search: no case or accents; `_`, `-`, `.` as spaces.

    The migrations have a copy, so change it only together with a new migration.
    """
    return "\n".join(_fold(text) for text in texts if text)


def _fold(text: str) -> str:
    parts = unicodedata.normalize("NFKD", text).casefold()
    bare = "".join(part for part in parts if not unicodedata.combining(part))
    return unicodedata.normalize("NFC", bare).translate(_SPACES)


def encode_metadata(metadata: Mapping[str, object], max_bytes: int = MAX_METADATA_BYTES) -> str:
    """Return `metadata` as compact JSON.

    Raises InvalidInput ``invalid_metadata`` if it isn't a JSON object (NaN and Infinity aren't JSON), is nested deeper
    than MAX_METADATA_DEPTH, larger than `max_bytes`, or holds NUL or lone surrogates.
    """
    if not isinstance(metadata, dict):
        raise _invalid_metadata("Metadata must be a JSON object.")
    _check_json(metadata, 0)
    try:
        text = json.dumps(metadata, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
    except ValueError as error:  # NaN, numbers of thousands of digits, lone surrogates
        raise _invalid_metadata("Metadata must be plain JSON.") from error
    if size > max_bytes:
        raise _invalid_metadata(f"Metadata takes {size} bytes as JSON; {max_bytes} are allowed.", limit=max_bytes)
    return text


def _check_json(value: object, depth: int) -> None:
    """Check a value inside ``depth`` objects and lists. The limit keeps cycles from exhausting the stack."""
    if isinstance(value, dict | list):
        if depth == MAX_METADATA_DEPTH:
            raise _invalid_metadata(f"Metadata is nested deeper than {MAX_METADATA_DEPTH} levels.")
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            raise _invalid_metadata("Metadata keys must be strings.")
        for inner in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_json(inner, depth + 1)
    elif isinstance(value, str):
        if "\0" in value:
            raise _invalid_metadata("Metadata can't hold the character U+0000.")
    elif value is not None and not isinstance(value, bool | int | float):
        raise _invalid_metadata(f"Metadata can't hold a {type(value).__name__}.")


def _invalid_metadata(message: str, **details: object) -> InvalidInput:
    return InvalidInput(message, code="invalid_metadata", **details)
