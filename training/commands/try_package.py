"""`python -m training try NAME`: serve a package and identify drawn people with it over REST. Needs no torch.

It does what you would do by hand after an export: start a server, enroll people, search for them and for strangers, and
stop. It shows that the package works in the service; `evaluate` shows how good it is with real faces.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import typer
from likeness_client import ApiError, Client, ClientError
from PIL import Image
from rich.console import Console

from app.errors import Unusable
from training.data.drawn import ProceduralFaces
from training.packages import MODELS, find_package
from training.service import becomes_ready, environment, reserved_port, spawned
from training.terminal import told

FIRST = 2_000_000
"""Number of the first drawn person. The demo's recipe trains on people numbered from 0, and is measured on people
numbered from 1,000,000."""
ENROLLED, SEARCHED = 3, 2
"""Number of photos of each person that are enrolled, and that are searched with."""
BORDER = 24
"""Pixels around a drawn crop, since a detector looks for a head in a photo."""
GALLERY = "drawn"
START_S, STOP_S, ANSWER_S = 180.0, 30.0, 120.0


@dataclass(frozen=True, slots=True)
class Tried:
    """Counts of the service's answers. A photo without a detected face counts as a search that found nobody."""

    package: str
    people: int
    enrolled: int
    """Number of people of whom the service accepted at least one photo."""
    searches: int
    first: int
    """Number of searches that ranked the right person first."""
    known: int
    """Number of searches in `first` whose decision was `known`."""
    strangers: int
    taken_for_known: int


def try_package(
    name: Annotated[str, typer.Argument(help="An embedder package of --models.")],
    *,
    models: Annotated[Path, typer.Option(help="The folder of model packages.")] = MODELS,
    people: Annotated[int, typer.Option(min=2, help="Drawn people enrolled; as many strangers search too.")] = 10,
    seed: int = 1,
) -> None:
    """Start the service on a package, identify drawn people over REST, and stop it. Status 1 if it finds fewer than
    half of them."""
    console = Console(stderr=True)
    with (
        told(ClientError),
        tempfile.TemporaryDirectory(prefix="likeness-try-") as folder,
        served(name, models, Path(folder)) as client,
    ):
        tried = identify_drawn(client, name, people=people, seed=seed)
    console.print(
        f"{tried.package} is served: {tried.enrolled} of {tried.people} drawn people enrolled; "
        f"{tried.first} of {tried.searches} searches put the right one first, {tried.known} as known; "
        f"{tried.taken_for_known} of {tried.strangers} strangers taken for somebody known.",
        soft_wrap=True,
        highlight=False,
    )
    where = "" if models == MODELS else f"LIKENESS_MODELS_DIR={models} "
    console.print(f"Serve it: {where}LIKENESS_EMBEDDER={name} make serve", soft_wrap=True, highlight=False)
    if 2 * tried.first < tried.searches:
        raise typer.Exit(1)


def identify_drawn(client: Client, name: str, *, people: int, seed: int) -> Tried:
    """Enroll drawn people in a new gallery and search for them. Raises ClientError if a call is rejected, and Unusable
    (``package_unknown``) if the server doesn't run the package."""
    faces = ProceduralFaces(2 * people, ENROLLED + SEARCHED, seed=seed, first=FIRST)
    loaded = [model for model in client.models().models if model.loaded]
    package = next((model.id for model in loaded if name in {model.id, model.name}), None)
    if package is None:
        raise Unusable(f"the server does not run the package {name}", code="package_unknown")
    client.create_gallery(GALLERY)
    taken = [_enroll(client, str(person), _photos(faces, person)[:ENROLLED]) for person in range(people)]
    mates = [(str(person), photo) for person in range(people) for photo in _photos(faces, person)[ENROLLED:]]
    searched = [(person, _identify(client, photo)) for person, photo in mates]
    strangers = [_identify(client, _photos(faces, person)[0]) for person in range(people, 2 * people)]
    right = [decision for person, (subject, decision) in searched if subject == person]
    return Tried(
        package=package,
        people=people,
        enrolled=sum(taken),
        searches=len(searched),
        first=len(right),
        known=right.count("known"),
        strangers=len(strangers),
        taken_for_known=sum(decision == "known" for _, decision in strangers),
    )


def _photos(faces: ProceduralFaces, person: int) -> list[bytes]:
    """Return a drawn person's images as PNG files."""
    count = faces.images_per_person
    files = []
    for index in range(person * count, (person + 1) * count):
        pixels, _ = faces[index]
        file = io.BytesIO()
        wide = np.pad(pixels, ((BORDER, BORDER), (BORDER, BORDER), (0, 0)), mode="edge")
        Image.fromarray(wide).save(file, "PNG")
        files.append(file.getvalue())
    return files


@contextmanager
def served(name: str, models: Path, folder: Path) -> Iterator[Client]:
    """Run a server with the package for the block and yield a client with the admin key. The server's data folder is in
    ``folder``. Raises Unusable if there is no such package, or the server doesn't start."""
    find_package(name, models)
    data, log = folder / "data", folder / "server.log"
    with (
        reserved_port() as port,
        spawned(
            environment(DATA_DIR=data, MODELS_DIR=models.resolve(), EMBEDDER=name, PORT=port), log, stop_s=STOP_S
        ) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        if not becomes_ready(process, url, patience_s=START_S):
            said = log.read_text(errors="replace").strip().splitlines()
            message = f"the server did not start: {said[-1] if said else 'it said nothing'}"
            raise Unusable(message, code="server_not_started")
        key = (data / "admin.key").read_text().strip()
        with Client(url, key, timeout_s=ANSWER_S, transport=httpx.HTTPTransport()) as client:  # without a proxy
            yield client


def _enroll(client: Client, subject: str, photos: list[bytes]) -> bool:
    """Enroll a subject; return whether any photo was accepted."""
    try:
        return bool(client.enroll(GALLERY, subject, photos).enrolled)
    except ApiError as error:
        if error.status == httpx.codes.UNPROCESSABLE_ENTITY:  # no photo has a face
            return False
        raise


def _identify(client: Client, photo: bytes) -> tuple[str | None, str | None]:
    """Return the best candidate and the decision for the photo's first face, (None, None) if there is none."""
    faces = client.identify(GALLERY, photo).faces
    if not faces:
        return None, None
    candidates = faces[0].candidates
    return candidates[0].subject if candidates else None, faces[0].decision
