"""End with exit code 0 if this container's server is ready (`/readyz`): for HEALTHCHECK, in an image without curl."""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4


def main() -> int:
    port = os.environ.get("LIKENESS_PORT") or "8000"
    secure = bool(os.environ.get("LIKENESS_TLS_CERT"))
    # The certificate's name is not checked, since the container calls itself.
    context = ssl._create_unverified_context() if secure else None  # noqa: S323
    url = f"{'https' if secure else 'http'}://127.0.0.1:{port}/readyz"
    no_proxy = urllib.request.ProxyHandler({})
    opener = urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=TIMEOUT_S):
            return 0
    except (OSError, urllib.error.URLError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
