"""Look for known vulnerabilities of the pinned versions: `python requirements/audit.py [--renew]`.

The advisories are the index's own (PyPI's JSON, which takes them from OSV), recorded with their date in
advisories.json, so that a check needs no network. `--renew` reads them anew: at each release, and after constraints.txt
was changed. If the index no longer has advisories for a version (a mirror may know only the newest), the record stays.

Exit code 1: there are vulnerabilities that ACCEPTED does not explain. Exit code 2: constraints.txt was changed after
the record was made, or the index can't be reached.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
CONSTRAINTS, RECORD = FOLDER.parent / "constraints.txt", FOLDER / "advisories.json"
INDEX = "https://pypi.org/pypi"
AT_ONCE, TIMEOUT_S = 8, 60
ACCEPTED: Mapping[str, str] = {}
"""Ids of advisories that do not concern this project, each with its reason."""


def pinned() -> dict[str, str]:
    """Return the version of each package in constraints.txt."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE))


def fetch(name: str, version: str) -> list[dict[str, Any]] | None:
    """Return the advisories of a version; None if the index doesn't know the version, as a mirror may not."""
    for url in (f"{INDEX}/{name}/{version}/json", f"{INDEX}/{name}/json"):
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 (https alone, see INDEX)
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            continue
        if found["info"]["version"] == version:
            kept = (one for one in found["vulnerabilities"] if not one.get("withdrawn"))
            return [{"id": one["id"], "aliases": one["aliases"], "fixed_in": one["fixed_in"]} for one in kept]
    return None


def renew() -> None:
    """Write the record."""
    versions, today = pinned(), datetime.now(UTC).date().isoformat()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(versions, pool.map(fetch, versions, versions.values()), strict=True))
    before = json.loads(RECORD.read_text(encoding="utf-8"))["packages"] if RECORD.is_file() else {}
    packages = merge(before, versions, found, today)
    record = {"date": today, "index": INDEX, "packages": packages}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def merge(
    before: Mapping[str, Mapping[str, Any]],
    versions: Mapping[str, str],
    found: Mapping[str, list[dict[str, Any]] | None],
    today: str,
) -> dict[str, Mapping[str, Any]]:
    """Return a record of each version: what was found today, or else what ``before`` has of it, with its date."""
    packages: dict[str, Mapping[str, Any]] = {}
    for name, version in versions.items():
        known = before.get(name, {})
        if found[name] is None and known.get("version") == version and known["advisories"] is not None:
            packages[name] = known
        else:
            told = {} if found[name] is None else {"date": today}
            packages[name] = {"version": version, "advisories": found[name]} | told
    return packages


def check(record: Mapping[str, Any], versions: Mapping[str, str]) -> int:
    """Print what is known of the versions, and return the exit code."""
    packages = record["packages"]
    recorded = [name for name, version in versions.items() if packages.get(name, {}).get("version") == version]
    known = [name for name in recorded if packages[name]["advisories"] is not None]
    unknown, missing = sorted({*recorded} - {*known}), sorted(versions.keys() - {*recorded})
    found = 0
    for name in known:
        for one in packages[name]["advisories"]:
            reason = next((ACCEPTED[key] for key in (one["id"], *one["aliases"]) if key in ACCEPTED), None)
            found += reason is None
            fixed = ", ".join(one["fixed_in"]) or "no version"
            sys.stdout.write(f"{name} {versions[name]}: {one['id']}, fixed in {fixed}. {reason or ''}".rstrip() + "\n")
    oldest = min((packages[name].get("date", record["date"]) for name in known), default=record["date"])
    since = record["date"] if oldest == record["date"] else f"{oldest} to {record['date']}"
    sys.stdout.write(f"{len(known)} versions checked, advisories of {since}: {found} known vulnerabilities\n")
    if unknown:
        sys.stderr.write(f"{len(unknown)} versions are none that the index told advisories of: {', '.join(unknown)}.\n")
    if missing:
        sys.stderr.write(f"{len(missing)} versions are not recorded: {', '.join(missing)}. Run `make advisories`.\n")
    return 1 if found else 2 if missing else 0


def main(arguments: list[str]) -> int:
    try:
        if arguments == ["--renew"]:
            renew()
        return check(json.loads(RECORD.read_text(encoding="utf-8")), pinned())
    except OSError as error:
        sys.stderr.write(f"The advisories can't be read: {error}.\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
