"""Rekognition's API as boto3 uses it, unmodified, against a real server with real photos."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from PIL import Image

pytest.importorskip("boto3", reason="the dev extra brings boto3")

import botocore.session
from botocore import UNSIGNED, xform_name
from botocore.exceptions import ClientError
from likeness_client import Client

from app.db.encryption import encode_key
from app.db.schema import API_KEYS, FACES
from app.errors import DatabaseBusy, LikenessError, Overloaded, Unusable
from app.features.rekognition.errors import answer_of
from app.features.rekognition.routes import TARGETS
from tests.support import aws
from tests.support.access import every_key
from tests.support.calibrating import add_templates
from tests.support.following import PAST, engine_of
from tests.support.live import LiveServer, serving
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, encoded, running

GREY = encoded(np.full((200, 200, 3), 128, np.uint8))
NOBODY = "00000000-0000-0000-0000-000000000000"


@dataclass
class Place:
    """A server, and who may do what there."""

    server: LiveServer
    own: Client
    all: Any
    """A client of Rekognition that may do everything."""

    def client(self, *scopes: str, galleries: list[str] | None = None, **terms: Any) -> Any:
        made = self.own.create_key(scopes, galleries=galleries, aws=True, **terms)
        return aws.client(self.server.url, made.aws_access_key_id, made.aws_secret_access_key)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with (
        serving(
            tmp_path_factory.mktemp("rekognition") / "data",
            {"FAILED_KEYS": "100000/s", "ENCRYPTION_KEY": encode_key(bytes(range(32)))},
        ) as server,
        Client(server.url, server.key) as own,
    ):
        made = own.create_key(["admin", "templates"], key_id="all-of-it", aws=True)
        yield Place(server, own, aws.client(server.url, made.aws_access_key_id, made.aws_secret_access_key))


@pytest.fixture(scope="module")
def rekognition(place: Place) -> Any:
    return place.all


@pytest.fixture
def collection(rekognition: Any) -> Iterator[str]:
    name = f"c-{uuid.uuid4().hex}"
    rekognition.create_collection(CollectionId=name)
    yield name
    rekognition.delete_collection(CollectionId=name)


@pytest.fixture(scope="module")
def people(rekognition: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """A collection with three photos of two people that nothing is changed in, and its faces' ids by photo."""
    name = "people"
    rekognition.create_collection(CollectionId=name)
    faces = {
        photo: index(rekognition, name, data, photo)[0]
        for photo, data in {"collins": COLLINS, "again": AGAIN, "hopper": HOPPER}.items()
    }
    yield name, faces
    rekognition.delete_collection(CollectionId=name)


def image(data: bytes) -> dict[str, bytes]:
    return {"Bytes": data}


def index(rekognition: Any, collection: str, photo: bytes, name: str = "photo") -> list[str]:
    """The ids of the photo's faces, largest first."""
    made = rekognition.index_faces(CollectionId=collection, Image=image(photo), ExternalImageId=name)
    return [record["Face"]["FaceId"] for record in made["FaceRecords"]]


