"""Re-embed a gallery as a job: embed its stored crops with another model package while the gallery is in use."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from app.choices import WithoutCrop
from app.errors import LikenessError, NotFound
from app.features.corrected import drop_other_packages, reembed_corrections
from app.features.own_jobs import UnderWay
from app.features.reembedding.steps import Reembedding, Reembeddings, StoredCrop
from app.features.stored import crop_pixels, embed_crops
from app.features.transfers import delete_faces
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.inference.embedders import Embedders
from app.jobs.runner import Running
from app.jobs.store import JobStore, new_job_id
from app.types import Pixels, utc_now

KIND = "reembed"
EMBED, CLEAR = "embed", "clear"
"""The two kinds of job: add the target's templates, and remove those of the package that is no longer needed."""
BATCH = 32
"""Faces per transaction: about a quarter of a second of work on a CPU, which other writers may have to wait for."""
CLEAR_BATCH = 500
_log = logging.getLogger(__name__)


class Reembedder:
    """Starts and controls re-embeddings. Safe to share between threads.

    Every call that names a gallery may raise NotFound ``gallery_not_found`` and, except `begin`,
    ``reembedding_not_found``.
    """

    def __init__(
        self,
        galleries: Galleries,
        reembeddings: Reembeddings,
        embedders: Embedders,
        jobs: JobStore,
    ) -> None:
        self._galleries, self._store = galleries, galleries.store
        self._reembeddings = reembeddings
        self._embedders = embedders
        self._jobs = jobs

    def begin(
        self,
        gallery_id: str,
        embedder: str,
        *,
        without_crop: WithoutCrop = "refuse",
        keep_days: float = 7.0,
        force: bool = False,
        accept_non_commercial: bool = False,
        who: str | None = None,
    ) -> Reembedding:
        """Begin to re-embed the gallery, or continue a stopped re-embedding. The job ends with the switch.

        Raises what `Embedders.choose_for_gallery` and `Reembeddings.begin` raise.
        """
        gallery = self._store.gallery(gallery_id)
        package = self._embedders.choose_for_gallery(embedder, force=force, accept_non_commercial=accept_non_commercial)
        with self._embedders.use(package.id) as opened:
            move = self._reembeddings.begin(
                gallery, opened.id, opened.embedder.dimension, without_crop=without_crop, keep_days=keep_days
            )
        return self._work_on(gallery, move, EMBED, who)

    def find(self, gallery_id: str) -> Reembedding:
        return self._reembeddings.find(self._store.gallery(gallery_id))

    def rollback(self, gallery_id: str) -> Reembedding:
        """Return to the previous package once it is open and its index is built.

        Raises Conflict ``reembedding_not_switched``, Unusable ``package_unavailable``.
        """
        gallery = self._store.gallery(gallery_id)
        move = self._reembeddings.find(gallery)
        if move.state == "switched":
            with self._embedders.use(move.source):
                self._galleries.open_search(gallery.view(move.source))
        return self._reembeddings.rollback(gallery)

    def finish(self, gallery_id: str, *, who: str | None = None) -> Reembedding:
        """Remove the previous package's templates. Raises Conflict ``reembedding_not_switched``."""
        gallery = self._store.gallery(gallery_id)
        return self._work_on(gallery, self._reembeddings.finish(gallery), CLEAR, who)

    def cancel(self, gallery_id: str, *, who: str | None = None) -> Reembedding:
        """Cancel the re-embedding, and remove the target's templates. Raises Conflict ``reembedding_switched``."""
        gallery = self._store.gallery(gallery_id)
        return self._work_on(gallery, self._reembeddings.cancel(gallery), CLEAR, who)

    def finish_due(self) -> None:
        """Finish the re-embeddings whose time for a rollback is over, and restart clearing jobs that have stopped."""
        now = utc_now()
        for move in self._reembeddings.all():
            try:
                if move.keep_until is not None and move.keep_until <= now:
                    self.finish(move.gallery)
                elif move.state == "ending":
                    self._work_on(self._store.gallery(move.gallery), move, CLEAR, None)
            except LikenessError as error:
                _log.warning("A re-embedding could not be finished: %s", error.code)

    def work(self, running: Running) -> None:
        """Run a job; see `app.jobs.runner.Work`."""
        gallery = self._store.gallery(running.job.gallery or "")
        if running.params["step"] == CLEAR:
            self._clear(running, gallery)
            return
        move = self._reembeddings.find(gallery)
        if move.target != running.params["target"]:
            raise NotFound(
                f"Gallery {gallery.id!r} is being re-embedded to {move.target} now.", code="reembedding_not_found"
            )
        if move.state == "embedding":
            self._embed(running, gallery, move)
            if running.cancelled:
                return
            move = self._reembeddings.complete(gallery, running.counts["unreadable"])
        if move.state == "ready":
            self._embed_corrections(running, gallery, move.target)
            self._galleries.open_search(gallery.view(move.target))
            if not running.cancelled:
                self._reembeddings.switch(gallery)

    def _work_on(self, gallery: Gallery, move: Reembedding, step: str, who: str | None) -> Reembedding:
        """Create the job for this step unless one is already running."""
        job = self._jobs.find(move.job)
        if job is not None and not job.finished:
            if job.params["step"] == step:
                return move
            self._jobs.cancel(job.id)
        params, job_id = {"step": step, "source": move.source, "target": move.target}, new_job_id()
        assign = partial(self._reembeddings.assign, gallery=gallery, job_id=job_id, step=step)
        try:
            self._jobs.create(KIND, gallery, params, who=who, job_id=job_id, also=assign)
        except UnderWay as other:
            job_id = other.job
        return replace(move, job=job_id)

    def _embed(self, running: Running, gallery: Gallery, move: Reembedding) -> None:
        after = running.saved.get("after", 0)
        running.progress(running.done, running.done + self._reembeddings.left(gallery, move.target))
        while not running.cancelled:
            faces = self._reembeddings.crops(gallery, move.target, after, BATCH)
            if not faces:
                return
            crops: dict[StoredCrop, Pixels] = {}
            for face in faces:
                pixels = None if face.jpeg is None else crop_pixels(face.jpeg)
                if pixels is not None:
                    crops[face] = pixels
                elif face.jpeg is not None:
                    running.refuse(face.key, face.face_id, "invalid_image", "The stored crop can't be read.")
                    running.counts["unreadable"] += 1
            running.counts["without_crop"] += sum(face.jpeg is None for face in faces)
            running.counts["embedded"] += len(crops)
            with self._embedders.use(move.target) as opened:
                templates, _ = opened.embedder.embed(list(crops.values()))
            after = faces[-1].key
            running.progress(running.done + len(faces))
            note = partial(running.checkpoint, {"after": after})
            self._reembeddings.add(gallery, list(zip(crops, templates, strict=True)), note)

    def _embed_corrections(self, running: Running, gallery: Gallery, target: str) -> None:
        embed = partial(embed_crops, self._embedders, target)
        added, left_out = reembed_corrections(self._store, gallery, target, embed)
        running.counts["corrections"], running.counts["corrections_left_out"] = added, left_out
        running.checkpoint(running.saved)

    def _clear(self, running: Running, gallery: Gallery) -> None:
        after: int = running.saved.get("after", 0)
        running.progress(running.done, self._store.counts(gallery, expired=True).faces)
        while not running.cancelled:
            keys, doomed = self._reembeddings.clear(gallery, after, CLEAR_BATCH)
            if doomed:
                with self._galleries.change(gallery) as change:
                    running.counts["dropped"] += len(delete_faces(change, doomed))
            if not keys and self._reembeddings.forget(gallery):
                drop_other_packages(self._store, gallery, self._store.gallery(gallery.id).embedder)
                return
            after = keys[-1] if keys else 0
            running.progress(running.done + len(keys))
            running.checkpoint({"after": after})
