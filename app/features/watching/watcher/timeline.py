"""Write who is in a film, from when to when, as JSON, CSV or an HTML page."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any, Final

from app.features.watching.watcher.reporter import Report
from app.files import replacing

COLUMNS: Final = ("film", "from_s", "to_s", "decision", "subject", "name", "stranger", "score", "frames", "sighting")
"""Columns of a visit; times are in seconds from the film's beginning."""
PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Who is in the film</title>
<table cellpadding="6"><tr><th>Film<th>From<th>To<th>Who<th>Decision
{}</table></html>
"""


class Timeline:
    """Collects what the service answers about tracks. Safe to share between threads."""

    def __init__(self) -> None:
        self._visits: dict[str, dict[str, Any]] = {}
        self._began: dict[str, float] = {}

    def begin(self, film: str, at: float) -> None:
        """Note the film's beginning as it is reported to the service, in seconds since 1970."""
        self._began[film] = at

    def answered(self, report: Report, sighting: Any) -> None:
        """Store the service's answer to a report; a later answer about the same track replaces it."""
        began = self._began.get(report.camera)
        if began is None:  # a camera's track, not a film's
            return
        times = {"from_s": round(report.began - began, 3), "to_s": round(report.last - began, 3)}
        visit = sighting.model_dump() | times | {"film": report.camera, "sighting": report.track}
        if sighting.decision != "known":
            visit |= {"subject": None, "name": None}
        self._visits[report.track] = {name: visit[name] for name in COLUMNS}

    def visits(self) -> list[dict[str, Any]]:
        """Return the visits with the fields of COLUMNS, in the order of films and times."""
        films = list(self._began)
        return sorted(
            self._visits.values(), key=lambda visit: (films.index(visit["film"]), visit["from_s"], visit["to_s"])
        )

    def write(self, path: Path) -> None:
        """Write CSV or a page to a file with the extension `.csv` or `.html`, JSON to any other."""
        visits, text, kind = self.visits(), io.StringIO(), path.suffix.lower()
        if kind == ".csv":
            writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(visits)
        elif kind == ".html":
            text.write(PAGE.format("\n".join(_row(visit) for visit in visits)))
        else:
            films = [
                {"film": name, "visits": [visit for visit in visits if visit["film"] == name]} for name in self._began
            ]
            text.write(json.dumps({"version": 1, "films": films}, ensure_ascii=False, indent=1) + "\n")
        with replacing(path) as file:
            file.write(text.getvalue().encode())


def _row(visit: dict[str, Any]) -> str:
    """Return a visit's row of the HTML page, with times in hours, minutes and seconds."""
    times = (timedelta(seconds=int(visit[name])) for name in ("from_s", "to_s"))
    who = visit["name"] or visit["subject"] or visit["stranger"] or "unknown"
    return "<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in (visit["film"], *times, who, visit["decision"]))
