"""Print, in one line, the settings of this container's environment that the service does not know or can't use."""

from __future__ import annotations

import sys

from app.config import load_settings
from app.errors import Unusable

if __name__ == "__main__":
    try:
        load_settings()
    except Unusable as error:
        sys.exit(f"{error.message} It is in `.env` or in the environment of `docker compose`.")
