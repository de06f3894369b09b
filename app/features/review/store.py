"""Reviews in SQL. Every public call is one transaction, and may raise what `Database` raises."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.engine import Connection, Row

from app.choices import FindingKind
from app.db.engine import Database, select_in
from app.db.pagination import Page, read_page
from app.db.schema import CROPS, DISMISSALS, FACES, FINDINGS, REVIEWS, SUBJECTS
from app.errors import NotFound
from app.features.dismissals import Dismissal, forget, remember
from app.features.own_jobs import check_not_running
from app.features.review.records import Draft, Evidence, ReviewState, ReviewSummary
from app.features.review.schemas import Finding, FindingAction, FindingEvidence, FindingFace
from app.gallery.records import Gallery, lock_gallery, not_expired
from app.gallery.text import is_unnamed
from app.types import utc_now

_EVIDENCE, _SUMMARY = TypeAdapter(Evidence), TypeAdapter(ReviewSummary)
_FINDING_ID = re.compile("[0-9a-f]{32}")
SUGGESTED = 200
"""Maximum characters of the old subject's id that the id suggested for a new subject begins with."""


class Reviews:
    """The reviews of one database. Safe to share between threads and processes.

    Calls that name a gallery may raise NotFound ``gallery_not_found``.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, connection: Connection, gallery: Gallery, job: str) -> None:
        """Note that this job now reviews the gallery; delete the findings of unfinished reviews.

        Raises UnderWay if another job is reviewing it.
        """
        mine = REVIEWS.c.gallery_key == gallery.key
        insert = self._database.insert(REVIEWS).values(gallery_key=gallery.key, job=job)
        connection.execute(insert.on_conflict_do_nothing())
        query = sa.select(REVIEWS.c.job, REVIEWS.c.published).where(mine).with_for_update()
        last = connection.execute(query).one()
        check_not_running(connection, last.job)
        connection.execute(sa.update(REVIEWS).where(mine).values(job=job))
        stale = FINDINGS.c.review != last.published if last.published else sa.true()
        connection.execute(sa.delete(FINDINGS).where(_of(gallery), stale))

    def find(self, gallery: Gallery) -> ReviewState:
        """Return the gallery's reviews. Raises NotFound ``review_not_found``."""
        query = sa.select(FINDINGS.c.kind, FINDINGS.c.dismissed, sa.func.count().label("found"))
        with self._database.read() as connection:
            row = _row(connection, gallery)
            query = query.where(_of(gallery), FINDINGS.c.review == row.published)
            counted = connection.execute(query.group_by(FINDINGS.c.kind, FINDINGS.c.dismissed)).all()
        summary = None if row.summary is None else _SUMMARY.validate_json(row.summary)
        counts = {group.kind: group.found for group in counted if not group.dismissed}
        return ReviewState(
            row.job, row.published, summary, counts, sum(group.found for group in counted if group.dismissed)
        )

    def findings(
        self,
        gallery: Gallery,
        cursor: str | None = None,
        limit: int = 100,
        *,
        kind: FindingKind | None = None,
        dismissed: bool = False,
    ) -> Page[Finding]:
        """Return a page of the published review's findings, strongest first.

        Raises NotFound ``review_not_found``; InvalidInput ``invalid_cursor``.
        """
        with self._database.read() as connection:
            published = _row(connection, gallery).published or ""
        query = _FINDINGS.where(_of(gallery), FINDINGS.c.review == published, FINDINGS.c.dismissed.is_(dismissed))
        if kind is not None:
            query = query.where(FINDINGS.c.kind == kind)
        listing = f"findings/{gallery.key}/{published}/{kind or ''}/{dismissed}"
        return read_page(self._database, query, FINDINGS.c.place, _finding, listing=listing, cursor=cursor, limit=limit)

    def dismiss(self, gallery: Gallery, finding_id: str, *, dismissed: bool = True) -> None:
        """Dismiss a finding, so that reviews don't list it again; with `dismissed` False, reopen it.

        Raises NotFound ``finding_not_found``.
        """
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            row = _find(connection, gallery, finding_id)
            dismissal = Dismissal(row.kind, row.face_id, row.other_face_id, utc_now())
            if dismissed:
                remember(connection, gallery, dismissal)
            else:
                forget(connection, gallery, dismissal)
            connection.execute(sa.update(FINDINGS).where(FINDINGS.c.key == row.key).values(dismissed=dismissed))

    # The methods below are called by the job.

    def subjects(self, gallery: Gallery, after: int, limit: int, faces: int) -> list[tuple[int, int]]:
        """Return the next subjects: each one's key, in order, and the number of its faces to review.

        They are at most `limit` subjects with at most `faces` faces together, but at least one subject. Unnamed and
        expired subjects have no faces to review.
        """
        count = sa.select(sa.func.count()).select_from(FACES).where(FACES.c.subject_key == SUBJECTS.c.key)
        query = sa.select(SUBJECTS.c.key, SUBJECTS.c.id, SUBJECTS.c.expires_at, count.scalar_subquery().label("faces"))
        query = query.where((SUBJECTS.c.gallery_key == gallery.key) & (SUBJECTS.c.key > after))
        rows = self._database.rows(query.order_by(SUBJECTS.c.key).limit(limit))
        sizes = [(row.key, row.faces if _is_reviewed(row.id, row.expires_at) else 0) for row in rows]
        ends = accumulate(count for _, count in sizes)
        return sizes[: max(1, sum(end <= faces for end in ends))]

    def reviewed(self, subjects: Collection[int]) -> set[int]:
        """Return those of the subjects, by key, that exist and are reviewed: neither unnamed nor expired."""
        query = sa.select(SUBJECTS.c.key, SUBJECTS.c.id, SUBJECTS.c.expires_at)
        with self._database.read() as connection:
            rows = select_in(connection, query, SUBJECTS.c.key, subjects)
            return {row.key for row in rows if _is_reviewed(row.id, row.expires_at)}

    def add(self, gallery: Gallery, review: str, drafts: Sequence[Draft], note: Callable[[Connection], None]) -> None:
        """Store findings, except those about faces that were deleted meanwhile; `note` writes in the same
        transaction."""
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            keys = {key for draft in drafts for key in (draft.face, draft.other_face, *draft.group) if key is not None}
            query = sa.select(FACES.c.key, FACES.c.face_id).where(FACES.c.gallery_key == gallery.key)
            # The lock prevents the faces from being deleted before the transaction ends.
            held = query.order_by(FACES.c.key).with_for_update(read=True, key_share=True)
            ids = {row.key: row.face_id for row in select_in(connection, held, FACES.c.key, keys)}
            values = [
                {
                    "id": uuid.uuid4().hex,
                    "gallery_key": gallery.key,
                    "review": review,
                    "kind": draft.kind,
                    "strength": draft.strength,
                    "face_id": ids[draft.face],
                    "other_face_id": None if draft.other_face is None else ids[draft.other_face],
                    "evidence": _EVIDENCE.dump_json(
                        replace(draft.evidence, group=tuple(ids[key] for key in draft.group if key in ids) or None),
                        exclude_none=True,
                    ).decode(),
                }
                for draft in drafts
                if draft.face in ids and (draft.other_face is None or draft.other_face in ids)
            ]
            if values:
                connection.execute(self._database.insert(FINDINGS).on_conflict_do_nothing(), values)
            note(connection)

    def publish(
        self, gallery: Gallery, review: str, summary: ReviewSummary, note: Callable[[Connection, int], None]
    ) -> None:
        """Publish this review's findings, strongest first, and delete those of earlier reviews.

        `note` is called with the number of findings, and writes in the same transaction.
        """
        from_review = _of(gallery) & (FINDINGS.c.review == review)
        order = sa.func.row_number().over(order_by=(FINDINGS.c.strength.desc(), FINDINGS.c.key))
        places = sa.select(FINDINGS.c.key, order.label("place")).where(from_review).subquery()
        place = sa.update(FINDINGS).where(FINDINGS.c.key == places.c.key).values(place=places.c.place)
        dismissed = sa.exists().where(
            DISMISSALS.c.gallery_key == gallery.key,
            DISMISSALS.c.kind == FINDINGS.c.kind,
            DISMISSALS.c.face_id == FINDINGS.c.face_id,
            DISMISSALS.c.other_face_id.is_not_distinct_from(FINDINGS.c.other_face_id),
        )
        values = {"published": review, "summary": _SUMMARY.dump_json(summary).decode()}
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            findings = connection.execute(place).rowcount
            connection.execute(sa.update(FINDINGS).where(from_review, dismissed).values(dismissed=True))
            connection.execute(sa.update(REVIEWS).where(REVIEWS.c.gallery_key == gallery.key).values(values))
            connection.execute(sa.delete(FINDINGS).where(_of(gallery), FINDINGS.c.review != review))
            note(connection, findings)


