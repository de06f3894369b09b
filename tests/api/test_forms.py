"""Multipart forms are split the same in whatever pieces they arrive, or refused."""

from __future__ import annotations

import pytest

from app.api.body import FORM_TYPE, MAX_PART_HEADER, Body, form_parts
from app.errors import InvalidInput
from app.features.uploads import FormReader

IMAGE = b'Content-Disposition: form-data; name="image"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
PHOTO = b"\xff\xd8\r\n\r\n--\r\n--lin\r\r\n\xff\xd9"
"""With most of what a boundary has."""
LIMIT = b"content-disposition:form-data; name=limit\r\n\r\n"


def split_whole(form: bytes) -> list[tuple[str, bytes]]:
    return form_parts(Body(form, FORM_TYPE, b"line"), 3)


def split(form: bytes, *cuts: int) -> list[tuple[str, bytes]]:
    reader, parts = FormReader(b"line"), list[tuple[str, bytes]]()
    for start, end in zip((0, *cuts), (*cuts, len(form)), strict=True):
        for index, name, data in reader.feed(form[start:end]):
            parts[index:] = [(name, (parts[index][1] if index < len(parts) else b"") + data)]
    reader.finish()
    return parts


@pytest.mark.parametrize("padding", [b"", b" ", b"\t "])
def test_a_form_is_split_the_same_wherever_it_is_cut(padding: bytes) -> None:
    boundary = b"--line" + padding + b"\r\n"
    form = b"A preamble.\r\n" + boundary + IMAGE + PHOTO + b"\r\n" + boundary + LIMIT + b"\r\n--line--\r\nAn epilogue."
    whole = split_whole(form)
    assert whole == [("image", PHOTO), ("limit", b"")]
    assert all(split(form, cut) == whole for cut in range(len(form) + 1))
    assert split(form, *range(1, len(form))) == whole


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"--line",
        b"--line\r\n" + IMAGE + PHOTO,
        b"--line\r\n" + IMAGE + PHOTO + b"\r\n--line",
        b"--lines\r\n" + IMAGE + PHOTO + b"\r\n--line--",
        b"--line\r\n" + IMAGE + PHOTO + b"\r\n--lines\r\n\r\n--line--",
        b"--line\r\nno header\r\n\r\n\r\n--line--",
        b"--line\r\nContent-Type: image/jpeg\r\n\r\n\r\n--line--",
        b"--line\r\n" + b"a" * MAX_PART_HEADER + b"\r\n\r\n\r\n--line--",
        b"a" * (MAX_PART_HEADER + 1) + b"\r\n--line--",
    ],
)
def test_what_is_no_form_is_refused_however_it_arrives(form: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        split_whole(form)
    assert caught.value.code == "invalid_multipart"
    for cuts in ((), (len(form) // 2,), range(1, len(form))):
        with pytest.raises(InvalidInput) as caught_piecewise:
            split(form, *cuts)
        assert (caught_piecewise.value.code, str(caught_piecewise.value)) == ("invalid_multipart", str(caught.value))


def test_a_form_has_so_many_parts_and_no_more() -> None:
    part = b"--line\r\n" + LIMIT + b"5\r\n"
    assert len(split_whole(3 * part + b"--line--")) == 3
    with pytest.raises(InvalidInput) as caught:
        split_whole(4 * part + b"--line--")
    assert caught.value.code == "payload_too_large"
