"""A person is one track: across gaps and hidden faces, beside others and behind them."""

from __future__ import annotations

import numpy as np
import pytest

from app.features.watching.watcher.looks import KEPT, Look, keep_best
from app.features.watching.watcher.motion import MotionGate
from app.features.watching.watcher.tracker import GAP_S, Tracker
from app.types import Box, Detection, Quality, Vector

SAME, OTHER = 0.44, 0.35
UPRIGHT = np.array([[0, 0], [40, 0], [20, 20], [0, 40], [40, 40]], np.float32)
"""Landmarks."""


def person(number: int) -> Vector:
    drawn = np.random.default_rng(number).normal(size=64)
    return np.asarray(drawn / np.linalg.norm(drawn), np.float32)


def look(at: float, x: float, who: Vector | None, *, quality: float = 80.0, y: float = 50.0) -> Look:
    box = Box(x, y, 60.0, 80.0)
    crop = np.zeros((112, 112, 3), np.uint8)
    detection = Detection(box, UPRIGHT, 0.95)
    return Look(at, detection, Quality(quality, ()), crop, crop[:10, :10], who)


def hidden(at: float, x: float) -> Look:
    return look(at, x, None, quality=10.0)


def test_a_person_who_moves_is_one_track() -> None:
    tracker, anna = Tracker(SAME, OTHER), person(1)
    tracks = {tracker.update([look(at / 5, 10 + 8 * at, anna)], at / 5)[0][0].id for at in range(20)}
    assert len(tracks) == 1


def test_a_hidden_face_continues_a_track_and_begins_none() -> None:
    tracker, anna = Tracker(SAME, OTHER), person(1)
    assert tracker.update([hidden(0.0, 100)], 0.0) == ([], [])
    ((first,), _) = tracker.update([look(0.2, 100, anna)], 0.2)
    ((second,), _) = tracker.update([hidden(0.4, 102)], 0.4)
    ((third,), _) = tracker.update([look(0.6, 104, anna)], 0.6)
    assert first is second is third
    assert (third.usable, len(tracker.tracks)) == (2, 1)


def test_who_comes_back_within_seconds_is_the_same_visit_wherever() -> None:
    tracker, anna = Tracker(SAME, OTHER), person(1)
    ((first,), _) = tracker.update([look(0.0, 100, anna)], 0.0)
    ((back,), ended) = tracker.update([look(GAP_S - 1, 500, anna)], GAP_S - 1)
    assert first is back
    assert ended == []


def test_a_visit_ends_after_the_gap() -> None:
    tracker, anna = Tracker(SAME, OTHER), person(1)
    ((first,), _) = tracker.update([look(0.0, 100, anna)], 0.0)
    seen, ended = tracker.update([], GAP_S + 0.1)
    assert (seen, ended) == ([], [first])


def test_another_person_in_the_same_place_is_another_track() -> None:
    tracker = Tracker(SAME, OTHER)
    ((first,), _) = tracker.update([look(0.0, 100, person(1))], 0.0)
    ((second,), _) = tracker.update([look(0.2, 100, person(2))], 0.2)
    assert first is not second


def test_a_place_says_who_it_is_only_of_one_person_seen_well_and_for_a_moment() -> None:
    tracker, anna = Tracker(SAME, OTHER), person(1)
    for step in range(KEPT):
        now = look(step / 5, 100, anna)
        assert not tracker.knows(now, [now]), "so few templates"
        tracker.update([now], now.at)
    again = look(1.2, 105, None)
    assert tracker.knows(again, [again])
    beside = look(1.2, 130, None)
    assert not tracker.knows(again, [again, beside]), "which of the two?"
    assert not tracker.knows(look(1.2, 400, None), [again])
    assert tracker.update([again], 1.2)[0][0].usable == KEPT
    for step in range(7, 12):
        tracker.update([look(step / 5, 105, None)], step / 5)
    late = look(2.4, 105, None)
    assert not tracker.knows(late, [late]), "somebody else may stand there by now"
    ((other,), _) = tracker.update([look(2.4, 105, person(2))], 2.4)
    assert other.usable == 1


@pytest.mark.parametrize("order", [1, -1])
def test_two_who_cross_keep_their_tracks(order: int) -> None:
    """One hides the other in the middle."""
    tracker, anna, ben = Tracker(SAME, OTHER), person(1), person(2)
    who: dict[str, set[str]] = {"anna": set(), "ben": set()}
    for step in range(25):
        at, x = step / 5, 40.0 * (step - 12)
        looks = [look(at, 500 + x, anna)]
        if abs(x) > 40:
            looks.append(look(at, 500 - x, ben))
        tracker.update(looks[::order], at)
        for track in tracker.tracks:
            if track.last.at == at and track.last.vector is not None:
                who["anna" if track.last.vector is anna else "ben"].add(track.id)
    assert len(who["anna"]) == len(who["ben"]) == 1
    assert who["anna"] != who["ben"]


def test_the_best_looks_are_few_good_and_different() -> None:
    looks: list[Look] = []
    for number in range(30):
        looks = keep_best(looks, look(number / 5, 0, person(number % 3), quality=50 + number))
    assert len(looks) == KEPT
    assert looks[0].quality.score == 79
    assert len({one.vector.tobytes() for one in looks if one.vector is not None}) == 3
    assert keep_best(looks, hidden(9.0, 0)) == looks


def test_an_empty_hall_passes_no_frames_and_a_face_in_it_does() -> None:
    gate, noise = MotionGate(), np.random.default_rng(0)

    def frame(x: int | None = None) -> np.ndarray:
        pixels = noise.integers(96, 104, size=(480, 640, 3), dtype=np.uint8)
        if x is not None:
            pixels[200:232, x : x + 24] = 190
        return pixels

    passed = [gate.passes(frame(), at / 5) for at in range(100)]
    assert passed[0]
    assert not any(passed[20:])
    assert gate.passes(frame(300), 20.0)
    assert gate.passes(frame(300), 22.0), "somebody may stand still for a moment"