_FACE, _OTHER = FACES.alias("face"), FACES.alias("other")
_SUBJECT, _OTHER_SUBJECT = SUBJECTS.alias("subject"), SUBJECTS.alias("other_subject")


def _columns(prefix: str, faces: sa.FromClause, subjects: sa.FromClause) -> list[sa.Label[Any]]:
    count = sa.select(sa.func.count()).select_from(FACES).where(FACES.c.subject_key == subjects.c.key)
    columns = {
        "face_id": faces.c.face_id,
        "quality": faces.c.quality,
        "has_crop": sa.exists().where(CROPS.c.face_key == faces.c.key),
        "subject": subjects.c.id,
        "name": subjects.c.name,
        "faces": count.scalar_subquery(),
    }
    return [column.label(f"{prefix}_{name}") for name, column in columns.items()]


_FINDINGS = (
    sa.select(FINDINGS, *_columns("first", _FACE, _SUBJECT), *_columns("second", _OTHER, _OTHER_SUBJECT))
    .select_from(FINDINGS)
    .join(_FACE, _FACE.c.face_id == FINDINGS.c.face_id)
    .join(_SUBJECT, _SUBJECT.c.key == _FACE.c.subject_key)
    .outerjoin(_OTHER, _OTHER.c.face_id == FINDINGS.c.other_face_id)
    .outerjoin(_OTHER_SUBJECT, _OTHER_SUBJECT.c.key == _OTHER.c.subject_key)
    .where(not_expired(_SUBJECT), not_expired(_OTHER_SUBJECT))
)


