"""Everything that can be done to galleries, in any order, to the real service and to the model beside it."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from PIL import Image

from app.types import Vector
from tests.stateful.model import UNNAMED, Gallery, Probe, Subject, near
from tests.stateful.service import SMALL, Service
from tests.support.service import AGAIN, COLLINS, HOPPER, encoded
from tests.support.waiting import until

GALLERIES = ("default", "second", "third")
"""The first is CompreFace's, whose rename is tried."""
NAMES = ("ann", "bob", "cy", "dee")
TOLERANCE = 1e-4
LIMIT = 100  # more subjects than the steps of a history make
ALIKE = (0.3, 0.45, 0.7, 0.95)
"""Cosines of drawn templates with a real person's: a stranger, uncertain, the same person, the same photo."""
TURNS = (0, 0, 0, 45, 90, 135, 180, 225, 270, 315)
"""Degrees by which photos are turned; most are upright."""
PEOPLE = 3
people = st.integers(0, PEOPLE - 1)
taken = st.tuples(people, st.sampled_from(TURNS))
often = st.sampled_from([True, True, False])
one_of = st.data()


@cache
def pixels(person: int) -> Any:
    photo = Image.open(io.BytesIO((COLLINS, AGAIN, HOPPER)[person])).convert("RGB")
    return np.array(photo.resize((224, 224), Image.Resampling.LANCZOS), np.int16)


def photo(person: int, number: int, turn: int = 0) -> bytes:
    """Return a photo of its own for each number, as people take several of one person, turned by so many degrees."""
    noise = np.random.default_rng([person, number]).integers(-6, 7, pixels(person).shape)
    taken = Image.fromarray(np.clip(pixels(person) + (noise if number else 0), 0, 255).astype(np.uint8))
    return encoded(np.asarray(taken.rotate(turn, Image.Resampling.BICUBIC, expand=True)))


def faces_of(gallery: Gallery) -> list[str]:
    return list(gallery.faces())  # ids are random: what is drawn goes by their order alone


def has(wanted: Callable[[Gallery], object]) -> Callable[[Any], bool]:
    return lambda machine: any(wanted(gallery) for gallery in machine.galleries.values())


