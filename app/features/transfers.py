"""Give faces to other subjects (move, merge, rename into another, dissolve), and delete many faces or subjects at once.

These are functions over a `Change`, as in `app.gallery.subjects`. A face that moves keeps its key and its id. Rows that
refer to its key stay as they are, and the index only learns which subject has it now. Rows that refer to its id are
statements about a face of the former subject, and are deleted (`_give`).

Nothing is kept longer than was promised: a subject created for moved faces expires when their former subject would
have, a merged subject expires at the earlier of the two times, and an expired subject can neither give nor get faces.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import Database, in_parts, select_in
from app.db.schema import ANSWERED_REQUESTS, CORRECTIONS, EVENTS, FACES, METADATA, SIGHTINGS, SUBJECTS, WEBHOOK_SUBJECTS
from app.errors import InvalidInput
from app.gallery.records import (
    Counts,
    Gallery,
    Subject,
    brief_subjects,
    face_not_found,
    find_subject,
    subject_not_found,
)
from app.gallery.store import MOVE, REMOVE, REMOVE_SUBJECT, Change
from app.gallery.subjects import NO_METADATA, check_unexpired, make_subjects, subject_values, tidy, update_subject
from app.gallery.text import check_visible, clean_id, fold, is_unnamed, unnamed_id
from app.types import utc_now

ANSWERS_KEPT = timedelta(days=1)
"""Time for which a request that is repeated with the same token gets the same answer."""
PRUNE_ANSWERS_S = 300.0
"""Seconds between deletions of answers that are older."""
MERGE = "merge"
"""The operation's name in stored answers to merges. Their token is a digest of the merged subject's id."""
_GIVE = sa.update(FACES).where(FACES.c.key == sa.bindparam("face")).values(subject_key=sa.bindparam("subject"))


class AlreadyAnswered(Exception):
    """Another process has just stored an answer for this token, so nothing was written."""


@dataclass(frozen=True, slots=True)
class Move:
    """A face to give from the subject ``source`` to the subject ``target``, all by their ids."""

    face_id: str
    source: str
    target: str


def move_faces(change: Change, moves: Sequence[Move], *, create: bool = False) -> None:
    """Give faces to other subjects: all of them, or none if there is an error.

    Missing targets are created if they are unnamed or `create` is set. An unnamed source is deleted with its last face.

    Raises InvalidInput ``invalid_id``; NotFound ``face_not_found`` (the source doesn't have the face),
    ``subject_not_found`` (a target is missing); Conflict ``subject_expired``.
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
    """Give the subject's faces to the subject ``into``, and delete the first one; return the ids of the faces.

    The other subject keeps its name, metadata and consent, and gets those that it lacks; webhooks about the first are
    then about the other. Both subjects' corrections are dropped, since they may be about each other. Called again
    within a day, it changes nothing and returns the same ids.

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
    _forget_answer(change, MERGE, token)
    keep_answer(change, MERGE, token, asked, json.dumps(ids))
    return ids


def rename_subject(change: Change, subject_id: str, new_id: str) -> Subject:
    """Give the subject a new id, or merge it into the subject that already has this id; return the resulting subject.

    Raises InvalidInput ``invalid_id``; NotFound ``subject_not_found``; Conflict ``subject_expired`` if either has
    expired.
    """
    old, new = clean_id(subject_id, "subject"), clean_id(new_id, "subject")
    subjects = brief_subjects(change.connection, change.gallery, {old, new})
    if old not in subjects:
        raise subject_not_found(change.gallery, old)
    check_unexpired(change, subjects.values())
    if new not in subjects:
        check_visible(new, "subject id")
        row = subjects[old]
        update_subject(change, row.key, {"id": new, "folded": fold(new, row.name)})
    elif old != new:
        _merge(change, subjects[old], subjects[new])
    return find_subject(change.connection, change.gallery, new)


def dissolve_subject(change: Change, subject_id: str) -> None:
    """Give each of the subject's faces to a new unnamed subject, and delete the subject.

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


def delete_faces(change: Change, face_ids: Sequence[str]) -> list[str]:
    """Delete those of the faces that exist, of any subject, with their crops; delete unnamed subjects with their last
    face. Return the ids of the deleted faces."""
    faces = faces_by_id(change.connection, change.gallery, face_ids)
    for part in in_parts(sorted(row.key for row in faces.values())):
        change.connection.execute(sa.delete(FACES).where(FACES.c.key.in_(part)))
    tidy(change, {row.subject_key for row in faces.values()})
    change.log(REMOVE, [(row.subject_key, row.key) for row in faces.values()])
    return list(faces)


def delete_subjects(change: Change) -> Counts:
    """Delete all subjects of the gallery with their faces; return how many subjects and faces there were."""
    everybody = sa.select(SUBJECTS.c.key).where(SUBJECTS.c.gallery_key == change.gallery.key)
    keys = list(change.connection.execute(everybody.order_by(SUBJECTS.c.key)).scalars())
    faces = change.connection.execute(sa.delete(FACES).where(FACES.c.gallery_key == change.gallery.key)).rowcount
    change.connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.gallery_key == change.gallery.key))
    change.log(REMOVE_SUBJECT, [(key, None) for key in keys])
    return Counts(len(keys), faces)


def _make_targets(
    change: Change, moves: Iterable[Move], subjects: dict[str, Row[Any]], *, create: bool
) -> dict[str, int]:
    """Create the missing targets; return their keys by id. A target expires at the earliest expiry of the subjects that
    give it faces."""
    ends: dict[str, list[str | None]] = defaultdict(list)
    for move in moves:
        if move.target not in subjects and move.source in subjects and (create or is_unnamed(move.target)):
            check_visible(move.target, "subject")
            ends[move.target].append(subjects[move.source].expires_at)
    rows = [subject_values(change, name, expires_at=_earliest(expiries)) for name, expiries in sorted(ends.items())]
    return make_subjects(change, rows) if rows else {}


