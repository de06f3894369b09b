"""Which operation needs which scope, and what the audit log calls it. What is not in the table needs `admin`."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from urllib.parse import unquote

from app.access.grants import Grant, Scope
from app.errors import InvalidInput
from app.gallery.records import gallery_not_found

READ, RECOGNIZE, ENROLL, ADMIN = Scope.READ, Scope.RECOGNIZE, Scope.ENROLL, Scope.ADMIN
GALLERY = "/v1/galleries/{gallery}"
SUBJECT = f"{GALLERY}/subjects/{{subject}}"
FACE = f"{SUBJECT}/faces/{{face_id}}"
JOB = "/v1/jobs/{job}"


@dataclass(frozen=True, slots=True)
class Rule:
    """``scope`` None: any key will do. ``everywhere``: not for keys that are restricted to galleries. ``changes``
    something: it is in the audit log before it begins."""

    method: str
    path: str
    name: str
    scope: Scope | None
    changes: bool = False
    everywhere: bool = False


RULES: tuple[Rule, ...] = (
    Rule("POST", "/v1/detect", "detect", RECOGNIZE),
    Rule("POST", "/v1/embed", "embed", RECOGNIZE),
    Rule("POST", "/v1/verify", "verify", RECOGNIZE),
    Rule("GET", "/v1/galleries", "list_galleries", READ),
    Rule("POST", "/v1/galleries", "create_gallery", ADMIN, changes=True, everywhere=True),
    Rule("GET", GALLERY, "show_gallery", READ),
    Rule("PATCH", GALLERY, "update_gallery", ADMIN, changes=True),
    Rule("DELETE", GALLERY, "delete_gallery", ADMIN, changes=True, everywhere=True),
    Rule("GET", f"{GALLERY}/check", "check_gallery", ADMIN),
    Rule("POST", f"{GALLERY}/import", "import", ADMIN, changes=True),
    Rule("POST", f"{GALLERY}/export", "export", ADMIN, changes=True),
    Rule("GET", f"{GALLERY}/reembed", "show_reembedding", READ),
    Rule("POST", f"{GALLERY}/reembed", "reembed", ADMIN, changes=True),
    Rule("DELETE", f"{GALLERY}/reembed", "cancel_reembedding", ADMIN, changes=True),
    Rule("POST", f"{GALLERY}/reembed/rollback", "roll_back_reembedding", ADMIN, changes=True),
    Rule("POST", f"{GALLERY}/reembed/finish", "finish_reembedding", ADMIN, changes=True),
    Rule("POST", f"{GALLERY}/identify", "identify", RECOGNIZE),
    Rule("GET", f"{GALLERY}/subjects", "list_subjects", READ),
    Rule("POST", f"{GALLERY}/subjects", "create_subject", ENROLL, changes=True),
    Rule("GET", SUBJECT, "show_subject", READ),
    Rule("PATCH", SUBJECT, "update_subject", ENROLL, changes=True),
    Rule("DELETE", SUBJECT, "delete_subject", ENROLL, changes=True),
    Rule("POST", f"{SUBJECT}/erase", "erase_subject", ADMIN, changes=True),
    Rule("POST", f"{SUBJECT}/verify", "verify_subject", RECOGNIZE),
    Rule("GET", f"{SUBJECT}/faces", "list_faces", READ),
    Rule("POST", f"{SUBJECT}/faces", "enroll", ENROLL, changes=True),
    Rule("GET", FACE, "show_face", READ),
    Rule("DELETE", FACE, "delete_face", ENROLL, changes=True),
    Rule("GET", f"{FACE}/crop", "show_crop", READ),
    Rule("POST", f"{FACE}/move", "move_face", ENROLL, changes=True),
    Rule("GET", "/v1/jobs", "list_jobs", READ),
    Rule("GET", JOB, "show_job", READ),
    Rule("GET", f"{JOB}/report", "show_report", READ),
    Rule("GET", f"{JOB}/result", "fetch_result", ADMIN),
    Rule("POST", f"{JOB}/cancel", "cancel_job", ADMIN, changes=True),
    Rule("GET", "/v1/models", "list_models", None),
    Rule("GET", "/v1/receipts", "list_receipts", ADMIN, everywhere=True),
    Rule("GET", "/v1/receipts/{receipt}", "show_receipt", ADMIN, everywhere=True),
    Rule("GET", "/v1/server-key", "show_server_key", None),
    Rule("GET", "/v1/key", "show_own_key", None),
    Rule("GET", "/v1/keys", "list_keys", ADMIN, everywhere=True),
    Rule("POST", "/v1/keys", "create_key", ADMIN, changes=True, everywhere=True),
    Rule("GET", "/v1/keys/{key}", "show_key", ADMIN, everywhere=True),
    Rule("DELETE", "/v1/keys/{key}", "revoke_key", ADMIN, changes=True, everywhere=True),
    Rule("POST", "/v1/keys/{key}/rotate", "rotate_key", ADMIN, changes=True, everywhere=True),
    Rule("GET", "/v1/audit", "read_audit", ADMIN, everywhere=True),
)
UNLISTED_PREFIX = "/v1/"
"""Below it, what has no rule is for unrestricted `admin` keys alone; elsewhere (`/docs`) any key will do."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What a request is about; ids as the caller means them, decoded and in NFC."""

    rule: Rule
    gallery: str | None = None
    subject: str | None = None
    target: str | None = None