class Machine(RuleBasedStateMachine):
    """`database` makes an empty database's URL; None: SQLite."""

    database: ClassVar[Callable[[], str | None]] = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="likeness-stateful-")
        self.service = Service(Path(self._folder.name), type(self).database())
        self.package = self.service.call("GET", "/v1/models")["defaults"]["embedder"]
        self.galleries: dict[str, Gallery] = {}
        self.archives: dict[str, tuple[bytes, Gallery]] = {}
        self.touched: set[str] = set()
        self.plain: dict[tuple[int, str, int], Vector | None] = {}
        self.photos = 0

    def teardown(self) -> None:
        self.service.stop()
        self._folder.cleanup()

    # ---------------------------------------------------------------- what rules share

    def chosen(self, data: Any, wanted: Callable[[Gallery], object] = lambda _: True) -> tuple[str, Gallery]:
        """Choose one of the galleries that this holds of; it is compared with the model after the rule."""
        name = data.draw(st.sampled_from([name for name, gallery in self.galleries.items() if wanted(gallery)]))
        self.touched.add(name)
        return name, self.galleries[name]

    def path(self, gallery: str, subject: str | None = None, rest: str = "") -> str:
        return f"/v1/galleries/{gallery}" + (f"/subjects/{subject}" if subject else "") + rest

    def a_photo(self, person: int, turn: int = 0) -> bytes:
        self.photos += 1
        return photo(person, self.photos, turn)

    def embed_turned(self, person: int, package: str, turn: int) -> Vector | None:
        """Return the template of a person's turned photo: it is that person's, or there is none."""
        if (person, package, turn) not in self.plain:
            found = self.plain[person, package, turn] = self.service.embed(photo(person, 0, turn), package)
            if package == self.package:
                assert found is None or found @ self.embed_plain(person, package) >= self.service.lenient[package]
        return self.plain[person, package, turn]

    def embed_plain(self, person: int, package: str) -> Vector:
        plain = self.embed_turned(person, package, 0)
        assert plain is not None
        return plain

    def probe(self, gallery: Gallery, face_id: str, image: bytes) -> Probe:
        made = {package: self.service.embed(image, package) for package in gallery.packages}
        return Probe(face_id, {package: vector for package, vector in made.items() if vector is not None})

    def read_crop(self, gallery: str, subject: str, face: Probe) -> None:
        if self.galleries[gallery].keeps_crops:
            face.crop = self.service.call("GET", self.path(gallery, subject, f"/faces/{face.id}/crop"))

    def check_gone(self, erased: list[Probe]) -> None:
        """Look for the erased in every file, but for what a copy of them in another gallery has."""
        left = set().union(*(probe.pieces() for gallery in self.galleries.values() for probe in gallery.probes()))
        pieces = set().union(*(probe.pieces() for probe in erased)) - left
        for content in self.service.files():
            assert not any(piece in content for piece in pieces), "an erased person is in a file"

    # ---------------------------------------------------------------- galleries

    @initialize(crops=often)
    def begin(self, crops: bool) -> None:
        """A gallery in which something can be done to everybody."""
        self.make_gallery(crops)
        for person, name in enumerate(NAMES[:3]):
            self.enroll_photos(GALLERIES[0], name, [(person, 0)])

    @precondition(lambda self: len(self.galleries) < len(GALLERIES))
    @rule(crops=often)
    def make_gallery(self, crops: bool) -> None:
        name = next(name for name in GALLERIES if name not in self.galleries)
        body = {"id": name, "store": "crop" if crops else "none", "on_conflict": "allow"}
        self.service.call("POST", "/v1/galleries", json=body)
        self.service.call("POST", "/v1/galleries", 409, json=body)
        self.galleries[name] = Gallery(self.package, crops)
        self.touched.add(name)

    @precondition(lambda self: len(self.galleries) == len(GALLERIES))
    @rule(data=one_of)
    def delete_gallery(self, data: Any) -> None:
        name, _ = self.chosen(data)
        self.service.call("DELETE", self.path(name))
        del self.galleries[name]
        self.touched.discard(name)

    @precondition(lambda self: self.galleries)
    @rule(data=one_of, search=st.sampled_from(["fp32", "int8"]), calibration=st.sampled_from(["package", "gallery"]))
    def calibrate(self, data: Any, search: str, calibration: str) -> None:
        name, _ = self.chosen(data)
        self.service.call("PATCH", self.path(name), json={"search": search, "calibration": calibration})
        self.service.finished(self.service.call("POST", self.path(name, rest="/calibration"))["job"])

    # ---------------------------------------------------------------- people

    @precondition(lambda self: self.galleries)
    @rule(data=one_of, subject=st.sampled_from(NAMES), photos=st.lists(taken, min_size=1, max_size=2))
    def enroll(self, data: Any, subject: str, photos: list[tuple[int, int]]) -> None:
        name, _ = self.chosen(data)
        self.enroll_photos(name, subject, photos)

    def enroll_photos(self, name: str, subject: str, photos: list[tuple[int, int]]) -> None:
        """Enroll photos of people, each turned by so many degrees; those without a template are refused."""
        gallery, images = self.galleries[name], [self.a_photo(person, turn) for person, turn in photos]
        files = [("images", image) for image in images]
        aligned = [image for image in images if self.service.embed(image, gallery.package) is not None]
        path, status = self.path(name, subject, "/faces"), 0 if aligned else 422
        made = self.service.call("POST", path, status, files=files, data={"quality": "none"})
        for found, image in zip(made["enrolled"] if aligned else [], aligned, strict=True):
            face = self.probe(gallery, found["face_id"], image)
            self.read_crop(name, subject, face)
            gallery.subject(subject).faces.append(face)

    @precondition(has(lambda gallery: gallery.other is None))
    @rule(data=one_of, subject=st.sampled_from(NAMES), person=people, alike=st.sampled_from(ALIKE))
    def import_template(self, data: Any, subject: str, person: int, alike: float) -> None:
        name, gallery = self.chosen(data, lambda gallery: gallery.other is None)
        self.photos += 1
        middle = self.embed_plain(person, gallery.package)
        vector = near(middle, alike, np.random.default_rng(self.photos))
        self.service.import_template(name, subject, vector, gallery.package)
        gallery.subject(subject)
        self.adopt(name, [(subject, Probe("", {gallery.package: vector}))])

    def adopt(self, name: str, new: list[tuple[str, Probe]]) -> None:
        """Read the ids of new faces, which are their subjects' last ones, in this order."""
        gallery = self.galleries[name]
        for subject, face in new:
            known = {face.id for face in gallery.subjects[subject].faces}
            listed = self.service.call("GET", self.path(name, subject, "/faces"))["faces"]
            face.id = next(found["face_id"] for found in listed if found["face_id"] not in known)
            face.came_as = face.came_as or face.id
            gallery.subjects[subject].faces.append(face)

    @precondition(lambda self: self.galleries)
    @rule(data=one_of, person=people)
    def index_faces(self, data: Any, person: int) -> None:
        name, gallery = self.chosen(data)
        image = self.a_photo(person)
        (face_id,) = self.service.index_faces(name, image)
        listed = self.service.call("GET", self.path(name, rest="/subjects"))["subjects"]
        (subject,) = [found["id"] for found in listed if found["id"] not in gallery.subjects]
        assert subject.startswith(UNNAMED)
        face = self.probe(gallery, face_id, image)
        self.read_crop(name, subject, face)
        gallery.subject(subject).faces.append(face)

    @precondition(has(lambda gallery: gallery.subjects))
    @rule(data=one_of, text=st.sampled_from(["Ann Lee", "Ğül", None]))
    def edit(self, data: Any, text: str | None) -> None:
        name, gallery = self.chosen(data, lambda gallery: gallery.subjects)
        subject = data.draw(st.sampled_from(list(gallery.subjects)))
        self.service.call("PATCH", self.path(name, subject), json={"name": text, "metadata": {"team": text}})
        gallery.subjects[subject].name = text

    @precondition(has(faces_of))
    @rule(data=one_of, to=st.sampled_from(NAMES))
    def move(self, data: Any, to: str) -> None:
        name, gallery = self.chosen(data, faces_of)
        subject = data.draw(
            st.sampled_from([subject_id for subject_id, found in gallery.subjects.items() if found.faces])
        )
        mine = [face.id for face in gallery.subjects[subject].faces]
        faces = data.draw(st.lists(st.sampled_from(mine), min_size=1, unique=True))
        self.do({"do": "part", "subject": subject, "faces": faces, "to": to}, name)

    @precondition(has(lambda gallery: len(gallery.subjects) > 1))
    @rule(data=one_of, how=st.sampled_from(["merge", "rename"]))
    def merge(self, data: Any, how: str) -> None:
        name, gallery = self.chosen(data, lambda gallery: len(gallery.subjects) > 1)
        source, target = data.draw(st.permutations(list(gallery.subjects)))[:2]
        if how == "merge" or name != GALLERIES[0]:
            self.do({"do": "merge", "subject": source, "to": target}, name)
            return
        target = data.draw(st.sampled_from([target, *(other for other in NAMES if other != source)]))
        self.service.call("PUT", f"/api/v1/recognition/subjects/{source}", json={"subject": target})
        gallery.rename(source, target)

    def do(self, action: dict[str, Any], name: str) -> None:
        """Do what a rule or a finding of a review says."""
        gallery, subject, to = self.galleries[name], action["subject"], action["to"]
        if action["do"] == "merge":
            self.service.call("POST", self.path(name, subject, "/merge"), json={"into": to})
            gallery.merge(subject, to)
        elif action["do"] == "part":
            body = {"faces": action["faces"], "subject": to, "create": True}
            self.service.call("POST", self.path(name, subject, "/faces/move"), json=body)
            gallery.move(action["faces"], to)
        elif action["do"] == "move":
            self.service.call(
                "POST", self.path(name, subject, f"/faces/{action['face_id']}/move"), json={"subject": to}
            )
            gallery.move([action["face_id"]], to)
        elif action["do"] == "delete":
            self.service.call("DELETE", self.path(name, subject, f"/faces/{action['face_id']}"))
            gallery.subjects[subject].faces.remove(gallery.faces()[action["face_id"]][1])
            gallery.tidy()

    @precondition(has(faces_of))
    @rule(data=one_of)
    def delete_face(self, data: Any) -> None:
        name, gallery = self.chosen(data, faces_of)
        face_id = data.draw(st.sampled_from(faces_of(gallery)))
        self.do({"do": "delete", "subject": gallery.faces()[face_id][0], "face_id": face_id, "to": None}, name)

    # ---------------------------------------------------------------- corrections and reviews

    @precondition(has(lambda gallery: gallery.subjects))
    @rule(data=one_of, person=people)
    def correct(self, data: Any, person: int) -> None:
        name, gallery = self.chosen(data, lambda gallery: gallery.subjects)
        subject, image = data.draw(st.sampled_from(list(gallery.subjects))), self.a_photo(person)
        where, confirmed = self.path(name, subject, "/corrections"), {"confirm": "true"}
        made = self.service.call("POST", where, files={"image": image}, data=confirmed)
        probe = self.probe(gallery, made["id"], image)
        if gallery.keeps_crops:
            probe.crop = self.service.correction_crop(name, probe.id)
        gallery.subjects[subject].corrections.append(probe)

    @precondition(has(lambda gallery: any(found.corrections for found in gallery.subjects.values())))
    @rule(data=one_of)
    def withdraw(self, data: Any) -> None:
        name, gallery = self.chosen(data, lambda gallery: any(found.corrections for found in gallery.subjects.values()))
        subject = next(subject_id for subject_id, found in gallery.subjects.items() if found.corrections)
        correction = gallery.subjects[subject].corrections.pop()
        self.service.call("DELETE", self.path(name, subject, f"/corrections/{correction.id}"))

    @precondition(has(faces_of))
    @rule(data=one_of, mend=st.booleans())
    def review(self, data: Any, mend: bool) -> None:
        """Review the gallery; do what the first finding says, or call all of them right."""
        name, _ = self.chosen(data, faces_of)
        self.service.finished(self.service.call("POST", self.path(name, rest="/review")))
        findings = self.service.call("GET", self.path(name, rest="/review"))["findings"]
        if mend and findings:
            self.do(data.draw(st.sampled_from(findings))["actions"][0], name)
            return
        for finding in findings:
            self.service.call("POST", self.path(name, rest=f"/review/{finding['id']}/dismiss"))
        assert not self.service.call("GET", self.path(name, rest="/review"))["findings"]

    # ---------------------------------------------------------------- other packages, archives, other times

    @precondition(has(lambda gallery: not gallery.switched))
    @rule(data=one_of)
    def reembed(self, data: Any) -> None:
        name, gallery = self.chosen(data, lambda gallery: not gallery.switched)
        gallery.other = gallery.other or (self.package if gallery.package == SMALL else SMALL)
        body = {"embedder": gallery.other, "without_crop": "drop"}
        self.service.finished(self.service.call("POST", self.path(name, rest="/reembed"), json=body)["job"])
        for probe in gallery.probes():
            if probe.crop and gallery.other not in probe.templates:
                probe.templates[gallery.other] = self.service.embed_crop(probe.crop, gallery.other)
        gallery.switch()

    @precondition(has(lambda gallery: gallery.other))
    @rule(data=one_of, end=st.booleans())
    def end_reembedding(self, data: Any, end: bool) -> None:
        """Roll back or finish what has switched; cancel what was rolled back."""
        name, gallery = self.chosen(data, lambda gallery: gallery.other)
        if gallery.switched and not end:
            self.service.call("POST", self.path(name, rest="/reembed/rollback"))
            gallery.switch()
            return
        method, rest = ("POST", "/reembed/finish") if gallery.switched else ("DELETE", "/reembed")
        self.service.finished(self.service.call(method, self.path(name, rest=rest))["job"])
        gallery.finish()

    @precondition(has(faces_of))
    @rule(data=one_of)
    def export(self, data: Any) -> None:
        name, gallery = self.chosen(data, faces_of)
        job = self.service.finished(self.service.call("POST", self.path(name, rest="/export")))
        tar = self.service.call("GET", f"/v1/jobs/{job['id']}/result")
        self.archives[f"archive {len(self.archives)}"] = tar, gallery.copy()

    @precondition(lambda self: any(self.fitting(archive) for _, archive in self.archives.values()))
    @rule(data=one_of)
    def import_archive(self, data: Any) -> None:
        fit = [label for label, (_, archive) in self.archives.items() if self.fitting(archive)]
        tar, archive = self.archives[data.draw(st.sampled_from(fit))]
        name = data.draw(st.sampled_from(self.fitting(archive)))
        self.touched.add(name)
        self.service.finished(self.service.upload(name, tar, {"content": "archive", "trust": self.service.trust}))
        self.adopt(name, self.galleries[name].take(archive))
        self.galleries[name].tidy()

    def fitting(self, archive: Gallery) -> list[str]:
        return [
            name
            for name, gallery in self.galleries.items()
            if gallery.other is None and gallery.package == archive.package
        ]

    @precondition(has(lambda gallery: gallery.subjects))
    @rule(data=one_of)
    def erase(self, data: Any) -> None:
        name, gallery = self.chosen(data, lambda gallery: gallery.subjects)
        subject = data.draw(st.sampled_from(list(gallery.subjects)))
        faces = len(gallery.subjects[subject].faces)
        receipt = self.service.call("POST", self.path(name, subject, "/erase"))
        erased, dropped = gallery.erase(subject, self.service.lenient)
        assert (receipt["erased"]["faces"], receipt["erased"]["corrections"]) == (faces, dropped)
        self.check_gone(erased)

    @precondition(has(lambda gallery: gallery.subjects))
    @rule(data=one_of)
    def expire(self, data: Any) -> None:
        """A subject's time comes, in every gallery that has one of this id."""
        _, gallery = self.chosen(data, lambda gallery: gallery.subjects)
        subject = data.draw(st.sampled_from(list(gallery.subjects)))
        homes = {name: gallery for name, gallery in self.galleries.items() if subject in gallery.subjects}
        self.touched |= homes.keys()
        due = self.service.receipts() + len(homes)
        with self.service.no_sweep():
            self.service.expire(subject)
            for name, home in homes.items():
                self.check_expired(name, home, subject)
        until(lambda: self.service.receipts() == due)
        self.check_gone([probe for home in homes.values() for probe in home.erase(subject, self.service.lenient)[0]])

    def check_expired(self, name: str, gallery: Gallery, subject: str) -> None:
        """A subject that has expired and is not erased yet is in no answer, and can't be revived."""
        self.check(name, gallery.without(subject))
        where = self.path(name, subject)
        self.service.call("GET", where, 404)
        self.service.call("PATCH", where, 404, json={"expires_at": None})
        files, data = {"images": photo(0, 0)}, {"quality": "none"}
        self.service.call("POST", self.path(name, subject, "/faces"), 409, files=files, data=data)

    @precondition(lambda self: self.galleries)
    @rule(backup=st.booleans())
    def restart(self, backup: bool) -> None:
        if backup and self.service.on_sqlite:
            self.service.back_up_and_restore()
        else:
            self.service.stop()
            self.service.start()
        self.touched |= set(self.galleries)

    # ---------------------------------------------------------------- what must hold

    @invariant()
    def agrees(self) -> None:
        """Each changed gallery holds what the model does, and answers as a search of all of it would."""
        for name in self.touched:
            self.check(name, self.galleries[name])
        self.touched.clear()

    def check(self, name: str, gallery: Gallery) -> None:
        shown = self.service.call("GET", self.path(name))
        assert (shown["subjects"], shown["faces"]) == (len(gallery.subjects), len(gallery.faces()))
        call = self.service.call
        report = call("GET", self.path(name, rest="/check"))
        assert report["ok"], report
        listed = call("GET", self.path(name, rest="/subjects"))["subjects"]
        found = {row["id"]: (row["name"], row["face_count"]) for row in listed}
        expected = {subject_id: (subject.name, len(subject.faces)) for subject_id, subject in gallery.subjects.items()}
        assert found == expected, (found, expected)
        for subject_id, subject in gallery.subjects.items():
            mine = call("GET", self.path(name, subject_id, "/faces"))["faces"]
            assert {face["face_id"] for face in mine} == {face.id for face in subject.faces}
            self.check_corrections(name, subject_id, subject, gallery)
        self.check_search(name, gallery, self.photos % PEOPLE)

    def check_corrections(self, name: str, subject_id: str, subject: Subject, gallery: Gallery) -> None:
        """Read the ids of those that an import brought."""
        listed = self.service.call("GET", self.path(name, subject_id, "/corrections"))["corrections"]
        found = [row["id"] for row in listed]
        answering = [correction for correction in subject.corrections if gallery.package in correction.templates]
        assert len(found) == len(answering)
        known = {correction.id for correction in answering}
        new = iter([found_id for found_id in found if found_id not in known])
        for correction in answering:
            correction.id = correction.id or next(new)
        assert {correction.id for correction in answering} == set(found)

    def check_search(self, name: str, gallery: Gallery, person: int) -> None:
        turn = TURNS[self.photos % len(TURNS)]
        probe, files = self.embed_turned(person, gallery.package, turn), {"image": photo(person, 0, turn)}
        answer = self.service.call("POST", self.path(name, rest="/identify"), files=files, data={"limit": str(LIMIT)})
        if probe is None:
            assert all(face["decision"] == "unknown" and not face["candidates"] for face in answer["faces"])
            return
        (face,) = answer["faces"]
        expected = gallery.ranking(probe, face["threshold_uncertain"])
        scores = dict(expected)
        got = [(candidate["subject"], candidate["score"]) for candidate in face["candidates"]]
        assert answer["model"] == gallery.package, answer["model"]
        assert {subject for subject, _ in got} == set(scores)
        assert np.allclose([score for _, score in got], [score for _, score in expected], atol=TOLERANCE), (got, scores)
        assert all(abs(score - scores[subject]) < TOLERANCE for subject, score in got), (got, scores)
        decision = "unknown"
        if expected and expected[0][1] >= face["threshold_uncertain"]:
            decision = "known" if expected[0][1] >= face["threshold"] else "uncertain"
        assert face["decision"] == decision
