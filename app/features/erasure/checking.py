"""Check receipts of erasures, without a server."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from app.errors import Unusable
from app.features import signatures
from app.features.erasure.erasing import PURPOSE, subject_digest


def check_receipt(receipt: Mapping[str, Any], public_key: bytes | None = None) -> bool:
    """Check the receipt's signature; return whether it is known to be the server's.

    With `public_key`, the receipt must be signed with that key, and the result is True. Without it, the result is
    False: the receipt was not altered since it was signed, but the key is the one that the receipt itself names. Raises
    Unusable ``signature_wrong``.
    """
    named = signatures.check_signed(receipt, PURPOSE)
    if public_key is not None and not hmac.compare_digest(named, public_key):
        raise Unusable("The receipt was signed with another key.", code="signature_wrong")
    return public_key is not None


def is_about(receipt: Mapping[str, Any], gallery_id: str, subject_id: str) -> bool:
    about = receipt["subject"]
    return hmac.compare_digest(str(about["digest"]), subject_digest(str(about["salt"]), gallery_id, subject_id))
