"""What reads bytes from outside, each as a function to be fuzzed.

Every target refuses its input with a LikenessError or reads it; it asserts what must then hold. Any other exception is
a finding, and so is an input that takes more than INPUT_S, or lets the process grow past MEMORY_MIB.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import onnx

from app.api import body, json_reader
from app.api.body import MANY_IMAGES, ONE_IMAGE, Body, BodyLimits
from app.api.routes.galleries import GalleryCreate
from app.db import pagination
from app.db.encryption import KEY_BYTES, Sealer
from app.errors import LikenessError
from app.face import formats, image
from app.features import tar_stream
from app.features.bulk import archive, backup, json_lines
from app.features.bulk import command as transfer
from app.features.bulk.npy import RowReader
from app.features.challenges.routes import ChallengeCreate
from app.features.challenges.tokens import Bound, Challenges
from app.features.compreface import command as compreface
from app.features.erasure.checking import check_receipt
from app.features.keys.schemas import KeyCreate
from app.features.one_time import SeenSignatures
from app.features.rekognition import requests, sigv4
from app.features.rekognition.sigv4 import SignedRequest
from app.features.tar_stream import PieceReader
from app.features.uploads import FormReader
from app.models import graph_facts, presets
from app.package.manifest import Manifest
from tests.conftest import PROJECT
from tests.support import liveness
from tests.support.images import EVERY_KIND
from tests.support.tarred import npy_of, tar_of, units

INPUT_S = 10
"""Seconds for one input, on a busy machine."""
MEMORY_MIB = 2048
"""Of the whole process: every library, and one input's work."""
LIMITS = formats.Limits(max_bytes=256 * 1024, max_pixels=1_000_000)
UNPACKED = 4 * 1024 * 1024
BODIES = BodyLimits(image_bytes=65536, request_bytes=262144, images=4, seconds=1, json_bytes=65536, upload_bytes=65536)
BOUNDARY = b"line"
NOW = 1_800_000_000.0
DIMENSION = 4
VALUES = 200
"""Of a JSON body."""
PEOPLE = 9


@dataclass(frozen=True, slots=True)
class Target:
    """``run`` returns where the input was refused or read; ``seeds`` are inputs to begin with."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    longest: int
    """Bytes of an input."""


def read_image(data: bytes) -> None:
    """A photo: within the limits that its header was held to, upright, RGB."""
    decoded = image.decode(data, LIMITS)
    height, width, channels = decoded.pixels.shape
    assert channels == 3
    assert height * width <= LIMITS.max_pixels
    assert decoded.width * decoded.height <= LIMITS.max_pixels


def read_tar(data: bytes) -> None:
    """An import's tar or tar.gz: no more is unpacked than allowed, and no unsafe name comes without a problem."""
    unpacked = 0
    for entry in tar_stream.entries(lambda: iter([data]), UNPACKED):
        if entry.problem is None:
            assert not entry.name.startswith("/")
            assert ".." not in entry.name.split("/")
            unpacked += sum(map(len, entry.pieces()))
    assert unpacked <= UNPACKED
    archive.read_manifest(tar_stream.entries(lambda: iter([data]), UNPACKED))


def read_npy(data: bytes) -> None:
    """Templates: rows of the gallery's length."""
    rows = RowReader(PieceReader(iter([data])), DIMENSION)
    for _ in range(min(rows.count, 100)):
        assert rows.read(1).shape == (1, DIMENSION)


def read_lines(data: bytes) -> None:
    """The lines beside photos and templates: whole, or refused one by one."""
    for line in json_lines.split(iter([data[:100], data[100:]])):
        for kind in (json_lines.PhotoLine, json_lines.FaceLine, json_lines.SubjectLine):
            with suppress(LikenessError):
                json_lines.write(json_lines.parse(line, kind).model_dump(mode="json"))


def read_form(data: bytes) -> None:
    """A multipart form: the same parts, or the same refusal, whole and in whatever pieces it arrives."""
    sent = Body(data, body.FORM_TYPE, BOUNDARY)
    whole, *others = (
        _parts_or_refusal(read)
        for read in (
            lambda: body.form_parts(sent, len(data)),
            lambda: _parts([data]),
            lambda: _parts([data[:77], data[77:]]),
        )
    )
    assert others == [whole, whole]
    parts = body.parse_images(sent, MANY_IMAGES, BODIES, {"quality"})
    assert sum(map(len, parts.images.values())) <= BODIES.images


