"""Logs as JSON, one line per event, without ids of people, keys, images or vectors."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

LOGGER = "likeness"
OWN_LOGGERS = (LOGGER, "app")
"""Prefixes of our own loggers' names. Other loggers may write anything (SQLAlchemy the values of statements, Pillow
EXIF fields), so only their warnings and errors are logged, without the messages' arguments."""


class JsonFormatter(logging.Formatter):
    """Writes ``time``, ``level``, ``logger``, ``message``, and the fields of ``extra={"fields": {...}}``.

    For an exception it writes the type and the stack, but not the message, which may quote personal data.
    """

    def format(self, record: logging.LogRecord) -> str:
        is_ours = record.name.split(".")[0] in OWN_LOGGERS
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage() if is_ours else _template(record),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0]:
            kind, _, trace = record.exc_info
            frames = traceback.extract_tb(trace)
            line["exception"] = kind.__qualname__
            line["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=False)


def _template(record: logging.LogRecord) -> str:
    """Return a foreign message without its arguments; for a warning, its place and category."""
    if record.name == "py.warnings":
        return ": ".join(record.getMessage().split(": ")[:2])
    return str(record.msg).partition("\n")[0]


def configure(level: str) -> None:
    """Log everything of this process to standard error, as JSON; ``level`` applies to our own loggers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    least = logging.getLevelNamesMapping()[level.upper()]
    handler.setLevel(least)  # some libraries set their own level
    logging.basicConfig(level=max(logging.WARNING, least), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(least)
