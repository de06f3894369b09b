"""Damage bytes at random, as files and requests from outside may be damaged."""

from __future__ import annotations

import random

EXTREMES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")
"""Extreme values for lengths, counts and offsets."""
MOST_AT_ONCE = 6


def mutated(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Return `data` after one to six changes, some of which insert pieces of `others`."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, MOST_AT_ONCE)):
        chance.choice((_flip, _overwrite, _cut, _insert, _repeat, _remove, _splice))(changed, chance, others)
    return bytes(changed)


def _place(data: bytearray, chance: random.Random) -> int:
    """Return a random place; half of the time it is near the start, where formats have their headers."""
    return chance.randrange(min(len(data), 200) if chance.random() < 0.5 else len(data)) if data else 0


def _flip(data: bytearray, chance: random.Random, _others: list[bytes]) -> None:
    if data:
        data[_place(data, chance)] ^= 1 << chance.randrange(8)


def _overwrite(data: bytearray, chance: random.Random, _others: list[bytes]) -> None:
    extreme, place = chance.choice(EXTREMES), _place(data, chance)
    data[place : place + len(extreme)] = extreme


def _cut(data: bytearray, chance: random.Random, _others: list[bytes]) -> None:
    del data[_place(data, chance) :]


def _insert(data: bytearray, chance: random.Random, _others: list[bytes]) -> None:
    place = _place(data, chance)
    data[place:place] = chance.randbytes(chance.randint(1, 40))


def _repeat(data: bytearray, chance: random.Random, _others: list[bytes]) -> None:
    place = _place(data, chance)
    piece = data[place : place + chance.randint(1, 300)]
    data[place:place] = piece * chance.randint(1, 20)


def _remove(data: bytearray, chance: random.Random, _others: list[bytes]) -> None:
    place = _place(data, chance)
    del data[place : place + chance.randint(1, 60)]


def _splice(data: bytearray, chance: random.Random, others: list[bytes]) -> None:
    other, place = chance.choice(others), _place(data, chance)
    start = chance.randrange(len(other)) if other else 0
    data[place:] = other[start:]
