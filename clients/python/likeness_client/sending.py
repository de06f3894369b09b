"""Calls as methods of both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from likeness_client.call import Call

if TYPE_CHECKING:
    from likeness_client.client import AsyncClient, Client

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Item = TypeVar("Item")


class HasCursor(Protocol):
    """An answer that is one page of several."""

    @property
    def next_cursor(self) -> str | None: ...


Page = TypeVar("Page", bound=HasCursor)


class Method(Generic[Arguments, Answer]):
    """A call as a method of both clients, with the same arguments."""

    def __init__(self, call: Callable[Arguments, Call[Answer]]) -> None:
        self._call = call

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Arguments, Call[Answer]]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[Arguments, Answer]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[Arguments, Coroutine[Any, Any, Answer]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Callable[Arguments, Any]:
        if client is None:
            return self._call  # help() and editors show its docstring

        @wraps(self._call)
        def send(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
            return client.send(self._call(*args, **kwargs))

        return send


class Pages(Generic[Arguments, Item]):
    """A call for a page as a method of both clients that yields the items of every page."""

    def __init__(self, call: Callable[Arguments, Call[Page]], items: Callable[[Page], list[Item]]) -> None:
        self._call = call
        self._items: Callable[[Any], list[Item]] = items

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Arguments, Call[Any]]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[Arguments, Iterator[Item]]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[Arguments, AsyncIterator[Item]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Callable[Arguments, Any]:
        if client is None:
            return self._call

        @wraps(self._call)
        def walk(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
            first = self._call(*args, **kwargs)
            return client.walk(first, self._items)

        walk.__doc__ = f"Yield the items of every page of ``{self._call.__name__}``."
        return walk