def refusal(call: Callable[..., Any], name: str, **arguments: Any) -> ClientError:
    """The exception, after making sure that it is the one of this name, as the client knows it."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    assert caught.value.response["Error"]["Code"] == name, caught.value
    return caught.value


def test_collections_are_made_described_listed_and_deleted(rekognition: Any, place: Place) -> None:
    made = rekognition.create_collection(CollectionId="my.photos_1", Tags={"team": "door"})
    assert (made["StatusCode"], made["FaceModelVersion"].partition("@")[0]) == (200, "sface")
    assert made["CollectionArn"] == f"aws:rekognition:{aws.REGION}:000000000000:collection/my.photos_1"
    assert place.own.gallery("my.photos_1").metadata == {"tags": {"team": "door"}}
    assert place.own.gallery("my.photos_1").store == "none"
    with pytest.raises(rekognition.exceptions.ResourceAlreadyExistsException):
        rekognition.create_collection(CollectionId="my.photos_1")
    index(rekognition, "my.photos_1", BOTH)
    rekognition.create_user(CollectionId="my.photos_1", UserId="eileen")
    described = rekognition.describe_collection(CollectionId="my.photos_1")
    assert (described["FaceCount"], described["UserCount"]) == (2, 1)
    assert described["CollectionARN"] == f"arn:{made['CollectionArn']}", "AWS writes it so, and the other one without"
    assert aws.age_s(described["CreationTimestamp"]) < 600
    assert "my.photos_1" in rekognition.list_collections()["CollectionIds"]
    assert rekognition.delete_collection(CollectionId="my.photos_1")["StatusCode"] == 200
    for call in (rekognition.delete_collection, rekognition.describe_collection, rekognition.list_users):
        error = refusal(call, "ResourceNotFoundException", CollectionId="my.photos_1")
        assert isinstance(error, rekognition.exceptions.ResourceNotFoundException)
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 400


@pytest.mark.long
def test_lists_are_paged(rekognition: Any) -> None:
    names = [f"page-{number}" for number in range(3)]
    for name in names:
        rekognition.create_collection(CollectionId=name)
    paginator = rekognition.get_paginator("list_collections")
    pages = list(paginator.paginate(PaginationConfig={"PageSize": 2}))
    listed = [name for page in pages for name in page["CollectionIds"]]
    assert [name for name in listed if name in names] == names
    assert all(len(page["CollectionIds"]) == len(page["FaceModelVersions"]) <= 2 for page in pages)
    for wrong in ("nonsense", "", pages[0]["NextToken"][:-1]):
        with pytest.raises(rekognition.exceptions.InvalidPaginationTokenException):
            rekognition.list_collections(NextToken=wrong)
    refusal(rekognition.list_collections, "InvalidParameterException", MaxResults=4097)
    for name in names:
        rekognition.delete_collection(CollectionId=name)


def test_faces_are_indexed_with_what_is_known_of_them(rekognition: Any, collection: str) -> None:
    made = rekognition.index_faces(
        CollectionId=collection, Image=image(BOTH), ExternalImageId="both:1", DetectionAttributes=["ALL"]
    )
    assert made["UnindexedFaces"] == []
    records = made["FaceRecords"]
    areas = [r["Face"]["BoundingBox"]["Width"] * r["Face"]["BoundingBox"]["Height"] for r in records]
    assert len(records) == 2
    assert areas == sorted(areas, reverse=True)
    for record in records:
        face, detail = record["Face"], record["FaceDetail"]
        assert face["ExternalImageId"] == "both:1"
        assert face["BoundingBox"] == detail["BoundingBox"]
        assert face["Confidence"] == detail["Confidence"] > 80
        assert "UserId" not in face
        box, points = detail["BoundingBox"], {one["Type"]: one for one in detail["Landmarks"]}
        assert set(points) == {"eyeLeft", "eyeRight", "nose", "mouthLeft", "mouthRight"}
        assert points["eyeLeft"]["X"] < points["eyeRight"]["X"]
        assert points["eyeLeft"]["Y"] < points["nose"]["Y"] < points["mouthLeft"]["Y"]
        assert box["Left"] < points["nose"]["X"] < box["Left"] + box["Width"]
        assert box["Top"] < points["nose"]["Y"] < box["Top"] + box["Height"]
        assert {"AgeRange", "Gender", "Smile", "Emotions", "Beard", "FaceOccluded"}.isdisjoint(detail)
    assert len({record["Face"]["ImageId"] for record in records}) == 1
    listed = rekognition.list_faces(CollectionId=collection)["Faces"]
    assert sorted(listed, key=str) == sorted((record["Face"] for record in records), key=str)


def test_the_same_photo_under_the_same_name_is_stored_once(rekognition: Any, collection: str) -> None:
    first = index(rekognition, collection, BOTH, "one")
    assert index(rekognition, collection, BOTH, "one") == first
    assert set(index(rekognition, collection, BOTH, "two")).isdisjoint(first)
    assert rekognition.describe_collection(CollectionId=collection)["FaceCount"] == 4


def test_faces_that_are_not_indexed_are_told_with_their_reasons(rekognition: Any, collection: str) -> None:
    made = rekognition.index_faces(CollectionId=collection, Image=image(BOTH), MaxFaces=1)
    assert [one["Reasons"] for one in made["UnindexedFaces"]] == [["EXCEEDS_MAX_FACES"]]
    kept, left = made["FaceRecords"][0]["FaceDetail"], made["UnindexedFaces"][0]["FaceDetail"]
    assert kept["BoundingBox"]["Width"] > left["BoundingBox"]["Width"]
    with Image.open(io.BytesIO(COLLINS)) as photo:
        small = photo.convert("RGB").resize((photo.width // 9, photo.height // 9))
    tiny = encoded(np.asarray(small.resize((small.width * 6, small.height * 6)), np.uint8))
    blurred = rekognition.index_faces(CollectionId=collection, Image=image(tiny), QualityFilter="HIGH")
    assert blurred["FaceRecords"] == []
    assert blurred["UnindexedFaces"]
    assert "EXCEEDS_MAX_FACES" not in blurred["UnindexedFaces"][0]["Reasons"]
    taken = rekognition.index_faces(CollectionId=collection, Image=image(tiny), QualityFilter="NONE")
    assert (len(taken["FaceRecords"]), taken["UnindexedFaces"]) == (1, [])
    nobody = rekognition.index_faces(CollectionId=collection, Image=image(GREY))
    assert (nobody["FaceRecords"], nobody["UnindexedFaces"]) == ([], [])


@pytest.mark.long
def test_faces_are_listed_by_page_user_and_id(rekognition: Any, collection: str) -> None:
    collins, hopper = index(rekognition, collection, COLLINS)[0], index(rekognition, collection, HOPPER)[0]
    rekognition.create_user(CollectionId=collection, UserId="eileen")
    rekognition.associate_faces(CollectionId=collection, UserId="eileen", FaceIds=[collins])

    def ids(**which: Any) -> list[str]:
        return [face["FaceId"] for face in rekognition.list_faces(CollectionId=collection, **which)["Faces"]]

    assert sorted(ids()) == sorted([collins, hopper])
    assert ids(UserId="eileen") == [collins]
    assert rekognition.list_faces(CollectionId=collection, UserId="eileen")["Faces"][0]["UserId"] == "eileen"
    assert ids(FaceIds=[hopper, NOBODY]) == [hopper]
    assert ids(UserId="eileen", FaceIds=[hopper]) == []
    pages = list(
        rekognition.get_paginator("list_faces").paginate(CollectionId=collection, PaginationConfig={"PageSize": 1})
    )
    assert sorted(face["FaceId"] for page in pages for face in page["Faces"]) == sorted([collins, hopper])
    token = rekognition.list_faces(CollectionId=collection, MaxResults=1)["NextToken"]
    with pytest.raises(rekognition.exceptions.InvalidPaginationTokenException):
        rekognition.list_faces(CollectionId=collection, NextToken=token, UserId="eileen")
    with pytest.raises(rekognition.exceptions.ResourceNotFoundException):
        rekognition.list_faces(CollectionId=collection, UserId="grace")


def test_faces_are_deleted_unless_they_are_a_users(rekognition: Any, collection: str) -> None:
    collins, hopper = index(rekognition, collection, COLLINS)[0], index(rekognition, collection, HOPPER)[0]
    rekognition.create_user(CollectionId=collection, UserId="eileen")
    rekognition.associate_faces(CollectionId=collection, UserId="eileen", FaceIds=[collins])
    done = rekognition.delete_faces(CollectionId=collection, FaceIds=[collins, hopper, NOBODY])
    assert done["DeletedFaces"] == [hopper]
    assert done["UnsuccessfulFaceDeletions"] == [
        {"FaceId": collins, "UserId": "eileen", "Reasons": ["ASSOCIATED_TO_AN_EXISTING_USER"]},
        {"FaceId": NOBODY, "Reasons": ["FACE_NOT_FOUND"]},
    ]
    assert rekognition.describe_collection(CollectionId=collection)["FaceCount"] == 1
    rekognition.disassociate_faces(CollectionId=collection, UserId="eileen", FaceIds=[collins])
    assert rekognition.delete_faces(CollectionId=collection, FaceIds=[collins])["DeletedFaces"] == [collins]


@pytest.mark.long
def test_a_face_with_a_damaged_template_is_listed_and_deleted(rekognition: Any, place: Place, collection: str) -> None:
    collins, hopper = index(rekognition, collection, COLLINS)[0], index(rekognition, collection, HOPPER)[0]
    mine = FACES.c.face_id == uuid.UUID(hopper).hex
    with engine_of(f"sqlite:///{place.server.data_dir / 'likeness.db'}").begin() as connection:
        sealed = connection.execute(sa.select(FACES.c.template).where(mine)).scalar_one()
        connection.execute(sa.update(FACES).where(mine).values(template=sealed[:-1] + bytes([sealed[-1] ^ 1])))
    assert {face["FaceId"] for face in rekognition.list_faces(CollectionId=collection)["Faces"]} == {collins, hopper}
    assert rekognition.delete_faces(CollectionId=collection, FaceIds=[hopper])["DeletedFaces"] == [hopper]


def test_a_face_finds_the_same_person(rekognition: Any, people: tuple[str, dict[str, str]]) -> None:
    name, faces = people
    found = rekognition.search_faces(CollectionId=name, FaceId=faces["collins"])
    assert found["SearchedFaceId"] == faces["collins"]
    assert [match["Face"]["FaceId"] for match in found["FaceMatches"]] == [faces["again"]]
    assert found["FaceMatches"][0]["Face"]["ExternalImageId"] == "again"
    assert found["FaceMatches"][0]["Similarity"] > 99
    everybody = rekognition.search_faces(CollectionId=name, FaceId=faces["collins"], FaceMatchThreshold=0)
    similarities = [match["Similarity"] for match in everybody["FaceMatches"]]
    assert similarities == sorted(similarities, reverse=True)
    assert {match["Face"]["FaceId"] for match in everybody["FaceMatches"]} == {faces["again"], faces["hopper"]}
    one = rekognition.search_faces(CollectionId=name, FaceId=faces["collins"], FaceMatchThreshold=0, MaxFaces=1)
    assert one["FaceMatches"] == everybody["FaceMatches"][:1]
    error = refusal(rekognition.search_faces, "InvalidParameterException", CollectionId=name, FaceId=NOBODY)
    assert "not found in the collection" in str(error)


def test_a_photo_finds_the_person_of_its_largest_face(rekognition: Any, people: tuple[str, dict[str, str]]) -> None:
    name, faces = people
    found = rekognition.search_faces_by_image(CollectionId=name, Image=image(COLLINS))
    assert {match["Face"]["FaceId"] for match in found["FaceMatches"]} == {faces["collins"], faces["again"]}
    assert found["FaceMatches"][0]["Face"]["FaceId"] == faces["collins"]
    assert found["SearchedFaceConfidence"] > 80
    details = rekognition.detect_faces(Image=image(COLLINS))["FaceDetails"]
    assert found["SearchedFaceBoundingBox"] == details[0]["BoundingBox"]
    with pytest.raises(rekognition.exceptions.InvalidParameterException, match="no faces in the image"):
        rekognition.search_faces_by_image(CollectionId=name, Image=image(GREY))


@pytest.mark.long
def test_several_faces_of_one_user_are_several_matches(rekognition: Any, collection: str) -> None:
    faces = [index(rekognition, collection, photo)[0] for photo in (COLLINS, AGAIN)]
    hopper = index(rekognition, collection, HOPPER)[0]
    before = rekognition.search_faces_by_image(CollectionId=collection, Image=image(AGAIN), FaceMatchThreshold=0)
    rekognition.create_user(CollectionId=collection, UserId="eileen")
    rekognition.associate_faces(CollectionId=collection, UserId="eileen", FaceIds=faces)
    after = rekognition.search_faces_by_image(CollectionId=collection, Image=image(AGAIN), FaceMatchThreshold=0)

    def scores(found: Any) -> list[tuple[str, float]]:
        return [(match["Face"]["FaceId"], round(match["Similarity"], 3)) for match in found["FaceMatches"]]

    assert scores(after) == scores(before)
    assert [match["Face"].get("UserId") for match in after["FaceMatches"]] == ["eileen", "eileen", None]
    assert after["FaceMatches"][2]["Face"]["FaceId"] == hopper
    two = rekognition.search_faces_by_image(
        CollectionId=collection, Image=image(AGAIN), FaceMatchThreshold=0, MaxFaces=1
    )
    assert scores(two) == scores(before)[:1]


def test_faces_are_compared(rekognition: Any) -> None:
    found = rekognition.compare_faces(SourceImage=image(AGAIN), TargetImage=image(BOTH))
    assert len(found["FaceMatches"]) == len(found["UnmatchedFaces"]) == 1
    assert found["FaceMatches"][0]["Similarity"] > 99
    boxes = [one["BoundingBox"] for one in rekognition.detect_faces(Image=image(BOTH))["FaceDetails"]]
    assert found["FaceMatches"][0]["Face"]["BoundingBox"] in boxes
    assert found["UnmatchedFaces"][0]["BoundingBox"] in boxes
    assert found["SourceImageFace"]["Confidence"] > 80
    strangers = rekognition.compare_faces(SourceImage=image(HOPPER), TargetImage=image(COLLINS))
    assert strangers["FaceMatches"] == []
    lenient = rekognition.compare_faces(SourceImage=image(HOPPER), TargetImage=image(COLLINS), SimilarityThreshold=0)
    assert lenient["UnmatchedFaces"] == []
    assert 0 <= lenient["FaceMatches"][0]["Similarity"] < 80
    same = rekognition.compare_faces(SourceImage=image(HOPPER), TargetImage=image(HOPPER))
    assert same["FaceMatches"][0]["Similarity"] > 99.99
    empty = rekognition.compare_faces(SourceImage=image(HOPPER), TargetImage=image(GREY))
    assert empty["FaceMatches"] == empty["UnmatchedFaces"] == []
    with pytest.raises(rekognition.exceptions.InvalidParameterException):
        rekognition.compare_faces(SourceImage=image(GREY), TargetImage=image(HOPPER))


def test_faces_are_detected(rekognition: Any, astronaut: np.ndarray) -> None:
    (face,) = rekognition.detect_faces(Image=image(encoded(astronaut)), Attributes=["DEFAULT"])["FaceDetails"]
    box = face["BoundingBox"]
    assert 0.3 < box["Left"] + box["Width"] / 2 < 0.6
    assert 0.1 < box["Top"] + box["Height"] / 2 < 0.4
    assert 0 < face["Quality"]["Brightness"] < 100
    assert 0 < face["Quality"]["Sharpness"] <= 100
    leaning = Image.fromarray(astronaut).rotate(-20)  # clockwise
    (turned,) = rekognition.detect_faces(Image=image(encoded(np.asarray(leaning, np.uint8))))["FaceDetails"]
    assert turned["Pose"]["Roll"] - face["Pose"]["Roll"] == pytest.approx(20, abs=6)
    dark = rekognition.detect_faces(Image=image(encoded((astronaut * 0.4).astype(np.uint8))))["FaceDetails"][0]
    assert dark["Quality"]["Brightness"] < face["Quality"]["Brightness"] / 2
    assert rekognition.detect_faces(Image=image(GREY))["FaceDetails"] == []


def test_users_are_made_listed_and_deleted(rekognition: Any, collection: str) -> None:
    for name in ("eileen", "grace:1"):
        rekognition.create_user(CollectionId=collection, UserId=name)
    with pytest.raises(rekognition.exceptions.ConflictException):
        rekognition.create_user(CollectionId=collection, UserId="eileen")
    (face,) = index(rekognition, collection, COLLINS)
    rekognition.associate_faces(CollectionId=collection, UserId="eileen", FaceIds=[face])
    assert rekognition.list_users(CollectionId=collection)["Users"] == [
        {"UserId": "eileen", "UserStatus": "ACTIVE"},
        {"UserId": "grace:1", "UserStatus": "CREATED"},
    ]
    first = rekognition.list_users(CollectionId=collection, MaxResults=1)
    rest = rekognition.list_users(CollectionId=collection, MaxResults=1, NextToken=first["NextToken"])
    assert [user["UserId"] for user in rest["Users"]] == ["grace:1"]
    assert "NextToken" not in rest
    refusal(rekognition.list_users, "InvalidPaginationTokenException", CollectionId=collection, NextToken="x")
    rekognition.delete_user(CollectionId=collection, UserId="eileen")
    with pytest.raises(rekognition.exceptions.ResourceNotFoundException):
        rekognition.delete_user(CollectionId=collection, UserId="eileen")
    (left,) = rekognition.list_faces(CollectionId=collection)["Faces"]
    assert left["FaceId"] == face
    assert "UserId" not in left


def test_faces_are_associated_with_users_and_taken_back(rekognition: Any, collection: str) -> None:
    collins, again, hopper = (index(rekognition, collection, photo)[0] for photo in (COLLINS, AGAIN, HOPPER))
    for name in ("eileen", "grace"):
        rekognition.create_user(CollectionId=collection, UserId=name)

    def associate(user: str, *faces: str, **more: Any) -> Any:
        return rekognition.associate_faces(CollectionId=collection, UserId=user, FaceIds=list(faces), **more)

    done = associate("eileen", collins)
    assert (done["AssociatedFaces"], done["UserStatus"]) == ([{"FaceId": collins}], "ACTIVE")
    done = associate("eileen", collins, hopper, again, NOBODY)
    assert done["AssociatedFaces"] == [{"FaceId": again}]
    unlike, missing = done["UnsuccessfulFaceAssociations"]
    assert (unlike["FaceId"], unlike["UserId"], unlike["Reasons"]) == (hopper, "eileen", ["LOW_MATCH_CONFIDENCE"])
    assert unlike["Confidence"] < 75
    assert missing == {"FaceId": NOBODY, "Reasons": ["FACE_NOT_FOUND"]}
    done = associate("grace", collins, hopper)
    assert done["AssociatedFaces"] == [{"FaceId": hopper}]
    assert done["UnsuccessfulFaceAssociations"] == [
        {"FaceId": collins, "UserId": "eileen", "Reasons": ["ASSOCIATED_TO_A_DIFFERENT_USER"]}
    ]
    assert associate("eileen", hopper, UserMatchThreshold=0)["AssociatedFaces"] == []
    with pytest.raises(rekognition.exceptions.ResourceNotFoundException):
        associate("nobody", collins)

    done = rekognition.disassociate_faces(
        CollectionId=collection, UserId="eileen", FaceIds=[collins, again, hopper, NOBODY]
    )
    assert [one["FaceId"] for one in done["DisassociatedFaces"]] == [collins, again]
    assert done["UserStatus"] == "CREATED"
    assert [(one["FaceId"], one["Reasons"]) for one in done["UnsuccessfulFaceDisassociations"]] == [
        (hopper, ["ASSOCIATED_TO_A_DIFFERENT_USER"]),
        (NOBODY, ["FACE_NOT_FOUND"]),
    ]
    done = rekognition.disassociate_faces(CollectionId=collection, UserId="eileen", FaceIds=[collins])
    assert done["DisassociatedFaces"] == done["UnsuccessfulFaceDisassociations"] == []
    assert associate("eileen", hopper)["UnsuccessfulFaceAssociations"][0]["UserId"] == "grace"
    found = rekognition.search_faces(CollectionId=collection, FaceId=collins)["FaceMatches"]
    assert [match["Face"]["FaceId"] for match in found] == [again]


def test_users_are_found(rekognition: Any, collection: str) -> None:
    collins, again, hopper = (index(rekognition, collection, photo)[0] for photo in (COLLINS, AGAIN, HOPPER))
    for user, face in {"eileen": collins, "grace": hopper}.items():
        rekognition.create_user(CollectionId=collection, UserId=user)
        rekognition.associate_faces(CollectionId=collection, UserId=user, FaceIds=[face])
    found = rekognition.search_users(CollectionId=collection, FaceId=again)
    assert [match["User"] for match in found["UserMatches"]] == [{"UserId": "eileen", "UserStatus": "ACTIVE"}]
    assert found["SearchedFace"] == {"FaceId": again}
    assert "SearchedUser" not in found
    others = rekognition.search_users(CollectionId=collection, UserId="eileen", UserMatchThreshold=0)
    assert [match["User"]["UserId"] for match in others["UserMatches"]] == ["grace"]
    assert others["SearchedUser"] == {"UserId": "eileen"}
    everybody = rekognition.search_users(CollectionId=collection, FaceId=again, UserMatchThreshold=0)
    assert [match["User"]["UserId"] for match in everybody["UserMatches"]] == ["eileen", "grace"]
    one = rekognition.search_users(CollectionId=collection, FaceId=again, UserMatchThreshold=0, MaxUsers=1)
    assert one["UserMatches"] == everybody["UserMatches"][:1]
    for which in ({}, {"UserId": "eileen", "FaceId": again}):
        refusal(rekognition.search_users, "InvalidParameterException", CollectionId=collection, **which)
    refusal(rekognition.search_users, "ResourceNotFoundException", CollectionId=collection, UserId="nobody")

    seen = rekognition.search_users_by_image(CollectionId=collection, Image=image(BOTH))
    assert len(seen["UserMatches"]) == len(seen["UnsearchedFaces"]) == 1
    assert seen["UnsearchedFaces"][0]["Reasons"] == ["FACE_NOT_LARGEST"]
    box = seen["SearchedFace"]["FaceDetail"]["BoundingBox"]
    assert box["Width"] > seen["UnsearchedFaces"][0]["FaceDetails"]["BoundingBox"]["Width"]
    nobody = rekognition.search_users_by_image(CollectionId=collection, Image=image(GREY))
    assert nobody["UserMatches"] == []
    assert "SearchedFace" not in nobody


def test_enroll_alone_does_not_learn_how_alike_users_and_faces_are(
    rekognition: Any, collection: str, place: Place
) -> None:
    mine, other = (index(rekognition, collection, photo)[0] for photo in (COLLINS, HOPPER))
    alone = place.client("enroll")
    for user in ("eileen", "grace"):
        alone.create_user(CollectionId=collection, UserId=user)
    alone.associate_faces(CollectionId=collection, UserId="eileen", FaceIds=[mine])  # nothing is compared
    for threshold in (0, 75, 100):
        refusal(
            alone.associate_faces,
            "AccessDeniedException",
            CollectionId=collection,
            UserId="eileen",
            FaceIds=[other],
            UserMatchThreshold=threshold,
        )


@pytest.mark.long
def test_a_user_has_a_hundred_faces_at_most(rekognition: Any, collection: str, place: Place) -> None:
    embedding = place.own.embed(COLLINS).faces[0].embedding
    with place.server.client() as api:
        add_templates(api, collection, ["eileen"] * 100, np.tile(np.array(embedding, np.float32), (100, 1)))
    assert place.own.subject(collection, "eileen").face_count == 100
    (more,) = index(rekognition, collection, AGAIN)
    with pytest.raises(rekognition.exceptions.ServiceQuotaExceededException):
        rekognition.associate_faces(CollectionId=collection, UserId="eileen", FaceIds=[more])


def test_a_request_that_comes_again_is_answered_as_before(rekognition: Any, collection: str) -> None:
    (face,) = index(rekognition, collection, COLLINS)
    for _ in range(2):
        rekognition.create_user(CollectionId=collection, UserId="eileen", ClientRequestToken="token-1")
    with pytest.raises(rekognition.exceptions.IdempotentParameterMismatchException):
        rekognition.create_user(CollectionId=collection, UserId="grace", ClientRequestToken="token-1")
    asked = {"CollectionId": collection, "UserId": "eileen", "FaceIds": [face], "ClientRequestToken": "token-1"}
    first = rekognition.associate_faces(**asked)
    again = rekognition.associate_faces(**asked)
    assert again["AssociatedFaces"] == first["AssociatedFaces"] == [{"FaceId": face}]
    assert rekognition.associate_faces(**asked | {"ClientRequestToken": "token-2"})["AssociatedFaces"] == []
    for _ in range(2):
        rekognition.delete_user(CollectionId=collection, UserId="eileen", ClientRequestToken="token-3")
    assert rekognition.list_users(CollectionId=collection)["Users"] == []


def test_images_that_are_none_are_refused_by_name(rekognition: Any, collection: str) -> None:
    def calls(picture: dict[str, Any]) -> Iterator[Callable[[], Any]]:
        yield lambda: rekognition.detect_faces(Image=picture)
        yield lambda: rekognition.index_faces(CollectionId=collection, Image=picture)
        yield lambda: rekognition.search_faces_by_image(CollectionId=collection, Image=picture)
        yield lambda: rekognition.search_users_by_image(CollectionId=collection, Image=picture)
        yield lambda: rekognition.compare_faces(SourceImage=picture, TargetImage=image(COLLINS))
        yield lambda: rekognition.compare_faces(SourceImage=image(COLLINS), TargetImage=picture)

    wrong: dict[str, dict[str, Any]] = {
        "InvalidS3ObjectException": {"S3Object": {"Bucket": "bucket", "Name": "photo.jpg"}},
        "InvalidImageFormatException": image(b"no image at all"),
        "ImageTooLargeException": image(COLLINS + bytes(5 * 1024 * 1024)),
        "InvalidParameterException": {},
    }
    for name, picture in wrong.items():
        for call in calls(picture):
            error = refusal(call, name)
            assert isinstance(error, getattr(rekognition.exceptions, name))
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    cut = image(COLLINS[: len(COLLINS) // 2])
    refusal(rekognition.detect_faces, "InvalidImageFormatException", Image=cut)
    both = image(COLLINS) | {"S3Object": {"Bucket": "bucket", "Name": "photo.jpg"}}
    refusal(rekognition.detect_faces, "InvalidParameterException", Image=both)


def test_parameters_that_break_a_bound_are_refused(rekognition: Any, collection: str) -> None:
    photo, here = image(COLLINS), {"CollectionId": collection}
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (rekognition.create_collection, {"CollectionId": "with space"}),
        (rekognition.create_collection, {"CollectionId": "ä"}),
        (rekognition.create_collection, {"CollectionId": "x" * 256}),
        (rekognition.create_collection, {"CollectionId": "new\n"}),
        (rekognition.index_faces, here | {"Image": photo, "ExternalImageId": "a b"}),
        (rekognition.index_faces, here | {"Image": photo, "QualityFilter": "BEST"}),
        (rekognition.index_faces, here | {"Image": photo, "DetectionAttributes": ["AGE"]}),
        (rekognition.search_faces, here | {"FaceId": "not-a-face"}),
        (rekognition.search_faces, here | {"FaceId": NOBODY, "MaxFaces": 4097}),
        (rekognition.search_faces, here | {"FaceId": NOBODY, "FaceMatchThreshold": 100.5}),
        (rekognition.create_user, here | {"UserId": "~0123"}),
        (rekognition.create_user, here | {"UserId": "x" * 129}),
        (rekognition.create_user, here | {"UserId": "x", "ClientRequestToken": "a.b"}),
        (rekognition.associate_faces, here | {"UserId": "x", "FaceIds": [NOBODY] * 101}),
        (rekognition.list_users, here | {"MaxResults": 501}),
    ]
    for call, arguments in wrong:
        error = refusal(call, "InvalidParameterException", **arguments)
        assert "validation error" in str(error)
        assert "with space" not in str(error)


@pytest.mark.long
def test_galleries_filled_by_our_own_api_are_collections(rekognition: Any, place: Place, collection: str) -> None:
    enrolled = place.own.enroll(collection, "eileen", [COLLINS]).enrolled[0]
    found = rekognition.search_faces_by_image(CollectionId=collection, Image=image(AGAIN))["FaceMatches"][0]["Face"]
    assert found["UserId"] == "eileen"
    assert found["FaceId"].replace("-", "") == enrolled.face_id
    assert found["BoundingBox"]["Width"] > 0
    assert found["Confidence"] > 80


@pytest.mark.long
def test_people_with_names_that_aws_has_none_of_are_found_all_the_same(place: Place, collection: str) -> None:
    place.own.enroll(collection, "Eileen Collins, Γ", [COLLINS])
    client = place.client("read", "recognize")
    client.meta.events.unregister("before-parse.rekognition", aws.check_answer)  # its model forbids such names
    found = client.search_faces_by_image(CollectionId=collection, Image=image(AGAIN))["FaceMatches"]
    assert [match["Face"]["UserId"] for match in found] == ["Eileen Collins, Γ"]
    assert client.list_users(CollectionId=collection)["Users"][0]["UserId"] == "Eileen Collins, Γ"


def asked_of(collection: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every operation's scope, decided apart from the code that decides, and a request that changes nothing."""
    grey, own = {"Image": image(GREY)}, {"CollectionId": collection}
    user = own | {"UserId": "eileen"}
    faces = user | {"FaceIds": [NOBODY]}
    return {
        "CreateCollection": ("admin", own),
        "DescribeCollection": ("read", own),
        "ListCollections": ("read", {}),
        "DeleteCollection": ("admin", {"CollectionId": "nothing"}),
        "IndexFaces": ("enroll", own | grey),
        "ListFaces": ("read", own),
        "DeleteFaces": ("delete", own | {"FaceIds": [NOBODY]}),
        "SearchFaces": ("recognize", own | {"FaceId": NOBODY}),
        "SearchFacesByImage": ("recognize", own | grey),
        "CompareFaces": ("recognize", {"SourceImage": image(GREY), "TargetImage": image(GREY)}),
        "DetectFaces": ("recognize", grey),
        "CreateUser": ("enroll", user),
        "DeleteUser": ("delete", own | {"UserId": "nobody"}),
        "ListUsers": ("read", own),
        "AssociateFaces": ("enroll", faces),
        "DisassociateFaces": ("enroll", faces),
        "SearchUsers": ("recognize", own | {"FaceId": NOBODY}),
        "SearchUsersByImage": ("recognize", own | grey),
    }


