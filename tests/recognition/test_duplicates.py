"""What a new face resembles, by scores alone: the fast comparison against one that looks at each pair."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gallery.records import Candidate
from app.gallery.text import unnamed_id
from app.recognition.decisions import cosine
from app.recognition.duplicates import DUPLICATE_SCORE, Objections, compare
from app.types import Template
from tests.support.galleries import at

CONFLICT_AT = 0.5


def ranking(template: Template, enrolled: Sequence[tuple[str, Template]]) -> list[Candidate]:
    """The two nearest subjects, each by its best face, as an index answers."""
    best: dict[str, Candidate] = {}
    for number, (subject, other) in enumerate(enrolled):
        score = cosine(template, other)
        if subject not in best or score > best[subject].score:
            best[subject] = Candidate(subject, None, f"face-{number}", score, score)
    return sorted(best.values(), key=lambda found: -found.score)[:2]


def slow(
    new: Sequence[tuple[str, Template]], enrolled: Sequence[tuple[str, Template]], *, refuse: bool
) -> list[tuple[bool, str | None]]:
    """Whether each face is a duplicate, and of which subject it is in conflict with: pair by pair."""
    known = list(enrolled)
    answers = []
    for subject, template in new:
        scores = [(cosine(template, other), owner) for owner, other in known]
        duplicate = any(score >= DUPLICATE_SCORE for score, _ in scores)
        others = [(score, owner) for score, owner in scores if owner != subject and score >= CONFLICT_AT]
        conflict = max(others)[1] if others else None
        answers.append((duplicate, conflict))
        if not (refuse and (duplicate or conflict)):
            known.append((subject, template))
    return answers


FACES = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", "cid"]), st.floats(0, 360, allow_nan=False).map(at)), max_size=6
)


@given(new=FACES.filter(bool), enrolled=FACES, refuse=st.booleans())
def test_what_is_found_is_what_every_pair_says(
    new: list[tuple[str, Template]], enrolled: list[tuple[str, Template]], *, refuse: bool
) -> None:
    subjects, templates = [subject for subject, _ in new], [template for _, template in new]
    rankings = [ranking(template, enrolled) for template in templates]
    found = compare(subjects, templates, rankings, CONFLICT_AT, refuse=refuse)
    expected = slow(new, enrolled, refuse=refuse)
    near = 1e-5  # float32 against float64
    scores = [cosine(a, b) for a in templates for b in (*templates, *(face for _, face in enrolled))]
    if any(abs(score - point) < near for score in scores for point in (DUPLICATE_SCORE, CONFLICT_AT)):
        return
    assert [objections.duplicate is not None for objections in found] == [duplicate for duplicate, _ in expected]
    assert [objections.conflict is not None for objections in found] == [
        conflict is not None for _, conflict in expected
    ]
    assert [objections.refused for objections in found] == [
        refuse and (dup or con is not None) for dup, con in expected
    ]


def test_the_face_before_is_named_by_its_place_and_then_by_its_id() -> None:
    new = [at(0), at(90), at(1)]
    found = compare(["ann"] * 3, new, [[], [], []], CONFLICT_AT, refuse=False)
    assert [objections.duplicate and objections.duplicate.place for objections in found] == [None, None, 0]
    duplicate = found[2].named({0: (4, "f" * 32)}).duplicate
    assert duplicate is not None
    assert (duplicate.place, duplicate.face_id, duplicate.subject) == (4, "f" * 32, "ann")


@pytest.mark.parametrize("subject", [unnamed_id(), "ann"], ids=["without an id", "with one"])
def test_an_unidentified_person_is_in_conflict_with_nobody(subject: str) -> None:
    near = [Candidate("bob" if subject != "ann" else unnamed_id(), None, "f", 0.7, 0.7)]
    assert compare([subject], [at(0)], [near], CONFLICT_AT, refuse=True) == [Objections()]


def test_a_package_without_operating_points_has_duplicates_only() -> None:
    near = [Candidate("bob", None, "f", 0.99, 0.99)]
    (found,) = compare(["ann"], [at(0)], [near], None, refuse=False)
    assert found.duplicate is not None
    assert found.conflict is None
