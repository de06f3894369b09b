"""Deny this process everything that reading photos does not need: files, sockets, programs, other processes.

Landlock (Linux 5.13) denies every path and TCP port. A seccomp filter allows only the system calls in `_CALLS`. Both
hold until the process ends, and neither needs privileges. If the system has only one of them, that one is used.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
"""<linux/prctl.h>, <linux/seccomp.h>"""
_CREATE_RULESET, _RESTRICT_SELF, _VERSION = 444, 446, 1
"""Landlock's system calls, with the same numbers on every machine, and the flag that requests its version."""
_PATHS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All kinds of access to paths that each version of Landlock can deny; later versions know those of the fifth."""
_TCP, _OTHERS = 0b11, 0b11
"""Bind and connect (version 4); abstract sockets and signals to processes outside (version 6)."""

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
"""Instructions of the filter (<linux/bpf_common.h>): load a word, compare, test bits, return."""
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""Offsets in `struct seccomp_data`. Only the lower half of an argument is checked, since these are 32 bits wide."""
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""<linux/audit.h>, and the column of `_CALLS`."""
_CLONE_THREAD = 0x10000
_CALLS: dict[str, tuple[int | None, int | None]] = {
    # the socket to the server
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "poll": (7, None),
    "ppoll": (271, 73),
    # memory
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "madvise": (28, 233),
    # threads, in which libde265 decodes
    "futex": (202, 98),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getcpu": (309, 168),
    "membarrier": (324, 283),
    "gettid": (186, 178),
    "exit": (60, 93),
    # clocks, random numbers, signals and the process itself
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "getrandom": (318, 278),
    "getrusage": (98, 165),
    "getpid": (39, 172),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "exit_group": (231, 94),
}
"""The system calls that a worker may make, with their numbers on x86-64 and on ARM64."""
_CLONE, _CLONE3, _TGKILL, _PRLIMIT = (56, 220), (435, 435), (234, 131), (302, 261)
"""System calls with conditions, in this order: only to start threads; answered as unknown, so that libraries use the
first one; only to signal itself; only for its own limits."""


def enter() -> list[str]:
    """Give up all rights that the system can take; return which of `landlock` and `seccomp` took them.

    Open descriptors stay usable. Existing threads keep their rights, so call it before there are any.
    """
    if sys.platform != "linux":
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return []
    return [name for name, deny in (("landlock", _deny_paths), ("seccomp", _deny_calls)) if deny(libc)]


def _deny_paths(libc: ctypes.CDLL) -> bool:
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    rules = struct.pack("=QQQ", _PATHS.get(version, _PATHS[5]), _TCP * (version >= 4), _OTHERS * (version >= 6))
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = libc.syscall(_CREATE_RULESET, rules, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _deny_calls(libc: ctypes.CDLL) -> bool:
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None or sys.byteorder != "little":
        return False
    program = _program(*architecture)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))  # struct sock_fprog
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, header, 0, 0) == 0)


def _program(architecture: int, column: int) -> bytes:
    """Return the filter, eight bytes per instruction: a call that no line allows gets EPERM."""
    deny, allow = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        deny,
        (_LOAD, 0, 0, _NUMBER_AT),
        (_EQUAL, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for number in (numbers[column] for numbers in _CALLS.values()):
        if number is not None:
            lines += [(_EQUAL, 0, 1, number), allow]
    for numbers, test, value in (
        (_CLONE, _ANY_BIT, _CLONE_THREAD),
        (_TGKILL, _EQUAL, os.getpid()),
        (_PRLIMIT, _EQUAL, 0),
    ):
        lines += [(_EQUAL, 0, 3, numbers[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT), (test, 0, 1, value), allow]
        lines += [(_LOAD, 0, 0, _NUMBER_AT)]
    return b"".join(struct.pack("=HBBI", *line) for line in [*lines, deny])