EVERYWHERE = {"CreateCollection", "DeleteCollection"}


def test_every_operation_with_every_scope_and_every_way_to_have_no_right(place: Place, collection: str) -> None:
    place.all.create_user(CollectionId=collection, UserId="eileen")
    place.all.create_collection(CollectionId="elsewhere")
    table = asked_of(collection)
    assert table.keys() == TARGETS.keys()
    good = {name: heard(place.all, name, arguments) for name, (_, arguments) in table.items()}
    keys = {(scope, way): key_for(place, scope, way, collection) for scope, way in every_key()}
    end_expired(place.server)
    got, due = {}, {}
    for (scope, way), client in keys.items():
        for name, (needed, arguments) in table.items():
            got[scope, way, name] = heard(client, name, arguments)
            due[scope, way, name] = due_for(name, scope, way, needed, good)
    assert got == due
    assert keys["read", "own gallery"].list_collections()["CollectionIds"] == [collection]
    assert place.all.describe_collection(CollectionId=collection)["FaceCount"] == 0
    assert [user["UserId"] for user in place.all.list_users(CollectionId=collection)["Users"]] == ["eileen"]
    place.all.delete_collection(CollectionId="elsewhere")


def key_for(place: Place, scope: str, way: str, collection: str) -> Any:
    """A client with a key of this scope."""
    if way == "none":
        return aws.client(place.server.url, signature_version=UNSIGNED)
    galleries = {"own gallery": [collection], "other gallery": ["elsewhere"]}.get(way)
    end = datetime.now(UTC) + timedelta(days=1) if way == "expired" else None
    made = place.own.create_key([scope], galleries=galleries, expires_at=end, aws=True)
    if way == "revoked":
        place.own.revoke_key(made.id)
    secret = "x" * 40 if way == "wrong" else made.aws_secret_access_key
    return aws.client(place.server.url, made.aws_access_key_id, secret)


