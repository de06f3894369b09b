"""Run what may never end in a process of its own, with a time limit: a model's graph may loop for ever."""

from __future__ import annotations

import math
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import ParamSpec, TypeVar

from app.errors import LikenessError, Unusable

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def within(
    seconds: float, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Return what ``work`` returns in a process of its own; all that it takes and returns can be pickled.

    Raises its LikenessError and OSError, and Unusable: model_too_slow, model_check_failed (the process died).
    """
    context = multiprocessing.get_context("spawn")  # threads of this process would not survive a fork
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, seconds, work, args, kwargs), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            message = f"The model did not answer within {seconds:g} s. Is it an embedder? --time-limit gives it longer."
            raise Unusable(message, code="model_too_slow", seconds=seconds)
        outcome = receiver.recv()
    except EOFError as error:
        process.join()
        message = f"The process that ran the model ended with code {process.exitcode}; it may need more memory."
        raise Unusable(message, code="model_check_failed") from error
    finally:
        process.kill()
        process.join()
        receiver.close()
    if isinstance(outcome, LikenessError | OSError):
        raise outcome
    result: Result = outcome
    return result


def _answer(
    sender: Connection, seconds: float, work: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    signal.alarm(math.ceil(seconds) + 1)  # the parent may be gone by then
    try:
        outcome = work(*args, **kwargs)
    except (LikenessError, OSError) as error:
        outcome = error
    sender.send(outcome)
