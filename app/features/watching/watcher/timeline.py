"""Who is in a film, from when to when: as JSON, and as CSV."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, Final

from app.features.watching.watcher.reporter import Report
from app.files import replacing

COLUMNS: Final = ("film", "from_s", "to_s", "decision", "subject", "name", "stranger", "score", "frames", "sighting")
"""Columns of a visit; times are in seconds from the film's beginning."""


class Timeline:
    """Collects what the service answers about tracks. Safe to share between threads."""

    def __init__(self) -> None:
        self._visits: dict[str, dict[str, Any]] = {}
        self._began: dict[str, float] = {}

    def begin(self, film: str, at: float) -> None:
        """Note the time, in seconds since 1970, that was reported for the film's beginning."""
        self._began[film] = at

    def answered(self, report: Report, sighting: Any) -> None:
        """Take the service's answer to a report; a track's last one counts."""
        began = self._began.get(report.camera)
        if began is None:  # a camera's track, not a film's
            return
        times = {"from_s": round(report.began - began, 3), "to_s": round(report.last - began, 3)}
        visit = sighting.model_dump() | times | {"film": report.camera, "sighting": report.track}
        if sighting.decision != "known":
            visit |= {"subject": None, "name": None}
        self._visits[report.track] = {name: visit[name] for name in COLUMNS}

    def visits(self) -> list[dict[str, Any]]:
        """Return the visits, by COLUMNS, in the order of films and times."""
        films = list(self._began)
        return sorted(self._visits.values(), key=lambda one: (films.index(one["film"]), one["from_s"], one["to_s"]))

    def write(self, path: Path) -> None:
        """Write CSV to a file with that extension, JSON to any other."""
        visits = self.visits()
        text = io.StringIO()
        if path.suffix.lower() == ".csv":
            writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(visits)
        else:
            films = [{"film": name, "visits": [one for one in visits if one["film"] == name]} for name in self._began]
            text.write(json.dumps({"version": 1, "films": films}, ensure_ascii=False, indent=1) + "\n")
        with replacing(path) as file:
            file.write(text.getvalue().encode())