def end_expired(server: LiveServer) -> None:
    """As if the end of those keys that have one had come."""
    with engine_of(f"sqlite:///{server.data_dir / 'likeness.db'}").begin() as connection:
        changed = connection.execute(
            sa.update(API_KEYS).where(API_KEYS.c.expires_at.is_not(None)).values(expires_at=PAST)
        )
    assert changed.rowcount == [way for _, way in every_key()].count("expired")


def heard(client: Any, operation: str, arguments: dict[str, Any]) -> str:
    """The error's name; empty where there is none."""
    try:
        getattr(client, xform_name(operation))(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def due_for(name: str, scope: str, way: str, needed: str, good: dict[str, str]) -> str:
    refusals = {
        "none": "MissingAuthenticationTokenException",
        "wrong": "InvalidSignatureException",
        "expired": "UnrecognizedClientException",
        "revoked": "UnrecognizedClientException",
    }
    if way in refusals:
        return refusals[way]
    if scope not in {needed, "admin"} or (name in EVERYWHERE and way != "unrestricted"):
        return "AccessDeniedException"
    if way == "other gallery" and "CollectionId" in asked_of("x")[name][1]:
        return "ResourceNotFoundException"
    return good[name]


def test_rotation_and_revocation_end_what_signs(place: Place) -> None:
    made = place.own.create_key(["read"], key_id="turning", aws=True)

    def listing(secret: str | None) -> str:
        return heard(aws.client(place.server.url, made.aws_access_key_id, secret), "ListCollections", {})

    assert listing(made.aws_secret_access_key) == ""
    rotated = place.own.rotate_key("turning", grace_seconds=600)
    assert listing(made.aws_secret_access_key) == listing(rotated.aws_secret_access_key) == ""
    last = place.own.rotate_key("turning")
    for old in (rotated, made):
        assert listing(old.aws_secret_access_key) == "InvalidSignatureException"
    assert listing(last.aws_secret_access_key) == ""
    place.own.revoke_key("turning")
    assert listing(last.aws_secret_access_key) == "UnrecognizedClientException"
    stranger = aws.client(place.server.url, "AKIAIOSFODNN7EXAMPLE", "x" * 40)
    refusal(stranger.list_collections, "UnrecognizedClientException")


def asked_once(client: Any) -> Any:
    """The client, which would ask again for seconds before it raises."""
    client.meta.events.unregister("needs-retry.rekognition", unique_id="retry-config-rekognition")
    return client


def test_rates_are_those_of_the_key(place: Place) -> None:
    slow = asked_once(place.client("read", rate="1/m"))
    slow.list_collections()
    with pytest.raises(slow.exceptions.ProvisionedThroughputExceededException):
        slow.list_collections()


@pytest.mark.long
def test_rates_count_the_faces_that_are_searched_for(place: Place, collection: str) -> None:
    within = {"CollectionId": collection}
    faces = [index(place.all, collection, photo)[0] for photo in (COLLINS, AGAIN, HOPPER)]
    faces += index(place.all, collection, HOPPER, "again")
    place.all.create_user(**within, UserId="eileen")
    place.all.associate_faces(**within, UserId="eileen", FaceIds=faces[:2], UserMatchThreshold=0)

    def asked_again(operation: str, **wanted: Any) -> Any:
        slow = asked_once(place.client("recognize", "enroll", rate="1/m:2"))
        getattr(slow, operation)(**within, **wanted)
        return slow.search_users(**within, FaceId=faces[2])

    associated: dict[str, Any] = {"UserId": "eileen", "UserMatchThreshold": 100}
    assert asked_again("search_users", FaceId=faces[2])["UserMatches"] == []
    assert asked_again("associate_faces", FaceIds=faces[2:3], **associated)
    too_often = "ProvisionedThroughputExceededException"
    refusal(asked_again, too_often, operation="search_users", UserId="eileen")
    refusal(asked_again, too_often, operation="associate_faces", FaceIds=faces[2:], **associated)


def test_what_was_done_is_in_the_audit_log(place: Place, collection: str) -> None:
    (face,) = index(place.all, collection, COLLINS)
    place.all.create_user(CollectionId=collection, UserId="eileen")
    place.all.associate_faces(CollectionId=collection, UserId="eileen", FaceIds=[face])
    refusal(place.all.create_user, "ConflictException", CollectionId=collection, UserId="eileen")
    entries = list(place.own.all_audit(gallery=collection, order="oldest"))
    assert [(one.operation, one.subject, one.status) for one in entries] == [
        ("create_gallery", None, 200),
        ("enroll", None, 200),
        ("create_subject", "eileen", 200),
        ("move_faces", "eileen", 200),
        ("create_subject", "eileen", 400),
    ]
    assert {one.key for one in entries} == {"all-of-it"}


def signed(place: Place, operation: str, body: bytes, **headers: str) -> dict[str, str]:
    """Headers as botocore makes them, by a key of their own."""
    made = place.own.create_key(["admin"], aws=True).model_dump()
    return aws.signed_headers(place.server.url, made, operation, body, **headers)


def post(place: Place, headers: dict[str, str], body: bytes) -> tuple[int, str]:
    """Status and the error's name."""
    answer = httpx.post(place.server.url + "/", headers=headers, content=body, timeout=60)
    assert answer.headers["content-type"] == "application/x-amz-json-1.1"
    assert answer.headers.get("x-amzn-errortype", "") == answer.json().get("__type", "")
    return answer.status_code, answer.json().get("__type", "")


def answer_to_head(place: Place, headers: dict[str, str], length: int) -> tuple[int, str]:
    """Status and the error's name, where a body of this length is promised and never sent."""
    address = urlsplit(place.server.url)
    with closing(http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)) as connection:
        connection.putrequest("POST", "/")
        for name, value in (headers | {"Content-Length": str(length)}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["__type"]


def test_tampered_requests_are_refused(place: Place) -> None:
    body = b'{"CollectionId": "people-x"}'
    headers = signed(place, "CreateCollection", body)
    invalid = (400, "InvalidSignatureException")
    assert post(place, headers, body.replace(b"-x", b"-y")) == invalid
    assert post(place, headers | {"X-Amz-Target": "RekognitionService.DeleteCollection"}, body) == invalid
    assert post(place, headers | {"X-Amz-Added": "1"}, body) == invalid
    assert post(place, {**headers, "Authorization": headers["Authorization"][:-1] + "Z"}, body)[0] == 400
    assert post(place, {}, body) == (400, "MissingAuthenticationTokenException")
    assert post(place, {"x-api-key": place.server.key}, body) == (400, "MissingAuthenticationTokenException")
    assert post(place, headers, body) == (200, "")


@pytest.mark.long
def test_another_server_and_a_restarted_one_refuse_replays(tmp_path: Path) -> None:
    bodies = {"CreateCollection": b'{"CollectionId": "once"}', "ListCollections": b"{}"}

    def send(client: httpx.Client, headers: dict[str, dict[str, str]]) -> set[tuple[int, str]]:
        answers = [client.post("/", headers=headers[name], content=body) for name, body in bodies.items()]
        return {(answer.status_code, str(answer.json().get("__type", ""))) for answer in answers}

    with running(tmp_path / "data") as first, running(tmp_path / "data") as second:
        made = first.post("/v1/keys", json={"scopes": ["admin"], "aws": True}).json()
        once = {"amz-sdk-invocation-id": "one"}
        headers = {name: aws.signed_headers("http://service", made, name, bodies[name], **once) for name in bodies}
        assert send(first, headers) == {(200, "")}
        first.delete("/v1/galleries/once")
        assert send(second, headers) == {(400, "InvalidSignatureException")}
    with running(tmp_path / "data") as restarted:
        assert send(restarted, headers) == {(400, "InvalidSignatureException")}
        assert restarted.get("/v1/galleries").json()["galleries"] == []


def test_the_same_question_within_a_second_is_answered(place: Place) -> None:
    reader = place.client("read")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: reader.list_collections()["CollectionIds"], range(16)))
    assert len(answers) == 16