def _parts(pieces: list[bytes]) -> list[tuple[str, bytes]]:
    reader, parts = FormReader(BOUNDARY), list[tuple[str, bytes]]()
    for piece in pieces:
        for index, name, data in reader.feed(piece):
            parts[index:] = [(name, (parts[index][1] if index < len(parts) else b"") + data)]
    reader.finish()
    return parts


def _parts_or_refusal(read: Callable[[], list[tuple[str, bytes]]]) -> list[tuple[str, bytes]] | str:
    try:
        return read()
    except LikenessError as error:
        return f"{error.code}: {error}"


def read_json(data: bytes) -> None:
    """A JSON body, as a request with an image, one without, and one of Rekognition's."""
    sent = Body(data, body.JSON_TYPE)
    for read in (
        lambda: body.parse_images(sent, ONE_IMAGE, BODIES),
        lambda: body.parse_json(sent, GalleryCreate).model_dump_json(),
        lambda: body.parse_json(sent, KeyCreate).model_dump_json(),
        lambda: body.parse_json(sent, ChallengeCreate).model_dump_json(),
        lambda: (
            requests.read(requests.SearchUsersByImage, json.loads(data)).model_dump_json() if _is_json(data) else ""
        ),
    ):
        with suppress(LikenessError):
            read()


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def read_values(data: bytes) -> None:
    """JSON as bodies of any size are read: the values that Python's own reader finds."""
    with mock.patch.object(json_reader, "SMALL_BYTES", 8), mock.patch.object(json_reader, "_WINDOW", 5):
        plain = json_reader.load_json(data, VALUES)
        assert plain == json.loads(data)
        found, long_strings = json_reader.load_with_images(data)
    shown = json.dumps(found, default=lambda view: bytes(view).decode())
    assert json.loads(shown) == plain
    assert shown.count('"') >= 2 * long_strings


def read_backup(data: bytes) -> None:
    """A backup: what it holds is written to two places, and nowhere else."""
    with _file(data, ".tar") as path, tempfile.TemporaryDirectory(dir=path.parent) as folder:
        draft, own = Path(folder) / "draft", Path(folder) / "own"
        own.mkdir()
        with suppress(LikenessError):
            backup.unpack(path, draft, own)
        assert {one.name for one in Path(folder).iterdir()} <= {"draft", "own"}


