"""Make commands from declarations: each command makes one call of the client, and prints the server's answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from likeness_client import ApiError
from likeness_client.call import Call
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.cli import options
from app.cli.options import CliSession, command
from app.errors import Unusable

CHANGES = "changes"
"""Name of the parameter of a call that takes the form's fields as one mapping."""
SHARED = {"gallery": options.Gallery, "subject": options.Subject}
"""Types of the arguments that other commands have too, by name."""
SAMPLES = {"gallery": "home", "subject": "collins", "url": "https://example.org/faces"}
"""Values of arguments in examples; for other arguments, their name in capitals is used."""
SINGULAR = {"kinds": "kind", "galleries": "gallery", "cameras": "camera", "subjects": "subject"}
"""The name of the option, which may be repeated, for each field of a form that is a list."""


def add_call(
    group: typer.Typer,
    name: str,
    call: Callable[..., Call[Any]],
    form: type[BaseModel] | None = None,
    *,
    columns: Sequence[str] = (),
    done: str = "",
    required: Sequence[str] = (),
    about: str = "",
    setting: str,
) -> None:
    """Add a command ``name`` to the group that makes the call.

    Its arguments are the parameters that the call needs and the fields that are ``required``; its options are the other
    fields of ``form``, the server's model, whose descriptions are used for both. With ``columns``, it prints all pages
    of a list as a table; it prints any other answer field by field; if there is no answer, it prints what was ``done``
    to the last of the call's arguments. ``about`` is the command's help, by default the call's docstring. ``setting``:
    see `switched_on`.
    """
    taken = inspect.signature(call, eval_str=True).parameters
    fields = {} if form is None else form.model_fields
    needed = [name for name, parameter in taken.items() if parameter.default is parameter.empty and name != CHANGES]
    chosen = {name: SINGULAR.get(name, name) for name in fields if name not in [*needed, *required]}

    def work(session: CliSession, **given: Any) -> None:
        placed, client = [given[name] for name in needed], session.client()
        named = {name: given[name] for name in required}
        named |= {name: _sent(fields[name], given[word]) for name, word in chosen.items() if given[word] is not None}
        if CHANGES in taken:
            placed, named = [*placed, named], {}
        send = getattr(client, f"all_{call.__name__}", None) or getattr(client, call.__name__)
        with switched_on(setting):
            answer: Any = send(*placed, **named)
            rows = _rows(answer) if columns else []
        if columns:
            heads = [column.replace("_", " ") for column in columns]
            session.say_list(heads, rows, lambda row: [_shown(getattr(row, column)) for column in columns])
        elif answer is None:
            session.say_done(placed[-1], done)
        else:
            session.say(answer, *(f"{field}: {_shown(value)}" for field, value in answer if value is not None))

    parameter = partial(inspect.Parameter, kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shown = [parameter("session", annotation=CliSession)]
    shown += [
        parameter(argument, annotation=_argument(argument, fields.get(argument), taken))
        for argument in [*needed, *required]
    ]
    shown += [parameter(word, annotation=_option(fields[field]), default=None) for field, word in chosen.items()]
    work.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    work.__doc__ = about or call.__doc__
    sample = " ".join(SAMPLES.get(argument, argument.upper()) for argument in [*needed, *required])
    command(group, name, epilog=f"Example: likeness {group.info.name} {name} {sample}".rstrip())(work)


@contextmanager
def switched_on(setting: str) -> Iterator[None]:
    """Raise Unusable, which names the setting to switch on, if the server doesn't know the route."""
    try:
        yield
    except ApiError as error:
        if error.code == "not_found":
            raise Unusable(f"This is switched off: start the server with {setting}=on.") from None
        raise


def _argument(name: str, field: FieldInfo | None, taken: Mapping[str, inspect.Parameter]) -> Any:
    if name in SHARED:
        return SHARED[name]
    kind: Any = list[str] if get_origin(taken[name].annotation) is Sequence else str
    return Annotated[kind, typer.Argument(help=f"The {name}'s id." if field is None else field.description)]


def _option(field: FieldInfo) -> Any:
    """Return the type and description of a field's option. Closed sets, times and pairs of ids are given as texts."""
    kind = _kind(field.annotation)
    inner = get_args(kind)[0] if get_origin(kind) is list else kind
    words = field.description or ""
    if get_origin(inner) is Literal:
        words += f" One of {', '.join(get_args(inner))}."
    if ids := _parts(inner):
        words += f" {'/'.join(ids).upper()}."
    plain = inner if inner in {bool, int, float} else str
    if kind is inner:
        return Annotated[plain | None, typer.Option(help=words)]
    return Annotated[list[plain] | None, typer.Option(help=f"{words} May be repeated.")]  # type: ignore[valid-type]


def _kind(annotation: Any) -> Any:
    """Return a field's type without None and without annotations."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if NoneType in get_args(annotation):
        return _kind(next(kind for kind in get_args(annotation) if kind is not NoneType))
    return list[_kind(get_args(annotation)[0])] if get_origin(annotation) is list else annotation  # type: ignore[misc]


def _parts(kind: Any) -> list[str]:
    """Return the names of the ids that make up a model such as a pair of gallery and subject; none for any other
    type."""
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _sent(field: FieldInfo, value: Any) -> Any:
    """Return an option's value as the form takes it."""
    parts = _parts((*get_args(_kind(field.annotation)), None)[0])
    return [dict(zip(parts, pair.split("/", len(parts) - 1), strict=False)) for pair in value] if parts else value


def _rows(answer: Any) -> Iterable[Any]:
    """Return the items of an iterator over pages, or of the only list in an answer."""
    if not isinstance(answer, BaseModel):
        return list(answer)
    return next(value for _, value in answer if isinstance(value, list))


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else value