def test_what_is_no_request_is_refused_by_name(place: Place) -> None:
    for operation, body, name in (
        ("DetectLabels", b"{}", "UnknownOperationException"),
        ("", b"{}", "UnknownOperationException"),
        ("ListCollections", b"{", "SerializationException"),
        ("ListCollections", b"[]", "SerializationException"),
        ("ListCollections", b'{"MaxResults": "5"}', "SerializationException"),
        ("ListCollections", b'{"MaxResults": NaN}', "SerializationException"),
        ("DescribeCollection", b"{}", "InvalidParameterException"),
        ("DescribeCollection", b'{"CollectionId": null}', "InvalidParameterException"),
        ("DetectFaces", b'{"Image": {"Bytes": "no base64!"}}', "SerializationException"),
        ("DetectFaces", b'{"Image": {"Bytes": ""}}', "InvalidParameterException"),
        ("DetectFaces", json.dumps({"Image": {"Bytes": "A" * 30_000_000}}).encode(), "ImageTooLargeException"),
        ("CreateUser", ("[" * 100_000).encode(), "SerializationException"),
    ):
        assert post(place, signed(place, operation, body), body) == (400, name), (operation, body[:50])
    assert post(place, signed(place, "ListCollections", b'{"Unknown": 1}'), b'{"Unknown": 1}') == (200, "")