def _merge(change: Change, source: Row[Any], target: Row[Any]) -> list[str]:
    check_unexpired(change, [source, target])
    faces = _faces_of(change, source.key)
    _give(change, dict.fromkeys((face.key for face in faces), target.key))
    update_subject(change, target.key, _inherited(change.connection, source.key, target.key))
    change.connection.execute(sa.delete(CORRECTIONS).where(CORRECTIONS.c.subject_key == target.key))
    had = sa.select(WEBHOOK_SUBJECTS.c.webhook_key).where(WEBHOOK_SUBJECTS.c.subject_key == target.key)
    follows = (WEBHOOK_SUBJECTS.c.subject_key == source.key) & WEBHOOK_SUBJECTS.c.webhook_key.not_in(had)
    change.connection.execute(sa.update(WEBHOOK_SUBJECTS).where(follows).values(subject_key=target.key))
    said = sa.case((SIGHTINGS.c.said == str(source.key), str(target.key)), else_=SIGHTINGS.c.said)
    for seen, values in ((SIGHTINGS, {"said": said}), (EVENTS, {})):
        mine = sa.update(seen).where(seen.c.subject_key == source.key)
        change.connection.execute(mine.values({"subject_key": target.key} | values))
    change.connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == source.key))
    return [face.face_id for face in faces]


def _inherited(connection: Connection, source: int, target: int) -> dict[str, object]:
    """Return the columns of `target` to change when `source` is merged into it."""
    query = sa.select(SUBJECTS).where(SUBJECTS.c.key.in_((source, target)))
    rows = {row.key: row for row in connection.execute(query)}
    old, kept = rows[source], rows[target]
    updates: dict[str, object] = {}
    if kept.name is None and old.name is not None:
        updates |= {"name": old.name, "folded": fold(kept.id, old.name)}
    if kept.metadata == NO_METADATA:
        updates["metadata"] = old.metadata
    if kept.consent is None:
        updates["consent"] = old.consent
    return updates | {"expires_at": _earliest([old.expires_at, kept.expires_at])}


def _earliest(ends: Iterable[str | None]) -> str | None:
    return min((end for end in ends if end is not None), default=None)


def _faces_of(change: Change, subject_key: int) -> list[Row[Any]]:
    query = sa.select(FACES.c.key, FACES.c.face_id).where(FACES.c.subject_key == subject_key).order_by(FACES.c.key)
    return list(change.connection.execute(query))


def faces_by_id(connection: Connection, gallery: Gallery, ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Return id, key and subject's key of those of the faces that exist, by the faces' ids."""
    query = sa.select(FACES.c.face_id, FACES.c.key, FACES.c.subject_key).where(FACES.c.gallery_key == gallery.key)
    return {row.face_id: row for row in select_in(connection, query, FACES.c.face_id, ids)}


def _give(change: Change, faces: Mapping[int, int]) -> None:
    """Give faces to subjects: ``faces`` maps the faces' keys to the subjects' keys. What refers to a face's key follows
    it.

    Rows that refer to a face's id are statements about a face of the former subject, and are deleted.
    """
    if not faces:
        return
    order = sorted(faces)
    change.connection.execute(_GIVE, [{"face": key, "subject": faces[key]} for key in order])
    for part in in_parts(order):
        ids = sa.select(FACES.c.face_id).where(FACES.c.key.in_(part))
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


def keep_answer(change: Change, operation: str, token: str, digest: bytes, answer: str) -> None:
    """Store the answer to the request with this token and digest, in the transaction of the change that the answer
    reports.

    Raises AlreadyAnswered.
    """
    mine = ANSWERED_REQUESTS.c.gallery_key == change.gallery.key
    change.connection.execute(sa.delete(ANSWERED_REQUESTS).where(mine & _is_old()))
    row = {"operation": operation, "token": token, "digest": digest, "answer": answer}
    values = row | {"gallery_key": change.gallery.key, "created_at": change.now}
    insert = change.insert(ANSWERED_REQUESTS).values(values).on_conflict_do_nothing()
    if change.connection.execute(insert.returning(ANSWERED_REQUESTS.c.token)).one_or_none() is None:
        raise AlreadyAnswered


def recall_answer(connection: Connection, gallery: Gallery, operation: str, token: str) -> tuple[bytes, str] | None:
    """Return the digest of the request with this token, and its stored answer; None if there is no recent one."""
    query = sa.select(ANSWERED_REQUESTS.c.digest, ANSWERED_REQUESTS.c.answer).where(
        ANSWERED_REQUESTS.c.gallery_key == gallery.key,
        ANSWERED_REQUESTS.c.operation == operation,
        ANSWERED_REQUESTS.c.token == token,
        ~_is_old(),
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (bytes(row.digest), row.answer)


def _forget_answer(change: Change, operation: str, token: str) -> None:
    same = (ANSWERED_REQUESTS.c.gallery_key == change.gallery.key) & (ANSWERED_REQUESTS.c.token == token)
    change.connection.execute(sa.delete(ANSWERED_REQUESTS).where(same & (ANSWERED_REQUESTS.c.operation == operation)))


def prune_answers(database: Database) -> None:
    """Delete answers older than ANSWERS_KEPT, of all galleries."""
    with database.write() as connection:
        connection.execute(sa.delete(ANSWERED_REQUESTS).where(_is_old()))


def _is_old() -> sa.ColumnElement[bool]:
    return ANSWERED_REQUESTS.c.created_at <= utc_now(-ANSWERS_KEPT)