def _of(gallery: Gallery) -> sa.ColumnElement[bool]:
    return FINDINGS.c.gallery_key == gallery.key


def _row(connection: Connection, gallery: Gallery) -> Row[Any]:
    row = connection.execute(sa.select(REVIEWS).where(REVIEWS.c.gallery_key == gallery.key)).one_or_none()
    if row is None:
        message = f"Gallery {gallery.id!r} was never reviewed. Start a review first."
        raise NotFound(message, code="review_not_found", gallery=gallery.id)
    return row


def _find(connection: Connection, gallery: Gallery, finding_id: str) -> Row[Any]:
    row = None
    if _FINDING_ID.fullmatch(finding_id):
        query = _FINDINGS.where(_of(gallery), FINDINGS.c.id == finding_id, FINDINGS.c.place.is_not(None))
        row = connection.execute(query).one_or_none()
    if row is None:
        message = (
            f"Gallery {gallery.id!r} has no finding {finding_id!r}: its faces were changed, or a later review ended."
        )
        raise NotFound(message, code="finding_not_found", finding=finding_id)
    return row


def _finding(row: Row[Any]) -> Finding:
    face, evidence = _face(row, "first"), _EVIDENCE.validate_json(row.evidence)
    other = None if row.other_face_id is None else _face(row, "second")
    actions = _actions(row.kind, face, other, evidence.group or ())
    return Finding.of(row, face=face, other=other, evidence=FindingEvidence.of(evidence), actions=actions)


def _face(row: Row[Any], prefix: str) -> FindingFace:
    return FindingFace.model_validate({name: getattr(row, f"{prefix}_{name}") for name in FindingFace.model_fields})


def _actions(kind: str, face: FindingFace, other: FindingFace | None, group: Sequence[str]) -> list[FindingAction]:
    """Return the actions that may correct a finding, the likeliest first."""
    delete = FindingAction(do="delete", subject=face.subject, face_id=face.face_id, to=None)
    if kind == "no_good_face":
        return [FindingAction(do="enroll", subject=face.subject, face_id=None, to=None)]
    if other is None:
        return [delete]
    if kind == "same_person":
        small, large = sorted((face, other), key=lambda face: face.faces)
        return [FindingAction(do="merge", subject=small.subject, face_id=None, to=large.subject)]
    if kind == "two_people":
        to, faces = f"{face.subject[:SUGGESTED]}-{other.face_id[:4]}", list(group) or [other.face_id]
        return [FindingAction(do="part", subject=face.subject, face_id=None, to=to, faces=faces)]
    if kind == "misplaced_face":
        return [FindingAction(do="move", subject=face.subject, face_id=face.face_id, to=other.subject), delete]
    return [delete]


def _is_reviewed(subject_id: str, expires_at: str | None) -> bool:
    return not is_unnamed(subject_id) and (expires_at is None or expires_at > utc_now())
