"""Answer the requests that Immich's server sends to its machine learning: find faces here, and forward all others
(docs/how-to/immich.md)."""

from __future__ import annotations

import ipaddress

from app.api.components import Components
from app.api.feature import Feature, Part
from app.features.immich.routes import Immich, router
from app.features.immich.wire import IMMICH


def _start(core: Components, *, immich_networks: tuple[str, ...], immich_others: str | None) -> Part:
    networks = tuple(map(ipaddress.ip_network, immich_networks))
    return Part({"immich": Immich(core, networks, immich_others)})


FEATURE = Feature([router], _start, ("immich_networks", "immich_others"), setting="immich", wire=IMMICH)
