"""Bounds the connections to the server, in total and by address, and closes idle ones where others need theirs."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from app.access.rate_limits import address_group

RESERVED = 256
"""File descriptors for everything but connections: database, models, uploads, logs."""
MOST = 4096
"""Connections at most: each takes some 20 kB, and up to 64 KiB more while a body arrives faster than it is read."""
ADDRESS_SHARE = 0.25
"""Of all connections, for one address. A proxy that is trusted may have all of them."""


class Closable(Protocol):
    """A connection."""

    def close_idle(self) -> None:
        """Close it between two requests, or within a request's head."""


class Connections:
    """The open connections of one event loop. One that has no request in progress is idle.

    ``descriptors`` is how many files the process may open, ``proxies`` the networks of trusted proxies.
    """

    def __init__(self, descriptors: int, proxies: Sequence[str] = ()) -> None:
        self._most = min(MOST, max(1, descriptors - RESERVED))
        self._share = max(1, int(self._most * ADDRESS_SHARE))
        self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]
        self._open: dict[Closable, str] = {}
        self._by_address: Counter[str] = Counter()
        self._idle: dict[Closable, None] = {}
        """In the order in which they became idle."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Closable, host: str) -> bool:
        """Count a new connection, idle as yet; return False if there are too many and none of them is idle.

        An idle one is closed for it: of this address if that has its share, else of the address that has the most.
        """
        address = "" if self._is_proxy(host) else address_group(host)
        if address and self._by_address[address] >= self._share:
            added = self._close_one(address)
        elif len(self._open) >= self._most:
            added = any(self._close_one(crowd) for crowd, _ in self._by_address.most_common())
        else:
            added = True
        if added:
            self._open[connection] = address
            self._by_address[address] += 1
            self._idle[connection] = None
        return added

    def remove(self, connection: Closable) -> None:
        """Forget a connection that was closed, if it was counted."""
        address = self._open.pop(connection, None)
        if address is None:
            return
        self._idle.pop(connection, None)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def begin(self, connection: Closable) -> None:
        """Note that a request on it begins."""
        self._idle.pop(connection, None)

    def end(self, connection: Closable) -> None:
        """Note that it has no request any more."""
        if connection in self._open:
            self._idle[connection] = None

    def _close_one(self, address: str) -> bool:
        longest = next((one for one in self._idle if self._open[one] == address), None)
        if longest is None:
            return False
        self.remove(longest)
        longest.close_idle()
        return True

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:  # a socket of this machine
            return True
        return any(address in network for network in self._proxies)