def test_a_signature_of_a_stated_body_is_checked_before_the_body(place: Place) -> None:
    body = b'{"CollectionId": "stated"}'
    headers = signed(place, "CreateCollection", body, **{"X-Amz-Content-SHA256": hashlib.sha256(body).hexdigest()})
    invented = headers | {"Authorization": headers["Authorization"][:-64] + "0" * 64}
    assert answer_to_head(place, invented, 100) == (400, "InvalidSignatureException")
    assert post(place, headers, body.replace(b"stated", b"other!")) == (400, "InvalidSignatureException")
    assert post(place, headers, body) == (200, "")


def test_a_replayed_change_with_other_unsigned_headers_is_not_made_again(place: Place) -> None:
    body = b'{"CollectionId": "replayed-twice"}'
    headers = signed(place, "CreateCollection", body)
    assert post(place, headers | {"amz-sdk-request": "attempt=1"}, body) == (200, "")
    place.own.delete_gallery("replayed-twice")
    for attempt in range(3):
        again = headers | {"amz-sdk-request": f"attempt={attempt}"}
        assert post(place, again, body) == (500, "ThrottlingException")
    assert post(place, headers, body) == (500, "ThrottlingException")
    assert "replayed-twice" not in [gallery.id for gallery in place.own.all_galleries()]


