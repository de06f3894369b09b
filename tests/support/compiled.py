"""SQL that SQLAlchemy has compiled, kept for all databases of a test run: each test opens some of its own."""

from __future__ import annotations

from typing import Any

KEPT = 5_000


class Compiled(dict[tuple[Any, ...], Any]):
    """For `create_engine`'s ``compiled_cache``. The keys begin with the engine's dialect, of which only the name is
    looked at: databases of one kind are alike here, and each would compile every statement anew."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        if len(self) >= KEPT:
            self.clear()
        super().__setitem__((key[0].name, *key[1:]), compiled)