def read_model(data: bytes) -> None:
    """A file that is to become a package: its graph, and the preset that its templates of photos tell for."""
    with _file(data, ".onnx") as path, suppress(LikenessError):
        graph_facts.read_file(path, onnx.checker.check_model)
    people = np.arange(PEOPLE).repeat(2)
    numbers = np.frombuffer(data[: len(data) // 2 * 2], np.int16).astype(np.float32) + 0.5
    if numbers.size:
        rows = np.resize(numbers, (2, 2 * PEOPLE, DIMENSION))
        units_of = rows / np.linalg.norm(rows, axis=2, keepdims=True)
        (best, *_) = presets.choose({"one": units_of[0], "two": units_of[1]}, people)
        assert np.isfinite(best.separation)


def read_signature(data: bytes) -> None:
    """The head of a request signed with AWS's Signature Version 4: a claim that covers what it must."""
    first, _, rest = data.partition(b"\n")
    path, _, query = first.partition(b"?")
    headers = [(name, value) for name, _, value in (line.partition(b":") for line in rest.split(b"\n"))]
    request = SignedRequest.of("POST", path.decode("latin-1"), query, headers)
    digest = hashlib.sha256(b"").hexdigest()
    claim = sigv4.read_claim(request, NOW)
    assert len(claim.signature) == 64
    assert {"host", "x-amz-date"} <= set(claim.signed_headers) or "date" in claim.signed_headers
    key = sigv4.signing_key("secret", claim.date, claim.region)
    assert not sigv4.is_signed_with(key, claim, request, digest), "nobody knows that secret"
    sigv4.check_body(request, digest)


def read_cursor(data: bytes) -> None:
    """A page's cursor: a number that a database holds."""
    key = pagination.decode_cursor("faces", data.decode("latin-1"))
    assert 0 <= key < 2**63
    assert pagination.encode_cursor("faces", key) == data.decode("latin-1")


CHALLENGES = Challenges(Sealer([bytes(KEY_BYTES)]), cast(SeenSignatures, None), lambda: NOW)
"""Nothing is spent here."""


def read_challenge(data: bytes) -> None:
    """The token of a challenge: only the server's own, unaltered, are read."""
    bound, steps = CHALLENGES.read(data.decode("latin-1"), "door", "people")
    assert (bound.key, bound.gallery) == ("door", "people")
    assert sorted(steps) == ["ahead", "left", "nearer", "right"]


def read_table(data: bytes) -> None:
    """A CSV of photos, on the command line."""
    with _file(data, ".csv") as path:
        assert sum(map(len, transfer.source_of(path, None, None).tar())) % tar_stream.BLOCK == 0


def read_upload(data: bytes) -> None:
    """A tar that the command line looks into before it is sent."""
    with _file(data, ".tar") as path:
        assert transfer.source_of(path, None, None).content in {"photos", "templates", "archive"}


def read_dump(data: bytes) -> None:
    """A dump of CompreFace's database."""
    with _file(data, ".sql") as path:
        for photo in compreface.open_dump(path).read():
            assert photo.subject is not None


class _file:  # noqa: N801 (a context manager, used as a function)
    """A file with that content, in memory where the system has such a folder."""

    def __init__(self, data: bytes, suffix: str) -> None:
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (a private name in it)
        self._opened = tempfile.NamedTemporaryFile(suffix=suffix, dir=folder)  # noqa: SIM115 (closed below)
        self._opened.write(data)
        self._opened.flush()

    def __enter__(self) -> Path:
        return Path(self._opened.name)

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def read_receipt(data: bytes) -> None:
    """A receipt of an erasure, and a model package's manifest."""
    if not _is_json(data):
        return
    document = json.loads(data)
    if isinstance(document, dict):
        with suppress(LikenessError):
            check_receipt(document)
        with suppress(ValueError):
            Manifest.model_validate(document)


def _images() -> list[bytes]:
    return [made for make in EVERY_KIND.values() if len(made := make()) <= LIMITS.max_bytes]


def _tars() -> list[bytes]:
    files = {"people.jsonl": b'{"photo":"a/1.jpg","subject":"a"}\n', "a/1.jpg": b"x" * 600, "n" * 120: b"long"}
    plain = tar_of(files)
    return [plain, gzip.compress(plain), gzip.compress(plain[:700]) + gzip.compress(plain[700:]), tar_of({})]


def _forms() -> list[bytes]:
    part = b'--line\r\nContent-Disposition: form-data; name="%s"; filename="a.jpg"\r\n\r\n%s\r\n'
    return [part % (b"images", b"photo") * 2 + part % (b"quality", b"low") + b"--line--\r\n", b"--line--\r\n"]


def _requests() -> list[bytes]:
    scope = "LKIA_DOOR/20270115/eu-central-1/rekognition/aws4_request"
    signed = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host;x-amz-date;x-amz-target, Signature={'0' * 64}"
    head = "/?a=b%20c\nhost:faces\nx-amz-date:20270115T080000Z\nx-amz-target:RekognitionService.ListFaces\n"
    return [f"{head}authorization:{signed}".encode(), f"{head}x-amz-content-sha256:{'a' * 64}".encode()]


def _documents() -> list[bytes]:
    found: list[Any] = [
        {"id": "staff", "store": "none", "metadata": {"a": [1, 2.5, None, "ü"]}},
        {
            "id": "door",
            "scopes": ["read"],
            "galleries": ["staff"],
            "rate": "10/s",
            "expires_at": "2035-01-01T00:00:00Z",
        },
        {"image": "aGVsbG8="},
        {"image": "data:image/png;base64,aGVsbG8="},
        {"operation": "enroll", "subject": "ada"},
        {"CollectionId": "staff", "Image": {"Bytes": "aGVsbG8="}, "MaxUsers": 3},
    ]
    return [json.dumps(one).encode() for one in found]


def _lines() -> list[bytes]:
    photo = {
        "photo": "a/1.jpg",
        "subject": "a",
        "name": "A",
        "metadata": {"x": 1},
        "expires_at": "2035-01-01T00:00:00Z",
    }
    face = {"subject": "a", "face_id": "a" * 32, "quality": 50, "box": {"x": 1, "y": 2, "width": 3, "height": 4}}
    return [b"".join(json.dumps(one).encode() + b"\n" for one in (photo, face, {"id": "a", "name": None}))]


def _dumps() -> Iterator[bytes]:
    yield b"\n".join((PROJECT / "tests" / "compreface_dump.sql").read_bytes().split(b"\n")[:400])
    yield (
        b"COPY public.subject (id, api_key, subject_name) FROM stdin;\n1\tk\tAda\n\\.\n"
        b"COPY public.embedding (id, subject_id, img_id) FROM stdin;\n1\t1\t1\n\\.\n"
        b"COPY public.img (id, content) FROM stdin;\n1\t\\\\xffd8\n\\.\n"
    )
    yield gzip.compress((PROJECT / "tests" / "compreface_dump.sql").read_bytes()[:6000])


def _manifests() -> list[bytes]:
    detector = (PROJECT / "models" / "yunet" / "manifest.json").read_bytes()
    embedder = json.loads((PROJECT / "models" / "sface" / "manifest.json").read_bytes())
    embedder["bias_card"]["groups"] = embedder["bias_card"]["groups"][:2]
    return [detector, json.dumps(embedder).encode(), liveness.manifest(b"a graph").model_dump_json().encode()]


def _backups() -> list[bytes]:
    files = {"likeness.db": b"database", "vault.key": b"key", f"{backup.OWN[0]}/a/manifest.json": b"{}"}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    head = {"format": backup.FORMAT, "version": backup.VERSION, "sha256": sums, "rows": {}}
    return [tar_of({backup.HEAD: json.dumps(head).encode(), **files}), tar_of(files)]


def _models() -> list[bytes]:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 112, 112])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 3, 112, 112])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [out]))
    people = np.random.default_rng(3).normal(0, 9000, (PEOPLE, DIMENSION)).repeat(2, axis=0)
    templates = np.concatenate([people, people * 2]).clip(-30_000, 30_000).astype(np.int16)
    return [model.SerializeToString(), templates.tobytes()]


