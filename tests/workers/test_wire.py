"""What a worker sends becomes a value of the declared type, or an error: nothing else, whatever it sends."""

from __future__ import annotations

import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from app.errors import ImageTooLarge, ImageTooSmall
from app.types import Box, Face, Photo, Quality, Reason
from app.workers.wire import Broken, decode, encode, receive, send
from app.workers.worker import WorkerAnswer, refused

CROP = np.arange(112 * 112 * 3, dtype=np.uint8).reshape(112, 112, 3)
FACE = Face(
    Box(1.5, -2.0, 3.25, 4.0),
    np.linspace(0, 1, 10, dtype=np.float32).reshape(5, 2),
    0.875,
    Quality(33.0, (Reason.SMALL_FACE, Reason.CUT_OFF)),
    CROP,
    cuts=(CROP[:80, :80], CROP[:3]),
)
UNALIGNABLE = replace(FACE, landmarks=None, crop=None, quality=Quality(0.0, (Reason.UNALIGNABLE,)))
PHOTO = Photo(640, 480, (FACE, replace(FACE, score=0.1, cuts=()), UNALIGNABLE), 90, {"decode": 1.25, "detect": 7.0})


def passed(answer: WorkerAnswer) -> WorkerAnswer:
    head, arrays = encode(answer)
    return decode(WorkerAnswer, head, bytearray(b"".join(array.tobytes() for array in arrays)))


def shown(face: Face) -> tuple[object, ...]:
    """Everything a face holds, comparable."""
    arrays: list[NDArray[Any]] = [array for array in (face.landmarks, face.crop, *face.cuts) if array is not None]
    plain = {field.name: getattr(face, field.name) for field in fields(face)}
    rest = {name: value for name, value in plain.items() if name not in ("landmarks", "crop", "cuts")}
    return rest, [(array.dtype, array.shape, array.tobytes()) for array in arrays]


def test_a_photo_arrives_as_it_was() -> None:
    photo = passed(WorkerAnswer("photo", PHOTO)).photo
    assert photo is not None
    assert replace(photo, faces=()) == replace(PHOTO, faces=())
    assert [shown(face) for face in photo.faces] == [shown(face) for face in PHOTO.faces]


@pytest.mark.parametrize(
    "error", [ImageTooLarge("Too large.", width=3), ImageTooSmall("Small.", code="x", why=[1, "a"])]
)
def test_an_error_arrives_as_it_was(error: ImageTooLarge | ImageTooSmall) -> None:
    again = passed(refused(error)).error()
    assert (type(again), again.message, again.code, again.details) == (
        type(error),
        error.message,
        error.code,
        error.details,
    )


def test_messages_of_any_size_arrive_whole() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, b"head", [b"", b"abc", np.zeros((0, 3), np.uint8), CROP[:2]])
        head, data = receive(theirs)
        assert (head, bytes(data)) == (b"head", b"abc" + CROP[:2].tobytes())
        ours.close()
        with pytest.raises(Broken):
            receive(theirs)


def test_a_message_that_says_it_is_huge_is_refused_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\xff" * 12)
        with pytest.raises(Broken):
            receive(theirs)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=5), values, max_size=4),
    max_leaves=10,
)
GOOD, ARRAYS = encode(WorkerAnswer("photo", PHOTO))


@given(st.data())
def test_whatever_else_arrives_is_no_answer(data: st.DataObject) -> None:
    """One place of a good answer is replaced by anything."""
    answer = json.loads(GOOD)
    at, bytes_ = answer, bytearray(b"".join(array.tobytes() for array in ARRAYS))
    while True:
        key = data.draw(st.sampled_from(sorted(at)) if isinstance(at, dict) else st.integers(0, len(at) - 1))
        if not isinstance(at[key], (dict, list)) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(VALUES)
    try:
        made = decode(WorkerAnswer, json.dumps(answer).encode(), bytes_[: data.draw(st.integers(0, len(bytes_)))])
    except Broken:
        return
    assert encode(made)[0]
    for face in made.photo.faces if made.photo else ():
        assert face.crop is None or face.crop.dtype == np.uint8


def test_a_message_of_any_size_arrives_whole() -> None:
    """Head and parts are longer than the socket's buffer, and there are more parts than one call sends."""
    ours, theirs = socket.socketpair()
    pieces = [np.full(701, number % 256, np.uint8) for number in range(1_500)]
    for head, parts in ((b"", []), (b"h" * 300_000, pieces), (b"h", [b"", b"x" * 2_000_000])):
        with ours.dup() as peer, ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send, peer, head, parts)
            got, body = receive(theirs)
            assert (got, bytes(body)) == (head, b"".join(bytes(part) for part in parts))
            sending.result()
    ours.sendall(struct.pack("<IQ", 0, 1) + b"xy")
    with pytest.raises(Broken, match="left over"):
        receive(theirs)
    ours.close()
    with pytest.raises(Broken, match="ended"):
        receive(theirs)
    theirs.close()


def test_an_array_may_be_declared_by_an_alias() -> None:
    """As `NDArray` is one from NumPy 2.5 on."""
    number = TypeVar("number", bound=np.generic)
    parameters: Any = (number,)
    alias: Any = TypeAliasType("alias", np.ndarray[Any, np.dtype[number]], type_params=parameters)
    head, arrays = encode(CROP)
    assert (decode(alias[np.uint8], head, bytearray(arrays[0].tobytes())) == CROP).all()
    with pytest.raises(Broken):
        decode(alias[np.float32], head, bytearray(arrays[0].tobytes()))
