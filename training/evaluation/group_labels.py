"""Which groups of people the photos of a set show: read from their names, their folders or a CSV file."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

EVERYBODY = "all"
GROUP_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?")
"""As in a manifest."""
AGES = (
    (3, "children-0-3"),
    (12, "children-4-12"),
    (17, "youths-13-17"),
    (59, "adults-18-59"),
    (199, "adults-60-plus"),
)
"""The last year of each age group."""
UTKFACE = re.compile(r"(\d{1,3})_([01])_([0-4])_")
SEXES = ("male", "female")
ETHNIC_GROUPS = ("white", "black", "asian", "indian", None)
"""In the words of those who labelled the set; its fifth, "others", is no group."""
Reader: TypeAlias = Callable[[str], Sequence[str]]
"""A photo's name → its groups; none if the name has another form."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The photos of each group by name, and the person on each photo; a photo of nobody known is a person alone."""

    groups: Mapping[str, tuple[str, ...]]
    people: Mapping[str, str]
    unlabelled: int
    """Photos without a group."""


def utkface(photo: str) -> Sequence[str]:
    """Read ``AGE_SEX_GROUP_TIME``: an age group, and within it sex and ethnic group."""
    found = UTKFACE.match(photo.rpartition("/")[2])
    if found is None:
        return ()
    years, sex, ethnic = (int(number) for number in found.groups())
    age = next((name for last, name in AGES if years <= last), None)
    if age is None:
        return ()
    ethnic_group = ETHNIC_GROUPS[ethnic]
    return (age,) if ethnic_group is None else (age, f"{age}/{SEXES[sex]}-{ethnic_group}")


def folder(photo: str) -> Sequence[str]:
    """Return the photo's folder as its group."""
    return (photo.rpartition("/")[0],)


LAYOUTS: Mapping[str, Reader] = {"utkface": utkface, "folder": folder}


def read_labels(rule: str, photos: Sequence[str]) -> Labels:
    """Label the photos by a layout of LAYOUTS, or by a CSV file with the columns file, group and, optional, person.

    Raises ValueError if the rule labels none of them, or a group has no proper name.
    """
    if rule in LAYOUTS:
        groups_of = {photo: tuple(LAYOUTS[rule](photo)) for photo in photos}
        people: dict[str, str] = {}
    else:
        groups_of, people = _read_csv(Path(rule), photos)
    found: dict[str, list[str]] = {}
    for photo in photos:
        for group in (EVERYBODY, *groups_of[photo]) if groups_of[photo] else ():
            found.setdefault(group, []).append(photo)
    if not found:
        raise ValueError(f"{rule} names the group of none of the {len(photos)} photos")
    wrong = next((name for name in found if GROUP_NAME.fullmatch(name) is None), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is no group: a name has a-z, 0-9 and . _ - with one / before the name of a part")
    unlabelled = sum(not groups for groups in groups_of.values())
    return Labels({name: tuple(found[name]) for name in sorted(found)}, people, unlabelled)


def _read_csv(path: Path, photos: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the groups of each photo, and the person on it where the file names one."""
    if not path.is_file():
        raise ValueError(f"{path} is neither {', '.join(LAYOUTS)} nor a CSV file")
    groups_of: dict[str, tuple[str, ...]] = dict.fromkeys(photos, ())
    people: dict[str, str] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if not {"file", "group"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{path} needs the columns file and group, and has {rows.fieldnames}")
        for row in rows:
            named = PurePosixPath((row["file"] or "").strip())
            photo = f"{named.parent.name}/{named.stem}"
            if photo not in groups_of:
                raise ValueError(f"{path}, line {rows.line_num}: {named} is not among the photos (folder/file.jpg)")
            groups_of[photo] += ((row["group"] or "").strip(),)
            if row.get("person"):
                people[photo] = str(row["person"]).strip()
    return groups_of, people
