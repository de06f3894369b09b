"""Faces deleted, or given to other subjects: moved, merged into one subject, or each to an unnamed one of its own.

A face keeps its key and its id, so everything that refers to its key stays, and the index only learns whose it is. What
refers to its id speaks of it as its subject's face and goes (`_give`). An unnamed subject
(`app.gallery.text.unnamed_id`) is made with its only face and deleted with it.

Nothing is kept longer than was promised: a subject that is made to take faces expires with the one that had them, one
that a merge leaves expires with the earlier of the two, and those that have expired neither give nor take.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from app.db.engine import in_parts
from app.db.schema import CORRECTIONS, FACES, METADATA, SUBJECTS
from app.errors import InvalidInput
from app.gallery.change import MOVE, REMOVE, Change, forget_answer, keep_answer, recall_answer
from app.gallery.records import Move, Subject
from app.gallery.rows import brief_subjects, face_not_found, faces_by_id, find_face, find_subject, subject_not_found
from app.gallery.subjects import (
    check_unexpired,
    earliest,
    inherited,
    make_subjects,
    subject_values,
    tidy,
    update_subject,
)
from app.gallery.text import check_visible, clean_id, fold, is_unnamed, unnamed_id

MERGE = "merge"
"""The operation under which merges are kept; the token stands for the subject that is gone."""
_GIVE = sa.update(FACES).where(FACES.c.key == sa.bindparam("face")).values(subject_key=sa.bindparam("subject"))


def delete_face(change: Change, subject_id: str, face_id: str) -> None:
    """Delete the subject's face with its crop, and with it an unnamed subject.

    Raises NotFound ``subject_not_found``, ``face_not_found``.
    """
    subject = find_subject(change.connection, change.gallery, subject_id)
    key: int = find_face(change.connection, change.gallery, face_id, subject).key
    change.connection.execute(sa.delete(FACES).where(FACES.c.key == key))
    tidy(change, [subject.key])
    change.log(REMOVE, [(subject.key, key)])


def delete_faces(change: Change, face_ids: Sequence[str]) -> list[str]:
    """Delete those of the faces that exist, whosever they are, with their crops, and unnamed subjects with their last
    face; return the ids."""
    faces = faces_by_id(change.connection, change.gallery, face_ids)
    for some in in_parts(sorted(row.key for row in faces.values())):
        change.connection.execute(sa.delete(FACES).where(FACES.c.key.in_(some)))
    tidy(change, {row.subject_key for row in faces.values()})
    change.log(REMOVE, [(row.subject_key, row.key) for row in faces.values()])
    return list(faces)


def move_faces(change: Change, moves: Sequence[Move], *, create: bool = False) -> None:
    """Give faces to other subjects, all or none.

    Missing targets are made if they are unnamed or `create` says so; an unnamed source is deleted with its last face.

    Raises InvalidInput ``invalid_id``; NotFound ``face_not_found`` (not its source's), ``subject_not_found`` (a
    target); Conflict ``subject_expired``.
    """
    wanted = [move for move in {move.face_id: move for move in moves}.values() if move.source != move.target]
    ids = {end for move in wanted for end in (move.source, move.target)}
    subjects = brief_subjects(change.connection, change.gallery, ids)
    check_unexpired(change, subjects.values())
    targets = {name: row.key for name, row in subjects.items()} | _make_targets(change, wanted, subjects, create=create)
    faces = faces_by_id(change.connection, change.gallery, [move.face_id for move in wanted])
    moved: dict[int, int] = {}
    for move in wanted:
        if move.target not in targets:
            raise subject_not_found(change.gallery, move.target)
        face, source = faces.get(move.face_id), subjects.get(move.source)
        if face is None or source is None or face.subject_key != source.key:
            raise face_not_found(move.source, move.face_id)
        moved[face.key] = targets[move.target]
    _give(change, moved)
    tidy(change, {face.subject_key for face in faces.values()} | set(moved.values()))


def merge_subjects(change: Change, subject_id: str, into: str) -> list[str]:
    """Give the subject's faces to another one and delete it; return the ids of the faces.

    The other keeps its name, metadata and consent, and takes those it lacks. Corrections of both are dropped: they may
    be about each other. Repeated within a day, it changes nothing and returns the same.

    Raises InvalidInput ``invalid_id``, ``invalid_request`` (into itself); NotFound ``subject_not_found``; Conflict
    ``subject_expired``.
    """
    source, target = clean_id(subject_id, "subject"), clean_id(into, "subject")
    if source == target:
        raise InvalidInput("A subject can't be merged into itself.")
    asked = hashlib.sha256(json.dumps([source, target]).encode()).digest()
    token = hashlib.sha256(source.encode()).hexdigest()
    subjects = brief_subjects(change.connection, change.gallery, {source, target})
    if target not in subjects:
        raise subject_not_found(change.gallery, target)
    if source not in subjects:
        done = recall_answer(change.connection, change.gallery, MERGE, token)
        if done is None or done[0] != asked:
            raise subject_not_found(change.gallery, source)
        return [str(face_id) for face_id in json.loads(done[1])]
    ids = _merge(change, subjects[source], subjects[target])
    forget_answer(change, MERGE, token)
    keep_answer(change, MERGE, token, asked, json.dumps(ids))
    return ids


def rename_subject(change: Change, subject_id: str, new_id: str) -> Subject:
    """Give the subject another id, or merge it into the subject that has it; return that one.

    Raises InvalidInput ``invalid_id``; NotFound ``subject_not_found``; Conflict ``subject_expired`` of a merge.
    """
    old, new = clean_id(subject_id, "subject"), clean_id(new_id, "subject")
    subjects = brief_subjects(change.connection, change.gallery, {old, new})
    if old not in subjects:
        raise subject_not_found(change.gallery, old)
    if new not in subjects:
        check_visible(new, "subject id")
        row = subjects[old]
        update_subject(change, row.key, {"id": new, "folded": fold(new, row.name)})
    elif old != new:
        _merge(change, subjects[old], subjects[new])
    return find_subject(change.connection, change.gallery, new)


def dissolve_subject(change: Change, subject_id: str) -> None:
    """Give each of the subject's faces to an unnamed subject of its own, and delete the subject.

    Raises NotFound ``subject_not_found``; Conflict ``subject_expired``.
    """
    cleaned = clean_id(subject_id, "subject")
    subjects = brief_subjects(change.connection, change.gallery, [cleaned])
    if cleaned not in subjects:
        raise subject_not_found(change.gallery, cleaned)
    faces = _faces_of(change, subjects[cleaned].key)
    move_faces(change, [Move(face.face_id, cleaned, unnamed_id()) for face in faces])
    change.connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == subjects[cleaned].key))
    change.overwrites = True


def _make_targets(
    change: Change, moves: Iterable[Move], subjects: dict[str, Row[Any]], *, create: bool
) -> dict[str, int]:
    """Make the missing targets, which expire with the first of those who had their faces; return the keys by id."""
    ends: dict[str, list[str | None]] = defaultdict(list)
    for move in moves:
        if move.target not in subjects and move.source in subjects and (create or is_unnamed(move.target)):
            check_visible(move.target, "subject")
            ends[move.target].append(subjects[move.source].expires_at)
    rows = [subject_values(change, name, expires_at=earliest(each)) for name, each in sorted(ends.items())]
    return make_subjects(change, rows)


def _merge(change: Change, source: Row[Any], target: Row[Any]) -> list[str]:
    check_unexpired(change, [source, target])
    faces = _faces_of(change, source.key)
    _give(change, dict.fromkeys((face.key for face in faces), target.key))
    update_subject(change, target.key, inherited(change.connection, source.key, target.key))
    change.connection.execute(sa.delete(CORRECTIONS).where(CORRECTIONS.c.subject_key == target.key))
    change.connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == source.key))
    return [face.face_id for face in faces]


def _faces_of(change: Change, subject_key: int) -> list[Row[Any]]:
    query = sa.select(FACES.c.key, FACES.c.face_id).where(FACES.c.subject_key == subject_key).order_by(FACES.c.key)
    return list(change.connection.execute(query))


def _give(change: Change, faces: Mapping[int, int]) -> None:
    """Give each face, by its key, to the subject of that key, with everything that refers to the face's key.

    What refers to its id was said of it as its former subject's face, and is deleted.
    """
    if not faces:
        return
    order = sorted(faces)
    change.connection.execute(_GIVE, [{"face": key, "subject": faces[key]} for key in order])
    for some in in_parts(order):
        ids = sa.select(FACES.c.face_id).where(FACES.c.key.in_(some))
        for column in _said_of_faces():
            change.connection.execute(sa.delete(column.table).where(column.in_(ids)))
    change.log(MOVE, [(faces[key], key) for key in order])


def _said_of_faces() -> list[sa.Column[Any]]:
    """Return the columns of other tables that refer to a face's id."""
    return [
        column
        for table in METADATA.sorted_tables
        for column in table.columns
        if any(key.column is FACES.c.face_id for key in column.foreign_keys)
    ]
