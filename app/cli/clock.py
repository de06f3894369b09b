"""Does the kernel say that its clock is synchronised?"""

from __future__ import annotations

import ctypes
import sys

TIMEX_BYTES = 512
"""Room for `struct timex`, 208 bytes on 64-bit Linux, with what later kernels may add."""
TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronised."""


def is_synchronised() -> bool | None:
    """None where it can't be asked. Reads only: a `struct timex` of zeros asks for no change."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)
    try:
        state: int = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (AttributeError, OSError):
        return None
    return None if state < 0 else state != TIME_ERROR