def test_two_changes_of_one_second_are_throttled_where_the_client_names_no_attempts(place: Place) -> None:
    """AWS's JavaScript SDK v2 names none: it signs a second click alike, and tries again when it is throttled."""
    body = b'{"CollectionId": "two-clicks"}'
    made = place.own.create_key(["admin"], aws=True).model_dump()
    agent = {"X-Amz-User-Agent": "aws-sdk-nodejs/2.1693.0 linux/v20.20.2 promise"}
    headers = aws.signed_headers(place.server.url, made, "CreateCollection", body, **agent)
    assert post(place, headers, body) == (200, "")
    assert post(place, headers, body) == (500, "ThrottlingException")
    place.own.delete_gallery("two-clicks")


def test_whoever_names_no_key_or_sends_too_much_is_answered_before_the_body(place: Place) -> None:
    headers = signed(place, "ListFaces", b"{}")
    assert answer_to_head(place, headers, 10**9) == (400, "ImageTooLargeException")
    headers["Authorization"] = headers["Authorization"].replace("LKIA_", "LKIA_NOBODY_")
    assert answer_to_head(place, headers, 100) == (400, "UnrecognizedClientException")


@pytest.mark.long
def test_as_many_faces_as_a_request_may_name_fit_into_it(rekognition: Any, collection: str) -> None:
    ids = [str(uuid.uuid4()) for _ in range(4096)]
    done = rekognition.delete_faces(CollectionId=collection, FaceIds=ids)
    assert len(done["UnsuccessfulFaceDeletions"]) == 4096
    assert rekognition.list_faces(CollectionId=collection, FaceIds=ids)["Faces"] == []


