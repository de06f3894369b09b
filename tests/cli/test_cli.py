"""The command line as scripts see it: what it prints, and the exit codes; with a server and without one."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support.commands import run as likeness
from tests.support.live import LiveServer
from tests.support.ready import give_models

SAMPLES = PROJECT / "docs" / "samples"
COLLINS, AGAIN, HOPPER, BOTH = (
    SAMPLES / name for name in ("collins.jpg", "collins_again.jpg", "hopper.jpg", "both.jpg")
)


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A data folder on which no server runs."""
    give_models(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one folder a person, one photo of which shows nobody."""
    folder = tmp_path_factory.mktemp("people")
    for person, photos in {"eileen": [COLLINS, AGAIN], "grâce ⚓": [HOPPER]}.items():
        (folder / person).mkdir()
        for photo in photos:
            (folder / person / photo.name).write_bytes(photo.read_bytes())
    (folder / "eileen" / "broken.jpg").write_bytes(COLLINS.read_bytes()[:5000])
    return folder


def test_commands_find_the_server_that_runs_on_the_data_folder(shared_server: LiveServer, people: Path) -> None:
    folder, crew = shared_server.data_dir, f"crew-{uuid.uuid4().hex}"
    enrolled = likeness(folder, "enroll", crew, "--people", people, "--create", "--json")
    assert enrolled.returncode == 3, "one photo is broken, so a script must learn that not all went well"
    assert {row["subject"]: len(row["enrolled"]) for row in enrolled.rows} == {"eileen": 2, "grâce ⚓": 1}
    assert "broken.jpg" in enrolled.stderr
    assert "invalid_image" in enrolled.stderr

    again = likeness(folder, "enroll", crew, "--people", people, "--on-conflict", "reject", "--json")
    assert again.returncode == 3, "a photo that is there already is about a photo, so the next person's are sent"
    assert again.stderr.count("duplicate_face") == 3, "eileen's two, and the one of the next person"

    identified = likeness(folder, "identify", crew, BOTH, "--json")
    assert identified.returncode == 0
    (answer,) = identified.rows
    assert {(face["decision"], face["candidates"][0]["subject"]) for face in answer["faces"]} == {
        ("known", "eileen"),
        ("known", "grâce ⚓"),
    }

    assert likeness(folder, "galleries", "check").returncode == 0
    assert likeness(folder, "galleries", "list", "--json").stdout.count(f'{{"id": "{crew}"') == 1
    assert likeness(folder, "galleries", "create", crew).returncode == 4, "it is there already"
    assert likeness(folder, "galleries", "delete", crew, "--yes").returncode == 0


def test_a_server_elsewhere_needs_its_key(shared_server: LiveServer, tmp_path: Path) -> None:
    asked = ("verify", COLLINS, AGAIN, "--server", shared_server.url)
    refused = likeness(tmp_path, *asked)
    assert refused.returncode == 4
    assert "missing_key" in refused.stderr
    assert likeness(tmp_path, *asked, "--key", shared_server.key).returncode == 0
    assert likeness(tmp_path, *asked, KEY=shared_server.key).returncode == 0
    unreachable = likeness(tmp_path, "verify", COLLINS, AGAIN, "--server", "http://127.0.0.1:9")
    assert unreachable.returncode == 4
    assert "unreachable" in unreachable.stderr


def test_without_a_server_the_work_is_done_in_this_process(alone: Path) -> None:
    same = likeness(alone, "verify", COLLINS, AGAIN)
    assert (same.returncode, same.stdout[:11]) == (0, "same person")
    other = likeness(alone, "verify", COLLINS, HOPPER, "--json")
    assert other.returncode == 1
    (answer,) = other.rows
    assert answer["match"] is False

    folder = likeness(alone, "detect", SAMPLES, "--json")
    assert folder.returncode == 0
    found = {Path(str(row["path"])).name: len(row["faces"]) for row in folder.rows}
    assert found == {"collins.jpg": 1, "collins_again.jpg": 1, "hopper.jpg": 1, "both.jpg": 2}


def test_what_was_enrolled_without_a_server_is_there_the_next_time(alone: Path) -> None:
    assert likeness(alone, "enroll", "crew", "eileen", COLLINS, "--create").returncode == 0
    unknown = likeness(alone, "identify", "crew", HOPPER)
    assert (unknown.returncode, "unknown" in unknown.stdout) == (1, True)
    known = likeness(alone, "identify", "crew", AGAIN, HOPPER, "--jobs", 1)
    assert (known.returncode, "known: eileen" in known.stdout) == (0, True), "one known face is enough"


def test_a_file_that_is_no_photo_is_refused_with_its_own_exit_code(shared_server: LiveServer, tmp_path: Path) -> None:
    text = tmp_path / "text.bmp"
    text.write_bytes(b"Not a photo at all, whatever it is called.")
    done = likeness(shared_server.data_dir, "detect", text, COLLINS)
    assert done.returncode == 3
    assert "unsupported_image" in done.stderr
    assert "face at" in done.stdout, "the good photo is answered all the same"


def test_an_enrollment_refused_as_a_whole_has_its_line_of_json(alone: Path) -> None:
    most = COLLINS.stat().st_size
    done = likeness(alone, "enroll", "crew", "eileen", COLLINS, AGAIN, "--create", "--json", MAX_REQUEST_BYTES=most)
    assert done.returncode == 3
    (row,) = done.rows
    assert (row["subject"], row["paths"]) == ("eileen", [str(COLLINS), str(AGAIN)])
    assert row["error"]["code"] == "payload_too_large"


@pytest.mark.parametrize(
    ("arguments", "settings", "code", "words"),
    [
        (("detect", "nowhere.jpg"), {}, 2, "file_not_found"),
        (("enroll", "crew"), {}, 2, "--people"),
        (("frobnicate",), {}, 2, "frobnicate"),
        (("detect", COLLINS), {"PROT": 1}, 2, "LIKENESS_PORT"),
        (("detect", COLLINS), {"PORT": "many"}, 2, "LIKENESS_PORT"),
        (("models", "pull", "nothing"), {}, 4, "nothing"),
        (("detect", COLLINS), {"DEVICE": "cuda"}, 4, "CUDA"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, arguments: tuple[object, ...], settings: dict[str, object], code: int, words: str
) -> None:
    done = likeness(tmp_path, *arguments, **settings)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_models_are_listed_with_their_licences_and_pulled_when_they_are_carried(alone: Path) -> None:
    listed = likeness(alone, "models", "list", "--json")
    assert {row["name"] for row in listed.rows} >= {"sface", "yunet"}
    assert likeness(alone, "models", "pull", "sface").returncode == 0


def test_the_key_is_made_once_and_kept_to_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    first = likeness(folder, "keys", "admin", "--rotate")
    assert first.returncode == 0
    assert likeness(folder, "keys", "admin").stdout == first.stdout
    assert (folder / "admin.key").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert likeness(folder, "keys", "admin", "--rotate").stdout != first.stdout
