"""Share the SQL that SQLAlchemy compiles between all databases of a test run: each test opens some of its own."""

from __future__ import annotations

from typing import Any

KEPT = 5_000


class Compiled(dict[tuple[Any, ...], Any]):
    """A cache for `create_engine`'s ``compiled_cache`` that databases of one kind share.

    The keys begin with the engine's dialect. Only its name counts here: by its identity each database would compile
    every statement again.
    """

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        if len(self) >= KEPT:
            self.clear()
        super().__setitem__((key[0].name, *key[1:]), compiled)
