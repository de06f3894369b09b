"""The results of `likeness doctor`'s checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["ok", "todo", "warning", "failed"]
"""`todo`: something that must be done or checked by hand."""
REMEDIES = {
    "models": "Set LIKENESS_MODELS_DIR, LIKENESS_EMBEDDER and LIKENESS_DETECTOR to packages that exist.",
    "device": "Set LIKENESS_EMBEDDER to a package for embedding, or repair this one.",
    "liveness": "Set LIKENESS_LIVENESS to packages that exist (docs/how-to/liveness.md).",
    "key": "Restore the file, or create a new key: likeness keys admin --rotate",
    "vault": "Put back the key file that the database was encrypted with (vault.key, LIKENESS_ENCRYPTION_KEY_FILE).",
    "index": "Correct LIKENESS_INDEX and LIKENESS_INDEX_TOKEN (docs/how-to/milvus.md), and check that Milvus runs.",
    "galleries": "Correct LIKENESS_MODELS_DIR and LIKENESS_DATABASE_URL.",
    "database": "Correct LIKENESS_DATABASE_URL, or the permissions of the file that it names.",
    "tls": "Set LIKENESS_TLS_CERT and LIKENESS_TLS_KEY to a certificate and its key: PEM, readable, no password.",
}
"""What to do about an error that a check raises, by the check's name."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check, and what to do if it is not ok. ``check``: its name, by default that of the check that
    yields it."""

    verdict: Outcome
    found: str
    remedy: str = ""
    check: str = ""
