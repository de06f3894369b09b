"""Which of our operations a CompreFace call is: the same scopes and the same words in the audit log.

`python -m app.doors.compreface.rules` prints the table of docs/reference/drop-ins.md.
"""

from __future__ import annotations

import sys

from app.access.records import Scope
from app.api.rules import Rule

PREFIX = "/api/v1/"
RECOGNITION = f"{PREFIX}recognition"
SUBJECTS = f"{RECOGNITION}/subjects"
SUBJECT = f"{SUBJECTS}/{{subject}}"
FACES = f"{RECOGNITION}/faces"
FACE = f"{FACES}/{{face_id}}"

RULES: tuple[Rule, ...] = (
    Rule("GET", SUBJECTS, "list_subjects", Scope.READ),
    Rule("GET", f"{SUBJECTS}/", "list_subjects", Scope.READ),
    Rule("POST", SUBJECTS, "create_subject", Scope.ENROLL, changes=True),
    Rule("PUT", SUBJECT, "rename_subject", Scope.ENROLL, changes=True),
    Rule("DELETE", SUBJECT, "delete_subject", Scope.ENROLL, changes=True),
    Rule("DELETE", SUBJECTS, "delete_all_subjects", Scope.ENROLL, changes=True),
    Rule("GET", FACES, "list_faces", Scope.READ),
    Rule("POST", FACES, "enroll", Scope.ENROLL, changes=True),
    Rule("DELETE", FACES, "delete_subject", Scope.ENROLL, changes=True),
    Rule("POST", f"{FACES}/delete", "delete_faces", Scope.ENROLL, changes=True),
    Rule("DELETE", FACE, "delete_face", Scope.ENROLL, changes=True),
    Rule("GET", f"{FACE}/img", "show_crop", Scope.READ),
    Rule("POST", f"{RECOGNITION}/recognize", "identify", Scope.RECOGNIZE),
    Rule("POST", f"{FACE}/verify", "verify_face", Scope.RECOGNIZE),
    Rule("POST", f"{RECOGNITION}/embeddings/recognize", "identify", Scope.RECOGNIZE),
    Rule("POST", f"{RECOGNITION}/embeddings/faces/{{face_id}}/verify", "verify_face", Scope.RECOGNIZE),
    Rule("POST", f"{PREFIX}detection/detect", "detect", Scope.RECOGNIZE),
    Rule("POST", f"{PREFIX}verification/verify", "verify", Scope.RECOGNIZE),
    Rule("POST", f"{PREFIX}verification/embeddings/verify", "verify", Scope.RECOGNIZE),
)


def rules_table() -> str:
    """Call, scope and the audit log's word as a Markdown table."""
    lines = ["| call | scope | in the audit log |", "|---|---|---|"]
    lines += [f"| `{rule.method} {rule.path}` | `{rule.scope}` | `{rule.name}` |" for rule in RULES]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(rules_table() + "\n")