def find_visit(method: str, path: str) -> Visit | None:
    """``path`` as it was sent, percent-encoded; None for what is neither listed nor below `/v1/`."""
    if visit := match_rule(RULES, method, path):
        return visit
    if path.startswith(UNLISTED_PREFIX):
        return Visit(Rule(method, path, "unknown", ADMIN, everywhere=True))
    return None


def match_rule(rules: tuple[Rule, ...], method: str, path: str) -> Visit | None:
    """The first of ``rules`` that is about this path, as it was sent."""
    for rule, pattern in _patterns(rules).get((method, path.count("/")), ()):
        if found := pattern.fullmatch(path):
            ids = {name: unicodedata.normalize("NFC", unquote(text)) for name, text in found.groupdict().items()}
            gallery, subject = ids.pop("gallery", None), ids.pop("subject", None)
            return Visit(rule, gallery, subject, next(iter(ids.values()), None))
    return None


def authorize(grant: Grant, visit: Visit) -> None:
    """Raises InvalidInput (``missing_scope``, ``gallery_restricted``); NotFound (``gallery_not_found``) for a gallery
    that the key does not see, as if it were not there."""
    rule = visit.rule
    if rule.scope is not None and not grant.has(rule.scope):
        raise InvalidInput(f"this needs a key with the scope `{rule.scope}`", code="missing_scope", scope=rule.scope)
    if rule.everywhere and grant.galleries is not None:
        raise InvalidInput("this needs a key that is not restricted to galleries", code="gallery_restricted")
    if visit.gallery is not None and not grant.sees(visit.gallery):
        raise gallery_not_found(visit.gallery)


def rules_table() -> str:
    """Scope by scope as a Markdown table."""
    lines = ["| scope | operations |", "|---|---|"]
    for scope in (None, *Scope):
        names = [f"`{rule.name}`" + ("*" if rule.everywhere else "") for rule in RULES if rule.scope == scope]
        lines.append(f"| {f'`{scope}`' if scope else 'any'} | {', '.join(names)} |")
    return "\n".join(lines)


@cache
def _patterns(rules: tuple[Rule, ...]) -> Mapping[tuple[str, int], Sequence[tuple[Rule, re.Pattern[str]]]]:
    """By method and number of slashes, since an id has none here."""
    found = defaultdict(list)
    for rule in rules:
        pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", rule.path))
        found[rule.method, rule.path.count("/")].append((rule, pattern))
    return found
