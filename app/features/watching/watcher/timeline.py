"""Who is in a film, from when to when: as JSON, and as CSV."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from app.features.watching.watcher.reporter import Report
from app.files import replacing

COLUMNS: Final = ("film", "from_s", "to_s", "decision", "subject", "name", "stranger", "score", "frames", "sighting")


@dataclass(frozen=True, slots=True)
class Visit:
    """A person in a film, in seconds from its beginning."""

    film: str
    from_s: float
    to_s: float
    decision: str
    subject: str | None
    name: str | None
    stranger: str | None
    score: float | None
    frames: int
    sighting: str


class Timeline:
    """Collects what the service answers about tracks. Safe to share between threads."""

    def __init__(self) -> None:
        self._visits: dict[str, Visit] = {}
        self._began: dict[str, float] = {}
        self._lock = threading.Lock()

    def begin(self, film: str, at: float) -> None:
        """Note which time, in seconds since 1970, the film's beginning was told as."""
        self._began[film] = at

    def answered(self, report: Report, sighting: Any) -> None:
        """Take the service's answer to a report; the last one of a track counts."""
        began = self._began.get(report.camera)
        if began is None:  # a camera's
            return
        given = {
            name: getattr(sighting, name) for name in ("decision", "subject", "name", "stranger", "score", "frames")
        }
        known = {} if given["decision"] == "known" else {"subject": None, "name": None}
        times = (round(report.began - began, 3), round(report.last - began, 3))
        with self._lock:
            self._visits[report.track] = Visit(report.camera, *times, **(given | known), sighting=report.track)

    def visits(self) -> list[Visit]:
        """Return the visits in the order of films and times."""
        films = list(self._began)
        return sorted(self._visits.values(), key=lambda visit: (films.index(visit.film), visit.from_s, visit.to_s))

    def write(self, path: Path) -> None:
        """Write CSV to a file of that name, JSON to any other."""
        visits = self.visits()
        text = _csv(visits) if path.suffix.lower() == ".csv" else _json(list(self._began), visits)
        with replacing(path) as file:
            file.write(text.encode())


def _csv(visits: Sequence[Visit]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: asdict(visit)[name] for name in COLUMNS} for visit in visits)
    return out.getvalue()


def _json(films: Sequence[str], visits: Sequence[Visit]) -> str:
    rows = [{"film": film, "visits": [asdict(visit) for visit in visits if visit.film == film]} for film in films]
    return json.dumps({"version": 1, "films": rows}, ensure_ascii=False, indent=1) + "\n"