def test_the_log_holds_nothing_of_anybody(place: Place) -> None:
    client = place.client("admin", name="zqxmark")
    client.create_collection(CollectionId="zqxmark-c", Tags={"zqxmark": "zqxmark"})
    index(client, "zqxmark-c", COLLINS, "zqxmark-photo")
    client.create_user(CollectionId="zqxmark-c", UserId="zqxmark-u")
    refusal(client.create_user, "InvalidParameterException", CollectionId="zqxmark-c", UserId="zqxmark u")
    refusal(client.list_users, "ResourceNotFoundException", CollectionId="zqxmark-d")
    client.delete_collection(CollectionId="zqxmark-c")
    log = place.server.log.read_text()
    assert "request" in log
    assert "zqxmark" not in log
    assert "Signature=" not in log


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (Overloaded("too many requests at once"), 500, "ThrottlingException"),
        (Overloaded("too many wrong keys", code="too_many_failures"), 500, "ThrottlingException"),
        (DatabaseBusy("locked"), 500, "ThrottlingException"),
        (LikenessError("starting", code="not_ready"), 500, "ThrottlingException"),
        (Overloaded("too often", code="rate_limited"), 400, "ProvisionedThroughputExceededException"),
        (Unusable("none installed", code="liveness_unavailable"), 400, "ResourceNotReadyException"),
        (LikenessError("/srv/secret/path", code="made_up"), 500, "InternalServerError"),
        (Unusable("/srv/secret/path", code="model_unusable"), 500, "InternalServerError"),
    ],
)
def test_errors_have_the_names_and_statuses_of_the_documentation(error: LikenessError, status: int, name: str) -> None:
    answer = answer_of(error)
    assert (answer.status, answer.name) == (status, name)
    assert "secret" not in answer.message


def test_every_operation_asks_for_what_botocores_model_has() -> None:
    model = botocore.session.get_session().get_service_model("rekognition")
    for name in TARGETS:
        asked = model.operation_model(name).input_shape
        ours = TARGETS[name].model.model_fields
        assert set(ours) == set(asked.members), name
        assert {field for field, about in ours.items() if about.is_required()} == set(asked.required_members), name
