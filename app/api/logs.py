"""Logs as JSON, one line an event. They hold no ids of people, no keys, no images and no vectors."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

LOGGER = "likeness"
CHATTY = ("alembic", "uvicorn", "httpx")
"""What tells of its every step where a warning is enough."""


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``logger``, ``message``, the fields of ``extra={"fields": {...}}``, and of an exception its
    type and where it was raised: its message may quote what a log must not hold."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0]:
            kind, _, trace = record.exc_info
            frames = traceback.extract_tb(trace)
            line["exception"] = kind.__qualname__
            line["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=False)


def configure(level: str) -> None:
    """Sends everything that is logged in this process to standard error, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
