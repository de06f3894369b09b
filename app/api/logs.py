"""Logs as JSON, one line an event. They hold no ids of people, no keys, no images and no vectors."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

LOGGER = "likeness"
OWN = (LOGGER, "app")
"""The first words of our own loggers' names. Others may say anything: SQLAlchemy the values of every statement, Pillow
an image's EXIF fields. They are heard from warnings on, and without what is filled into their sentences."""


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``logger``, ``message``, the fields of ``extra={"fields": {...}}``, and of an exception its
    type and where it was raised: its message may quote what a log must not hold."""

    def format(self, record: logging.LogRecord) -> str:
        own = record.name.split(".")[0] in OWN
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage() if own else _template(record),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0]:
            kind, _, trace = record.exc_info
            frames = traceback.extract_tb(trace)
            line["exception"] = kind.__qualname__
            line["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=False)


def _template(record: logging.LogRecord) -> str:
    """A foreign sentence without what is filled into it; of a warning, where it comes from and its kind."""
    if record.name == "py.warnings":
        return ": ".join(record.getMessage().split(": ")[:2])
    return str(record.msg).partition("\n")[0]


def configure(level: str) -> None:
    """Sends everything that is logged in this process to standard error, as JSON; ``level`` is our own loggers'."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    least = logging.getLevelNamesMapping()[level.upper()]
    handler.setLevel(least)  # some others set their own
    logging.basicConfig(level=max(logging.WARNING, least), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    for name in OWN:
        logging.getLogger(name).setLevel(least)
