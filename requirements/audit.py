"""Look for known vulnerabilities of the pinned versions: `python requirements/audit.py PIP_AUDIT`.

Exit code 1: there are some; 2: the database of advisories can't be reached, or does not know some of the versions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
NAMED = 5
"""Packages that one sentence names."""


def main(program: str) -> int:
    command = [program, "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own tool)
    try:
        audited = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        sys.stderr.write(f"The versions could not be checked: the database of advisories is not reached ({last}).\n")
        return 2
    found = [(one, fault) for one in audited for fault in one.get("vulns", ())]
    for one, fault in found:
        fixed = ", ".join(fault["fix_versions"]) or "no version"
        sys.stdout.write(f"{one['name']} {one['version']}: {fault['id']}, fixed in {fixed}\n")
    skipped = [one["name"] for one in audited if "skip_reason" in one]
    sys.stdout.write(f"{len(audited) - len(skipped)} versions checked, {len(found)} known vulnerabilities\n")
    if skipped:
        some = ", ".join(skipped[:NAMED]) + (" …" if len(skipped) > NAMED else "")
        why = "the index that is reached here has no advisories of them"
        sys.stderr.write(f"{len(skipped)} versions could not be checked, because {why}: {some}.\n")
    return 1 if found else 2 if skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
