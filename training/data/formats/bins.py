"""Read InsightFace's verification packs (``lfw.bin``, ``cfp_fp.bin`` ...): pickles of images and same-person flags.

Loading a pickle may run any code, so this unpickler knows only lists, tuples, numbers, bytes and (as inert stand-ins)
the arrays that some packs hold, and rejects every other name. It also reads packs written by Python 2.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidInput
from app.types import Pixels
from training.data.dataset import decode_crop


@dataclass(frozen=True, slots=True)
class VerificationPack:
    """``images`` are 2 P encoded images, ``same`` is (P,) bool: pair ``i`` is images 2 i and 2 i + 1."""

    images: tuple[bytes, ...]
    same: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.same)

    def pair(self, index: int) -> tuple[Pixels, Pixels]:
        """Return two (112, 112, 3) uint8 RGB crops."""
        place = range(len(self))[index]
        return decode_crop(self.images[2 * place]), decode_crop(self.images[2 * place + 1])


def read_pack(path: Path) -> VerificationPack:
    """Read a verification pack. Raises InvalidInput: ``pack_refused`` for a pickle with names of code,
    ``pack_invalid`` for a damaged one or other content."""
    with path.open("rb") as file:
        try:
            loaded: object = _Unpickler(file, encoding="bytes").load()
        except InvalidInput:
            raise
        except Exception as error:  # damaged pickles may raise nearly anything
            raise InvalidInput(f"{path} is no readable pickle: {error}", code="pack_invalid") from error
    return _checked(path, loaded)


def _checked(path: Path, loaded: object) -> VerificationPack:
    if not (isinstance(loaded, tuple | list) and len(loaded) == 2):
        raise InvalidInput(f"{path} is not a pair of images and answers.", code="pack_invalid")
    images, same = _items(loaded[0]), _items(loaded[1])
    if len(images) != 2 * len(same):
        raise InvalidInput(f"{path} has {len(images)} images for {len(same)} pairs.", code="pack_invalid")
    return VerificationPack(
        tuple(_bytes(image) for image in images), np.array([_truth(answer) for answer in same], bool)
    )


def _items(value: object) -> list[object]:
    if isinstance(value, _Array):
        return list(value.raw) if value.raw is not None else value.objects
    if isinstance(value, list | tuple):
        return list(value)
    raise InvalidInput(f"A pack holds lists, not {type(value).__name__}.", code="pack_invalid")


def _bytes(value: object) -> bytes:
    raw = value.raw if isinstance(value, _Array) else value
    if isinstance(raw, bytes | bytearray):
        return bytes(raw)
    raise InvalidInput(f"A pack's images are bytes, not {type(value).__name__}.", code="pack_invalid")


def _truth(value: object) -> bool:
    raw = value.raw if isinstance(value, _Scalar) else value
    if isinstance(raw, bool | int) and raw in (0, 1):
        return bool(raw)
    raise InvalidInput(f"A pack's answers are true or false, not {value!r}.", code="pack_invalid")


class _Inert:
    """Accepts the arguments and state of a pickled object and ignores them."""

    def __init__(self, *_arguments: object) -> None:
        pass

    def __setstate__(self, _state: object) -> None:
        pass


class _Array(_Inert):
    """Replaces numpy's arrays of bytes or objects; their state is (version, shape, dtype, Fortran order, content)."""

    raw: bytes | None = None
    objects: list[object]

    def __setstate__(self, state: object) -> None:
        content = state[-1] if isinstance(state, tuple) and len(state) == 5 else None
        if isinstance(content, bytes):
            self.raw = content
        elif isinstance(content, list):
            self.objects = content
        else:
            raise InvalidInput("An array in the pack is neither bytes nor a list.", code="pack_invalid")


class _Scalar(_Inert):
    """Replaces numpy's bool: a dtype and one byte."""

    def __init__(self, _dtype: object, content: bytes = b"\x00") -> None:
        super().__init__()
        self.raw = content[0] if len(content) == 1 else None


def _latin1(text: object, encoding: object = "latin1") -> bytes:
    """Decode bytes in the form that Python 3 pickles them in protocols for Python 2."""
    if isinstance(text, str) and encoding in ("latin1", b"latin1"):
        return text.encode("latin1")
    raise InvalidInput("The pack encodes text in an unusual way.", code="pack_refused")


def _frombuffer(buffer: object, *_facts: object) -> _Array:
    """Rebuild an array from a pickle of protocol 5."""
    array = _Array()
    array.__setstate__((1, (), None, False, bytes(buffer) if isinstance(buffer, bytes | bytearray) else None))
    return array


_NUMPY_MODULES = frozenset(
    {"numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric"}
)
_NUMPY: dict[str, Callable[..., object]] = {
    "_reconstruct": _Array,
    "ndarray": _Array,
    "dtype": _Inert,
    "scalar": _Scalar,
    "_frombuffer": _frombuffer,
}


class _Unpickler(pickle.Unpickler):
    """Resolves the few names that packs need to stand-ins, and rejects all others."""

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        if module in _NUMPY_MODULES and name in _NUMPY:
            return _NUMPY[name]
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise InvalidInput(f"The pack names {module}.{name}, which no verification pack needs.", code="pack_refused")

    def persistent_load(self, _pid: object) -> object:
        raise InvalidInput("The pack refers to something outside of itself.", code="pack_refused")
