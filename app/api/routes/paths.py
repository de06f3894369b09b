"""Paths that several modules share."""

from __future__ import annotations

GALLERIES = "/v1/galleries"
GALLERY = f"{GALLERIES}/{{gallery}}"
SUBJECTS = f"{GALLERY}/subjects"
SUBJECT = f"{SUBJECTS}/{{subject}}"
FACES = f"{SUBJECT}/faces"