TARGETS: Mapping[str, Target] = {
    "image": Target(read_image, _images, 256 * 1024),
    "tar": Target(read_tar, _tars, 64 * 1024),
    "npy": Target(read_npy, lambda: [npy_of(units(3, DIMENSION)), npy_of(units(1, DIMENSION).astype("f2"))], 8192),
    "lines": Target(read_lines, _lines, 4096),
    "multipart": Target(read_form, _forms, 4096),
    "json": Target(read_json, _documents, 4096),
    "values": Target(
        read_values, lambda: [*_documents(), b'{"images":["' + b"QUJD" * 9 + b'","\\"a\\\\",-1.5e3,null]}'], 4096
    ),
    "backup": Target(read_backup, _backups, 64 * 1024),
    "model": Target(read_model, _models, 16 * 1024),
    "sigv4": Target(read_signature, _requests, 4096),
    "cursor": Target(read_cursor, lambda: [pagination.encode_cursor("faces", 7).encode(), b"AAAA"], 64),
    "challenge": Target(
        read_challenge,
        lambda: [
            CHALLENGES.make(Bound("door", "people", operation, subject)).token.encode()
            for operation, subject in (("identify", None), ("enroll", "ada"))
        ],
        512,
    ),
    "csv": Target(read_table, lambda: [b'subject,path,metadata\nada,ada.jpg,"{""a"":1}"\nbob,,\n'], 4096),
    "upload": Target(read_upload, _tars, 64 * 1024),
    "dump": Target(read_dump, lambda: list(_dumps()), 8192),
    "documents": Target(read_receipt, _manifests, 64 * 1024),
}


def run(name: str, data: bytes) -> None:
    """Give the input to the target of that name. Raises what a target must not raise."""
    with suppress(LikenessError):
        TARGETS[name].run(data)
